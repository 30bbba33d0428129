//! The end of a process in which a service does not return.
//!
//! Such a service stops all sessions of the process, and nothing can be asked of it any more. A timer
//! of the kernel interrupts the process at a fixed interval. If the loop is in the same turn as at the
//! interrupt before, the process ends. `dyscod` then treats its sessions as after any other death of
//! a handler.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::Error;

/// Exit code of a process that ended so (`EX_SOFTWARE` of sysexits.h).
pub const STUCK: i32 = 70;

/// Number of turns that have begun.
static TURNS: AtomicU64 = AtomicU64::new(0);
/// True while the loop waits for events, which may last.
static WAITS: AtomicBool = AtomicBool::new(true);
/// Turn of the last interrupt; [`NO_TURN`] if the loop waited then.
static SEEN: AtomicU64 = AtomicU64::new(NO_TURN);
const NO_TURN: u64 = u64::MAX;

const MESSAGE: &[u8] = b"error: a service does not return: its handler ends\n";

/// Ends this process once a turn of its loop lasts for longer than two intervals, and never before one
/// has passed. To be called before the process is confined.
///
/// # Errors
/// If the kernel sets no timer.
pub fn watch(interval: Duration) -> Result<(), Error> {
    let action = SigAction::new(
        SigHandler::Handler(interrupted),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler only uses atomics, `write` and `_exit`, which are async-signal-safe.
    let handled = unsafe { sigaction(Signal::SIGALRM, &action) };
    handled.map_err(Error::of("watch the services"))?;
    let interval = libc::timeval {
        tv_sec: interval.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(interval.subsec_micros() as i32),
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    // SAFETY: the kernel reads one `itimerval`, which outlives the call.
    match unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::of("watch the services")(io::Error::last_os_error())),
    }
}

/// A turn begins: the code of one session, or one request.
pub(crate) fn turn() {
    TURNS.fetch_add(1, Ordering::Relaxed);
}

/// Runs a wait for events, which is no turn.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITS.store(true, Ordering::Relaxed);
    let done = wait();
    turn();
    WAITS.store(false, Ordering::Relaxed);
    done
}

extern "C" fn interrupted(_: libc::c_int) {
    let now = match WAITS.load(Ordering::Relaxed) {
        true => NO_TURN,
        false => TURNS.load(Ordering::Relaxed),
    };
    if SEEN.swap(now, Ordering::Relaxed) == now && now != NO_TURN {
        // SAFETY: both calls are async-signal-safe, and the message is static.
        unsafe {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(STUCK);
        }
    }
}
