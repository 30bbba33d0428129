//! Scheduling of the daemon's threads. A removal is a chain of short steps on several hosts. Each
//! waits until the daemon gets a processor, which on a busy host is most of the time that it takes.
//! The threads that take the steps therefore run before others (`SCHED_RR`, its lowest priority),
//! as long as they use little processor time. Where the kernel refuses, they ask for short time
//! slices that come soon. The daemon and the proxy's side use this crate; it depends on none of the
//! other crates.

use std::io;
use std::time::{Duration, Instant};

/// Time slice that a thread asks for, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// Interval at which a thread checks how much processor time it has used.
const LOOK: Duration = Duration::from_secs(1);
/// Share of the time above which a thread has so much to do that others must have their share.
const MUCH: f64 = 0.7;
/// Lowest priority of the real-time policies.
const PRIORITY: i32 = 1;

/// Scheduling of the engine's thread.
pub struct Turns {
    wanted: bool,
    first: bool,
    looked: Instant,
    used: Duration,
}

impl Turns {
    /// Takes the policy for the calling thread, which alone may call [`Turns::look`] later.
    pub fn take(realtime: bool) -> Turns {
        let first = take(realtime);
        Turns {
            wanted: first,
            first,
            looked: Instant::now(),
            used: used(),
        }
    }

    /// Gives up the real-time policy while there is much to do, and takes it again afterwards. To
    /// be called from time to time.
    pub fn look(&mut self) {
        let passed = self.looked.elapsed();
        if !self.wanted || passed < LOOK {
            return;
        }
        let used = used();
        self.looked = Instant::now();
        if let Err(error) = self.judge(passed, used) {
            tracing::debug!(%error, "the scheduler takes no wishes");
        }
    }

    /// Changes the policy if needed. `used` is the thread's processor time since it began.
    fn judge(&mut self, passed: Duration, used: Duration) -> io::Result<()> {
        let much = used.saturating_sub(self.used) > passed.mul_f64(MUCH);
        self.used = used;
        if much != self.first {
            return Ok(());
        }
        self.first = !much;
        set(if much {
            libc::SCHED_OTHER
        } else {
            libc::SCHED_RR
        })
    }
}

/// Gives the calling thread turns that come soon. Returns true if it runs before others.
pub fn take(realtime: bool) -> bool {
    if policy() != libc::SCHED_OTHER {
        // The policy that the operator chose stays.
        return false;
    }
    if realtime {
        match set(libc::SCHED_RR) {
            Ok(()) => return true,
            Err(error) => tracing::debug!(%error, "no real-time turns"),
        }
    }
    if let Err(error) = ask_for_short_turns() {
        tracing::debug!(%error, "the scheduler takes no wishes");
    }
    false
}

/// Runs short work that a change waits for, on a thread that may block.
#[expect(clippy::disallowed_methods)]
pub fn spawn_short<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Runs long work on a separate thread, under the usual policy.
#[expect(clippy::disallowed_methods)]
pub fn spawn_long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(|| at_ease(work))
}

/// Runs long work under the usual policy.
fn at_ease<T>(work: impl FnOnce() -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = set(libc::SCHED_RR);
        }
    }
    let first = policy() & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR;
    let _back = (first && set(libc::SCHED_OTHER).is_ok()).then(|| Back);
    work()
}

/// Returns the calling thread's policy.
fn policy() -> i32 {
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) }
}

/// Sets the calling thread's policy. Threads that it starts do not inherit the policy.
fn set(policy: i32) -> io::Result<()> {
    let sched_priority = match policy {
        libc::SCHED_OTHER => 0,
        _ => PRIORITY,
    };
    let param = libc::sched_param { sched_priority };
    // SAFETY: the kernel reads the structure; 0 is the calling thread.
    let set = unsafe {
        libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param)
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the processor time of the calling thread.
fn used() -> Duration {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    nix::time::clock_gettime(clock).map_or(Duration::ZERO, Into::into)
}

/// Asks for short time slices. The share of the processor stays the same. Kernels before 6.12
/// ignore the request.
fn ask_for_short_turns() -> io::Result<()> {
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    let (own, none) = (0, 0);
    let number = libc::SYS_sched_getattr;
    // SAFETY: the kernel writes at most `size` bytes to the structure.
    let read = unsafe { libc::syscall(number, own, &raw mut attributes, size, none) };
    if read != 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.size = size;
    attributes.sched_runtime = SLICE_NS;
    let number = libc::SYS_sched_setattr;
    // SAFETY: the kernel reads the structure, whose size it holds.
    match unsafe { libc::syscall(number, own, &raw const attributes, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn long_work_has_everybodys_turns() {
        on_a_thread(|| {
            assert!(take(true), "the tests run as root");
            let first = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
            assert_eq!(policy(), first);
            assert_eq!(
                at_ease(policy) & !libc::SCHED_RESET_ON_FORK,
                libc::SCHED_OTHER
            );
            assert_eq!(policy(), first);
        });
        on_a_thread(|| {
            assert!(!take(false));
            assert_eq!(at_ease(policy), libc::SCHED_OTHER);
        });
    }

    #[test]
    fn a_thread_of_much_work_steps_back_and_returns() {
        on_a_thread(|| {
            let mut turns = Turns::take(true);
            let (ms, begin) = (Duration::from_millis, turns.used);
            for (used, expected) in [
                (100, libc::SCHED_RR),
                (900, libc::SCHED_OTHER),
                (1_700, libc::SCHED_OTHER),
                (1_800, libc::SCHED_RR),
            ] {
                turns.judge(ms(1_000), begin + ms(used)).unwrap();
                assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, expected, "{used}");
            }
        });
    }
}
