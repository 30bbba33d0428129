//! Effect of each call: counts bytes, detects pairs, and makes and revokes claims.
//!
//! The direction from A to B is transparent when A is spliced into a pipe without a limit, and
//! two consecutive moves from that pipe to B have the same delta (bytes written to B and in the
//! pipe, less bytes read from A).

use core::sync::atomic::Ordering::Relaxed;

use dysco_common::shim::ReportKind;

use crate::link;
use crate::own;
use crate::system;
use crate::table::{self, Handle, Slot, delta, flag, kind, ordered, slot};
use crate::tell::{about, is_owed, owe, settle, tell};

/// Minimum length of a splice without a limit.
pub(crate) const ENDLESS: usize = 1 << 30;
/// Number of bytes after which a pair is reported again, in case the daemon has missed the
/// report.
const TELL_AGAIN: u64 = 64 << 20;
/// Maximum number of changes of a socket's delta. A socket with more changes is being rewritten.
const MAX_NOISE: u32 = 256;

/// Records that the program has read `n` bytes from `fd`.
#[inline(always)]
pub(crate) fn read(fd: i32, n: isize) {
    if n > 0
        && let Some(s) = slot(fd)
        && s.kind.load(Relaxed) != kind::NONE
    {
        s.read.fetch_add(n as u64, Relaxed);
        if s.peer.load(Relaxed) != 0 {
            read_of_known(fd, s, n as i64);
        }
    }
}

/// Records that the program has written `n` bytes to `fd`.
#[inline(always)]
pub(crate) fn wrote(fd: i32, n: isize) {
    if n > 0
        && let Some(s) = slot(fd)
        && s.kind.load(Relaxed) != kind::NONE
    {
        s.written.fetch_add(n as u64, Relaxed);
        if s.peer.load(Relaxed) != 0 {
            wrote_to_known(fd, s, n as i64);
        }
    }
}

#[cold]
fn read_of_known(fd: i32, s: &'static Slot, n: i64) {
    match s.kind.load(Relaxed) {
        kind::PIPE_READ => {
            s.level.fetch_sub(n, Relaxed);
        }
        kind::PIPE_WRITE => {}
        _ => {
            let peer = s.peer();
            if let Some(b) = peer.slot()
                && b.has(flag::ENDLESS)
                && !b.has(flag::DECLARED)
            {
                take_back(s.life(fd), peer);
            }
        }
    }
}

#[cold]
fn wrote_to_known(fd: i32, s: &'static Slot, n: i64) {
    match s.kind.load(Relaxed) {
        kind::PIPE_WRITE => {
            // The bytes are the program's own, so the contents of the pipe have no source.
            if let Some(p) = s.peer().slot() {
                p.from.store(0, Relaxed);
                p.level.fetch_add(n, Relaxed);
            }
        }
        kind::PIPE_READ => {}
        _ if s.has(flag::DECLARED) => {}
        _ => {
            let a = s.peer();
            if s.has(flag::ENDLESS) {
                take_back(a, s.life(fd));
            } else if let Some(sa) = a.slot()
                && delta(sa, s) != s.reported_delta.load(Relaxed)
            {
                noisy(a, s.life(fd));
            }
        }
    }
}

/// Revokes the claim about the direction from A to B. New moves must prove it again.
fn take_back(a: Handle, b: Handle) {
    if let Some(s) = b.slot() {
        s.flags.fetch_and(!flag::ENDLESS, Relaxed);
        s.from.store(0, Relaxed);
        noisy(a, b);
    }
}

/// Reports a change of the direction from A to B, unless changes are too frequent.
fn noisy(a: Handle, b: Handle) {
    let (Some(sa), Some(s)) = (a.slot(), b.slot()) else {
        return;
    };
    if is_owed(ordered(a, sa, b).0) {
        // The owed report will contain the newest state.
        return;
    }
    if s.noise.fetch_add(1, Relaxed) < MAX_NOISE {
        tell(a, b);
    } else {
        s.flags.fetch_or(flag::UNFIT, Relaxed);
        part(b);
    }
}

