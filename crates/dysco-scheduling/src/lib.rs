//! Scheduling of the daemon's threads. A removal is a chain of short steps on several hosts. Each
//! waits until the daemon gets a processor, which on a busy host is most of the time that it takes.
//! The threads that take the steps therefore run before others (`SCHED_RR`, its lowest priority),
//! as long as they use little processor time and few sessions change at once. Where the kernel
//! refuses, they ask for short time slices that come soon. The daemon and the proxy's side use this
//! crate; it depends on none of the other crates.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time slice that a thread asks for, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// Interval at which a thread checks how much processor time it has used.
const LOOK: Duration = Duration::from_secs(1);
/// Share of the time above which a thread has so much to do that others must have their share.
const MUCH: f64 = 0.7;
/// Number of sessions that may change at once while a thread runs before others. With more, the
/// steps would take the processors from the sessions. This would delay the sessions by more than
/// slower steps do.
const FEW: usize = 3;
/// Time for which many sessions count as changing after their number last exceeded [`FEW`].
const CALM: Duration = Duration::from_millis(100);
/// Lowest priority of the real-time policies.
const PRIORITY: i32 = 1;
/// Nice value of heavy work: ten times the weight of other threads (`sched_prio_to_weight`,
/// kernel/sched/core.c).
const HEAVY: i32 = -10;

/// True while many sessions change at once.
static MANY: AtomicBool = AtomicBool::new(false);

/// Scheduling of the engine's thread.
pub struct Turns {
    wanted: bool,
    first: bool,
    /// True if the thread has used much of the processor time.
    much: bool,
    /// Time at which many sessions were last seen to change.
    many: Option<Instant>,
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
            much: false,
            many: None,
            looked: Instant::now(),
            used: used(),
        }
    }

    /// Gives up the real-time policy while there is much to do, or many sessions change, and takes
    /// it again afterwards. To be called in each step, with the number of changes in progress.
    pub fn look(&mut self, changes: usize) {
        if !self.wanted {
            return;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.looked);
        if passed >= LOOK {
            self.looked = now;
            self.measure(passed, used());
        }
        if let Err(error) = self.judge(now, changes) {
            tracing::debug!(%error, "the scheduler takes no wishes");
        }
    }

    /// Notes whether the thread has much to do. `used` is its processor time since it began.
    fn measure(&mut self, passed: Duration, used: Duration) {
        self.much = used.saturating_sub(self.used) > passed.mul_f64(MUCH);
        self.used = used;
    }

    /// Changes the policy if needed.
    fn judge(&mut self, now: Instant, changes: usize) -> io::Result<()> {
        if changes > FEW {
            self.many = Some(now);
        }
        let many = self.many.is_some_and(|at| now < at + CALM);
        MANY.store(many, Ordering::Relaxed);
        let first = !(self.much || many);
        if first == self.first {
            return Ok(());
        }
        self.first = first;
        match first {
            true => set(libc::SCHED_RR),
            false => set(libc::SCHED_OTHER).and_then(|()| ask_for_short_turns()),
        }
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

/// Runs short work that a change waits for, on a thread that may block: before others, unless many
/// sessions change at once.
#[expect(clippy::disallowed_methods)]
pub fn spawn_short<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(|| short(work, MANY.load(Ordering::Relaxed)))
}

fn short<T>(work: impl FnOnce() -> T, many: bool) -> T {
    match many {
        true => at_ease(|_| work()),
        false => work(),
    }
}

/// Runs long work on a separate thread, under the usual policy.
#[expect(clippy::disallowed_methods)]
pub fn spawn_long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(|| at_ease(|_| work()))
}

/// Runs work that a change waits for, and that may take a processor for a second, as [`heavy`] does,
/// on a thread that may block.
#[expect(clippy::disallowed_methods)]
pub fn spawn_heavy<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(|| heavy(work))
}

/// Runs work on this thread under the usual policy, with most of a processor's time. Before all
/// others, it would keep a processor from their packets until it ends; as one of many, it would take
/// ten times as long on a busy host.
pub fn heavy<T>(work: impl FnOnce() -> T) -> T {
    struct Back(i32);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = set_nice(self.0);
        }
    }
    at_ease(|eased| {
        // A thread without real-time turns keeps its nice value.
        let before = if eased { nice() } else { HEAVY };
        let _back = (before > HEAVY && set_nice(HEAVY).is_ok()).then(|| Back(before));
        work()
    })
}

/// Runs work under the usual policy. Tells it whether this thread had another one.
fn at_ease<T>(work: impl FnOnce(bool) -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = set(libc::SCHED_RR);
        }
    }
    let first = policy() & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR;
    let back = (first && set(libc::SCHED_OTHER).is_ok()).then(|| Back);
    work(back.is_some())
}

/// Returns the calling thread's nice value.
fn nice() -> i32 {
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the calling thread's nice value.
fn set_nice(value: i32) -> io::Result<()> {
    // SAFETY: as in `nice`.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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
                at_ease(|_| policy()) & !libc::SCHED_RESET_ON_FORK,
                libc::SCHED_OTHER
            );
            assert_eq!(policy(), first);
        });
        on_a_thread(|| {
            assert!(!take(false));
            assert_eq!(at_ease(|_| policy()), libc::SCHED_OTHER);
        });
    }

    #[test]
    fn heavy_work_leaves_others_their_share() {
        on_a_thread(|| {
            assert!(take(true), "the tests run as root");
            let (first, before) = (policy(), nice());
            let (policy_then, nice_then) = heavy(|| (policy(), nice()));
            assert_eq!(policy_then & !libc::SCHED_RESET_ON_FORK, libc::SCHED_OTHER);
            assert_eq!(nice_then, HEAVY);
            assert_eq!((policy(), nice()), (first, before));
        });
        on_a_thread(|| {
            assert!(!take(false));
            let before = nice();
            assert_eq!(heavy(|| (policy(), nice())), (libc::SCHED_OTHER, before));
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
                turns.measure(ms(1_000), begin + ms(used));
                turns.judge(Instant::now(), 1).unwrap();
                assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, expected, "{used}");
            }
        });
    }

    #[test]
    fn no_thread_runs_before_others_while_many_sessions_change() {
        on_a_thread(|| {
            let mut turns = Turns::take(true);
            let begin = Instant::now();
            for (after, changes, expected) in [
                (0, FEW, libc::SCHED_RR),
                (1, FEW + 1, libc::SCHED_OTHER),
                // Between two turns of a batch.
                (90, 0, libc::SCHED_OTHER),
                (95, FEW + 1, libc::SCHED_OTHER),
                (190, FEW, libc::SCHED_OTHER),
                (195, FEW, libc::SCHED_RR),
            ] {
                let now = begin + Duration::from_millis(after);
                turns.judge(now, changes).unwrap();
                assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, expected, "{after}");
            }
            for (many, expected) in [(false, libc::SCHED_RR), (true, libc::SCHED_OTHER)] {
                let short = short(policy, many) & !libc::SCHED_RESET_ON_FORK;
                assert_eq!(short, expected, "{many}");
            }
        });
    }
}
