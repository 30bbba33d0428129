//! Reports to the daemon about pairs, and the repetition of lost reports.

use core::sync::atomic::{
    AtomicBool, AtomicI32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use dysco_common::shim::{Report, ReportKind, report};

use crate::link::{self, Sent};
use crate::own;
use crate::pace;
use crate::table::{self, Handle, Slot, delta, flag, kind, ordered, slot};

/// True if a report was lost, so that pairs must be reported again.
static OWED: AtomicBool = AtomicBool::new(false);
/// Descriptor at which the repetition continues.
static CURSOR: AtomicI32 = AtomicI32::new(0);
/// Lock that is held while a report is composed and sent, so that the last report is the newest.
/// It is only ever tried, because a signal handler may hold it, or a fork may freeze it.
static TELLING: AtomicBool = AtomicBool::new(false);

/// Maximum time in milliseconds to wait until the daemon reads.
const LONGEST: u32 = 200;

/// Begins to follow forks.
pub(crate) fn start() {
    // SAFETY: the handler is a plain function of this library.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// Releases the lock in the child of a fork, in which no thread reports.
extern "C" fn forked() {
    TELLING.store(false, Relaxed);
}

/// Reports the state of a pair to the daemon. Returns false if the report is owed.
#[cold]
pub(crate) fn tell(one: Handle, other: Handle) -> bool {
    let Some(s) = one.slot() else { return true };
    if s.peer() != other {
        return true;
    }
    let (a, b) = ordered(one, s, other);
    let (Some(sa), Some(sb)) = (a.slot(), b.slot()) else {
        return true;
    };
    if !pace::may_try() || !own::calls() || !lock() {
        return owe(sa);
    }
    // The epoch is stored before the report is composed. Another thread that changes the pair
    // meanwhile sets the epoch to 0 again, and that must not be overwritten.
    sa.reported_epoch.store(link::epoch(), SeqCst);
    let sent = tell_now(a, sa, b, sb);
    unlock();
    match sent {
        // Without a daemon nothing is owed, because a new daemon has a new epoch.
        Sent::Yes | Sent::NoDaemon => {
            pace::try_succeeded();
            true
        }
        Sent::Full => {
            pace::try_failed();
            owe(sa)
        }
    }
}

/// Takes the lock, if its holder releases it soon.
pub(crate) fn lock() -> bool {
    (0..1_000).any(|_| {
        core::hint::spin_loop();
        TELLING
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_ok()
    })
}

/// Releases the lock.
pub(crate) fn unlock() {
    TELLING.store(false, Release);
}

/// Returns true if a report about the pair of this first socket is owed already.
pub(crate) fn is_owed(first: Handle) -> bool {
    let reported = first.slot().map(|s| s.reported_epoch.load(Relaxed));
    reported == Some(0) && OWED.load(Relaxed)
}

/// Records that a report about the pair of this first socket is owed. Returns false.
pub(crate) fn owe(first: &Slot) -> bool {
    first.reported_epoch.store(0, SeqCst);
    OWED.store(true, SeqCst);
    false
}

fn tell_now(a: Handle, sa: &Slot, b: Handle, sb: &Slot) -> Sent {
    let mut sent = Sent::Yes;
    for (from, to, sf, st) in [(a, b, sa, sb), (b, a, sb, sa)] {
        if st.has(flag::DECLARED) {
            let mut r = about(ReportKind::Called, from, to);
            r.flags = report::FORWARD_ENDLESS | accepted_bit(sf);
            r.delta_forward = st.level.load(Relaxed);
            sent = worst(sent, link::send(&r));
        }
    }
    if !sa.has(flag::DECLARED) || !sb.has(flag::DECLARED) {
        sent = worst(sent, link::send(&paired(a, sa, b, sb)));
    }
    sent
}

fn worst(a: Sent, b: Sent) -> Sent {
    if a == Sent::Yes { b } else { a }
}

/// Returns the flag that states whether this end was accepted.
pub(crate) fn accepted_bit(s: &Slot) -> u32 {
    if s.kind.load(Relaxed) == kind::ACCEPTED {
        report::IN_ACCEPTED
    } else {
        0
    }
}

/// Returns a report of this kind about two sockets.
pub(crate) fn about(kind: ReportKind, from: Handle, to: Handle) -> Report {
    let mut r = link::report(kind);
    (r.fd_in, r.fd_out) = (from.fd(), to.fd());
    (r.cookie_in, r.cookie_out) = (from.cookie(), to.cookie());
    r
}

fn paired(a: Handle, sa: &Slot, b: Handle, sb: &Slot) -> Report {
    let mut r = about(ReportKind::Paired, a, b);
    r.flags = accepted_bit(sa);
    if sb.has(flag::ENDLESS) {
        r.flags |= report::FORWARD_ENDLESS;
    }
    if sa.has(flag::ENDLESS) {
        r.flags |= report::REVERSE_ENDLESS;
    }
    r.pipe_forward = sb.pipe.load(Relaxed);
    r.pipe_reverse = sa.pipe.load(Relaxed);
    r.delta_forward = claimed(sa, sb);
    r.delta_reverse = claimed(sb, sa);
    for (s, d) in [(sb, r.delta_forward), (sa, r.delta_reverse)] {
        s.reported_delta.store(d, Relaxed);
        s.reported_at.store(s.written.load(Relaxed), Relaxed);
        s.reported_pipe.store(s.pipe.load(Relaxed), Relaxed);
    }
    r
}

/// Returns the delta of the direction to B: the steady one, or otherwise the current one of the
/// counters.
fn claimed(a: &Slot, b: &Slot) -> i64 {
    if b.has(flag::ENDLESS | flag::DECLARED) {
        b.level.load(Relaxed)
    } else {
        delta(a, b)
    }
}

/// Sends some of the owed reports. Costs one load if nothing is owed, and makes no system call
/// while the daemon is known not to read.
#[inline(always)]
pub(crate) fn settle() {
    if OWED.load(Relaxed) && pace::may_try() {
        settle_some();
    }
}

#[cold]
fn settle_some() {
    let (top, start) = (table::highest(), CURSOR.load(Relaxed));
    if start == 0 {
        // The flag is cleared before the pass, not after it. A report that another thread owes
        // behind the cursor is left for the next pass.
        OWED.store(false, SeqCst);
    }
    for fd in start..=top.min(start.saturating_add(4096)) {
        CURSOR.store(fd, Relaxed);
        let Some((s, one, other)) = first_of_pair(fd) else {
            continue;
        };
        // The cursor stays at this descriptor after a failure, and the repetition continues here.
        if s.reported_epoch.load(Relaxed) != link::epoch() && !tell(one, other) {
            return;
        }
    }
    if CURSOR.load(Relaxed) >= top {
        CURSOR.store(0, Relaxed);
        if !OWED.load(Relaxed) {
            pace::try_succeeded();
        }
    } else {
        OWED.store(true, SeqCst);
    }
}

/// Returns the slot of this descriptor and both sockets of its pair, if it is a pair's first socket.
fn first_of_pair(fd: i32) -> Option<(&'static Slot, Handle, Handle)> {
    // Without a slot, no descriptor of this part of the table was ever watched.
    let s = slot(fd)?;
    let (one, other) = (s.life(fd), s.peer());
    let socket = matches!(s.kind.load(Relaxed), kind::SOCKET | kind::ACCEPTED);
    let first = socket && other != Handle::NONE && ordered(one, s, other).0 == one;
    first.then_some((s, one, other))
}

/// Takes back all reports. They are owed until the program has them sent again. Waits for a
/// moment if the daemon's queue is full, because no later report corrects these.
pub(crate) fn take_back_all() {
    let mut waits = LONGEST;
    for fd in 0..=table::highest() {
        let Some((s, one, other)) = first_of_pair(fd) else {
            continue;
        };
        s.reported_epoch.store(0, SeqCst);
        let revoked = about(ReportKind::Revoked, one, other);
        while link::send(&revoked) == Sent::Full && waits > 0 {
            waits -= 1;
            // SAFETY: no pointers. A signal ends the pause early.
            unsafe { libc::usleep(1_000) };
        }
    }
}

/// Looks for a new daemon once a second, and sends owed reports. Called when the program is about
/// to wait.
#[inline(always)]
pub(crate) fn idle() {
    if link::due() && own::calls() && link::look() {
        owe_all();
    }
    for _ in 0..pace::PATIENCE {
        if !OWED.load(Relaxed) || !pace::may_try() {
            break;
        }
        settle_some();
        // SAFETY: no arguments. The daemon may need this processor.
        unsafe { libc::sched_yield() };
    }
}

/// Records that all pairs must be reported again.
pub(crate) fn owe_all() {
    CURSOR.store(0, Relaxed);
    OWED.store(true, Relaxed);
}

/// Records that no report is owed.
pub(crate) fn owe_nothing() {
    CURSOR.store(0, Relaxed);
    OWED.store(false, Relaxed);
}