/// Records that a splice of length `len` moved `n` bytes from one descriptor to another.
#[inline]
pub(crate) fn spliced(from: i32, to: i32, n: isize, len: usize) {
    // This check comes first: a look at the slots may change `errno`, which the caller of a
    // failed call reads.
    if n <= 0 {
        return;
    }
    let (Some(f), Some(t)) = (slot(from), slot(to)) else {
        return;
    };
    match (f.kind.load(Relaxed), t.kind.load(Relaxed)) {
        (kind::SOCKET | kind::ACCEPTED, kind::PIPE_WRITE) => {
            into_pipe(f.life(from), f, t.peer(), n as i64, len);
        }
        (kind::PIPE_READ, kind::SOCKET | kind::ACCEPTED) => {
            out_of_pipe(from, f, t.life(to), t, n as i64);
        }
        // Pipe to pipe, or a file: the bytes are counted, and their source is unknown.
        _ => {
            read(from, n);
            wrote(to, n);
        }
    }
}

fn into_pipe(a: Handle, sa: &Slot, pipe: Handle, n: i64, len: usize) {
    let Some(p) = pipe.slot() else { return };
    if p.level.load(Relaxed) == 0 {
        p.from.store(a.0, Relaxed);
    } else if p.from.load(Relaxed) != a.0 {
        p.from.store(0, Relaxed);
    }
    if len >= ENDLESS {
        p.flags.fetch_or(flag::ASKED_ENDLESS, Relaxed);
    } else {
        p.flags.fetch_and(!flag::ASKED_ENDLESS, Relaxed);
    }
    p.level.fetch_add(n, Relaxed);
    sa.piped.fetch_add(n, Relaxed);
    sa.read.fetch_add(n as u64, Relaxed);
}

fn out_of_pipe(pipe: i32, p: &Slot, b: Handle, sb: &'static Slot, n: i64) {
    let left = p.level.fetch_sub(n, Relaxed) - n;
    let total = sb
        .written
        .fetch_add(n as u64, Relaxed)
        .wrapping_add(n as u64);
    settle();
    let a = Handle(p.from.load(Relaxed));
    let Some(sa) = a.slot() else {
        // The bytes have no known source, so a claim about B is wrong.
        if sb.has(flag::ENDLESS) {
            take_back(sb.peer(), b);
        }
        return;
    };
    sa.piped.fetch_sub(n, Relaxed);
    if sb.has(flag::DECLARED | flag::UNFIT) || sa.has(flag::UNFIT) || left < 0 {
        return;
    }
    let now = delta(sa, sb);
    let (from_before, level_before) = (sb.from.swap(a.0, Relaxed), sb.level.swap(now, Relaxed));
    let steady = from_before == a.0 && level_before == now;
    sb.pipe.store(pipe, Relaxed);
    let endless = steady && p.has(flag::ASKED_ENDLESS);
    let was = sb.has(flag::ENDLESS);
    if endless && !was {
        sb.flags.fetch_or(flag::ENDLESS, Relaxed);
        pair(a, b);
        tell(a, b);
    } else if was && !endless {
        take_back(a, b);
    } else if endless && total.wrapping_sub(sb.reported_at.load(Relaxed)) > TELL_AGAIN {
        tell(a, b);
    } else if sb.peer() == a && now != sb.reported_delta.load(Relaxed) {
        noisy(a, b);
    } else if endless && left > 0 && pipe_changed(pipe, sb) {
        tell(a, b);
    }
}

/// Returns true if the pipe holds bytes for a slow reader and the daemon does not know the pipe.
/// The daemon counts the bytes in it. One report a second is sufficient.
fn pipe_changed(pipe: i32, s: &Slot) -> bool {
    let now = system::seconds() as u32;
    s.reported_pipe.load(Relaxed) != pipe && s.reported_second.swap(now, Relaxed) != now
}

/// Makes two sockets each other's peers, and ends their earlier pairs.
pub(crate) fn pair(a: Handle, b: Handle) {
    // The cookies are read now, while both sockets are certainly open: reports may come much
    // later.
    a.cookie();
    b.cookie();
    let (Some(sa), Some(sb)) = (a.slot(), b.slot()) else {
        return;
    };
    if sa.peer() != b {
        part(a);
        sa.peer.store(b.0, Relaxed);
    }
    if sb.peer() != a {
        part(b);
        sb.peer.store(a.0, Relaxed);
    }
}

/// Revokes all claims about this socket, and ends its pair.
#[cold]
pub(crate) fn part(one: Handle) {
    let Some(s) = one.slot() else { return };
    if !own::calls() {
        return part_later(one, s);
    }
    let other = Handle(s.peer.swap(0, Relaxed));
    if other == Handle::NONE {
        return;
    }
    s.flags
        .fetch_and(!(flag::ENDLESS | flag::DECLARED), Relaxed);
    if let Some(o) = other.slot()
        && o.peer() == one
    {
        o.peer.store(0, Relaxed);
        o.flags
            .fetch_and(!(flag::ENDLESS | flag::DECLARED), Relaxed);
    }
    let (a, b) = ordered(one, s, other);
    // A lost report is not owed, because the daemon itself notices a closed socket.
    link::send(&about(ReportKind::Revoked, a, b));
}

