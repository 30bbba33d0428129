//! Measurements that do not return in time. Each waits inside the kernel for a splice of its
//! proxy, and occupies a thread until the splice ends. Their number is limited, and nothing else
//! waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::error::MeasureError;
use super::lock;
use super::pair::PairId;

/// Maximum number of stalled measurements, over all processes.
const MOST: usize = 64;

/// Number of stalled measurements by process.
#[derive(Default)]
pub(crate) struct Stalled(Mutex<HashMap<i32, usize>>);

impl Stalled {
    /// Returns an error if no further measurement may begin. A process with a stalled measurement
    /// is not measured.
    pub(crate) fn admit(&self, pair: PairId) -> Result<(), MeasureError> {
        let all = lock(&self.0);
        if all.contains_key(&pair.pid) {
            return Err(MeasureError::Stalled(pair));
        }
        match all.values().sum() {
            stalled if stalled >= MOST => Err(MeasureError::ManyStalled { pair, stalled }),
            _ => Ok(()),
        }
    }

    /// Returns the result of the work if it ends in time. Otherwise the work counts as stalled
    /// until it ends.
    pub(crate) async fn within<T: Send + 'static>(
        self: &Arc<Self>,
        pid: i32,
        patience: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut work = Box::pin(work);
        if let Ok(done) = tokio::time::timeout(patience, &mut work).await {
            return Some(done);
        }
        let stuck = Stuck::count(self, pid);
        tokio::spawn(async move {
            work.await;
            drop(stuck);
        });
        None
    }
}

/// A stalled measurement, which is counted until it is dropped.
struct Stuck(Arc<Stalled>, i32);

impl Stuck {
    fn count(all: &Arc<Stalled>, pid: i32) -> Stuck {
        *lock(&all.0).entry(pid).or_default() += 1;
        Stuck(Arc::clone(all), pid)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let mut all = lock(&self.0.0);
        if let Some(n) = all.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                all.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    fn pair(pid: i32) -> PairId {
        let (fd_a, fd_b) = (3, 4);
        PairId { pid, fd_a, fd_b }
    }

    /// Starts a measurement that is stalled until the sender is dropped.
    async fn stick(all: &Arc<Stalled>, pid: i32) -> Sender<()> {
        let (keep, kept) = channel::<()>();
        let work = super::super::blocking(move || {
            let _ = kept.recv();
        });
        assert_eq!(all.within(pid, Duration::ZERO, work).await, None);
        keep
    }

    #[tokio::test]
    async fn a_stuck_measurement_stops_those_of_its_process_only() {
        let all = Arc::new(Stalled::default());
        let keep = stick(&all, 1).await;
        assert!(matches!(all.admit(pair(1)), Err(MeasureError::Stalled(p)) if p == pair(1)));
        assert!(all.admit(pair(2)).is_ok());
        let other = super::super::blocking(|| 7);
        assert_eq!(all.within(2, Duration::MAX, other).await, Some(7));
        drop(keep);
        while all.admit(pair(1)).is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_so_many_are_stuck() {
        let all = Arc::new(Stalled::default());
        let mut kept = Vec::new();
        for pid in 0..MOST as i32 {
            assert!(all.admit(pair(pid)).is_ok());
            kept.push(stick(&all, pid).await);
        }
        let refused = all.admit(pair(-1)).unwrap_err();
        assert!(refused.to_string().contains("64 measurements"), "{refused}");
    }
}