/// Revokes all claims about this socket in a child that shares the memory. The daemon would
/// attribute a report to the child, so the parent sends it when it continues.
fn part_later(one: Handle, s: &Slot) {
    let other = s.peer();
    let Some(o) = other.slot() else { return };
    for s in [s, o] {
        s.flags
            .fetch_and(!(flag::ENDLESS | flag::DECLARED), Relaxed);
    }
    if let Some(first) = ordered(one, s, other).0.slot() {
        owe(first);
    }
}

/// Stores the program's own declaration that the bytes of A go to B, with this delta.
pub(crate) fn declare(a: Handle, b: Handle, delta: i64) {
    pair(a, b);
    if let Some(s) = b.slot() {
        s.level.store(delta, Relaxed);
        s.flags.fetch_or(flag::ENDLESS | flag::DECLARED, Relaxed);
    }
}

/// Records that `fd` is a new descriptor of this kind.
pub(crate) fn opened(fd: i32, kind: u32) {
    if fd >= 0 && own::calls() {
        table::begin(fd, kind);
    }
}

/// Records that two descriptors are the ends of a new pipe.
pub(crate) fn piped(read_end: i32, write_end: i32) {
    if !own::calls() {
        return;
    }
    let r = table::begin(read_end, kind::PIPE_READ);
    let w = table::begin(write_end, kind::PIPE_WRITE);
    if let (Some(r), Some(w)) = (r, w) {
        r.peer.store(w.life(write_end).0, Relaxed);
        w.peer.store(r.life(read_end).0, Relaxed);
    }
}

/// Records that `fd` is about to be closed.
#[inline]
pub(crate) fn closing(fd: i32) {
    if let Some(s) = slot(fd)
        && s.kind.load(Relaxed) != kind::NONE
        && own::calls()
    {
        unpair(fd, s);
        s.begin(kind::NONE);
    }
}

fn unpair(fd: i32, s: &'static Slot) {
    if s.peer() != Handle::NONE && matches!(s.kind.load(Relaxed), kind::SOCKET | kind::ACCEPTED) {
        part(s.life(fd));
    }
}

/// Records a use of `fd` that the counters do not follow. The socket is never paired again.
pub(crate) fn unfit(fd: i32) {
    if let Some(s) = slot(fd)
        && s.kind.load(Relaxed) != kind::NONE
    {
        s.flags.fetch_or(flag::UNFIT, Relaxed);
        unpair(fd, s);
        let is_pipe = matches!(s.kind.load(Relaxed), kind::PIPE_READ | kind::PIPE_WRITE);
        if is_pipe && own::calls() {
            s.begin(kind::NONE);
        }
    }
}

/// Records that `fd` will not be read any more.
pub(crate) fn shut(fd: i32) {
    if let Some(s) = slot(fd)
        && s.peer() != Handle::NONE
        && own::calls()
    {
        unpair(fd, s);
    }
}

/// Records that a call is about to close the descriptors from `first` to `last`. The call may fail.
pub(crate) fn range_closes(first: u32, last: u32) {
    if own::calls() {
        for (_, s) in watched(first, last) {
            s.flags.fetch_or(flag::CLOSING, Relaxed);
        }
    }
}

/// Records that the call is over. Another thread may have used the numbers again meanwhile, for
/// new lives, which have no mark.
pub(crate) fn range_closed(first: u32, last: u32, closed: bool) {
    if !own::calls() {
        return;
    }
    for (fd, s) in watched(first, last).filter(|(_, s)| s.has(flag::CLOSING)) {
        if closed {
            closing(fd);
        } else {
            s.flags.fetch_and(!flag::CLOSING, Relaxed);
        }
    }
}

/// Returns the watched descriptors from `first` to `last`, with their slots.
fn watched(first: u32, last: u32) -> impl Iterator<Item = (i32, &'static Slot)> {
    let top = table::highest().max(0) as u32;
    let slots = (first..=last.min(top)).filter_map(|fd| Some((fd as i32, slot(fd as i32)?)));
    slots.filter(|(_, s)| s.kind.load(Relaxed) != kind::NONE)
}
