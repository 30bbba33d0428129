//! Sessions of requests that limit the rate at which changes begin.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dysco_api::ChangeRate;

/// Times at which changes begin: at most as many in any second as the rate permits. A turn ends
/// with its last beginning, and the next one keeps its distance from that.
struct Pacer {
    rate: ChangeRate,
    last: Option<Instant>,
    /// Number of changes that have begun in this turn.
    begun: u32,
}

impl Pacer {
    fn new(rate: ChangeRate) -> Pacer {
        Pacer {
            rate,
            last: None,
            begun: 0,
        }
    }

    /// Returns the earliest time at which the next change may begin; `None` if it may at any time.
    fn next(&self) -> Option<Instant> {
        let full = self.begun >= self.rate.in_one_turn();
        let last = self.last.filter(|_| full)?;
        Some(last + self.rate.between_turns())
    }

    /// Records that a change begins. The time is not before [`Pacer::next`].
    fn begin(&mut self, now: Instant) {
        let over = |last| now >= last + self.rate.between_turns();
        self.begun = match self.last.is_none_or(over) {
            true => 1,
            false => self.begun + 1,
        };
        self.last = Some(now);
    }
}

/// Limit of one request, which all queues with sessions of the request share.
#[derive(Clone)]
pub(super) struct Pace(Arc<Mutex<Pacer>>);

impl Pace {
    /// Creates the limit of a request of which nothing has begun.
    pub(super) fn new(rate: ChangeRate) -> Pace {
        Pace(Arc::new(Mutex::new(Pacer::new(rate))))
    }

    fn next(&self) -> Option<Instant> {
        self.with(|pacer| pacer.next())
    }

    fn with<R>(&self, f: impl FnOnce(&mut Pacer) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sessions that wait, by their batch. A batch without a limit is not among them.
pub(super) struct Paced<B, T>(BTreeMap<B, (Pace, VecDeque<T>)>);

impl<B, T> Default for Paced<B, T> {
    fn default() -> Self {
        Paced(BTreeMap::new())
    }
}

impl<B: Ord, T> Paced<B, T> {
    /// Limits the rate of a batch from now on.
    pub(super) fn limit(&mut self, batch: B, pace: Pace) {
        self.0.insert(batch, (pace, VecDeque::new()));
    }

    /// Forgets a batch that has ended.
    pub(super) fn forget(&mut self, batch: B) {
        self.0.remove(&batch);
    }

    /// Queues a session of a batch. Returns it if the batch has no limit.
    pub(super) fn push(&mut self, batch: B, session: T) -> Result<(), T> {
        match self.0.get_mut(&batch) {
            Some((_, waiting)) => {
                waiting.push_back(session);
                Ok(())
            }
            None => Err(session),
        }
    }

    /// Returns the session whose turn is first, and the time of its turn; `None` for at once.
    pub(super) fn first(&self) -> Option<(&T, Option<Instant>)> {
        let waiting = self.0.values();
        let waiting = waiting.filter_map(|(pace, queue)| Some((queue.front()?, pace.next())));
        waiting.min_by_key(|(_, at)| *at)
    }

    /// Removes and returns the session whose turn is first, if that has come: it begins now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        let waiting = self.0.values_mut().filter(|(_, queue)| !queue.is_empty());
        let (pace, queue) = waiting.min_by_key(|(pace, _)| pace.next())?;
        if pace.next().is_some_and(|at| at > now) {
            return None;
        }
        pace.with(|pacer| pacer.begin(now));
        queue.pop_front()
    }

    /// Forgets the batches of which no session waits.
    pub(super) fn forget_empty(&mut self) {
        self.0.retain(|_, (_, queue)| !queue.is_empty());
    }

    /// Removes and returns the sessions that match.
    pub(super) fn take(&mut self, like: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for (_, queue) in self.0.values_mut() {
            let all = std::mem::take(queue).into_iter();
            let (matches, others): (VecDeque<_>, VecDeque<_>) = all.partition(&like);
            taken.extend(matches);
            *queue = others;
        }
        taken
    }

    /// Returns the number of sessions that wait.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|(_, queue)| queue.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rate(n: u32) -> ChangeRate {
        ChangeRate::try_from(n).unwrap()
    }

    /// Returns the times at which all sessions begin if the engine looks at these times.
    fn begun(
        rate: ChangeRate,
        sessions: usize,
        looks: impl Iterator<Item = Instant>,
    ) -> Vec<Instant> {
        let mut paced = Paced::default();
        paced.limit(1, Pace::new(rate));
        (0..sessions).for_each(|n| paced.push(1, n).unwrap());
        let mut begun = Vec::new();
        for now in looks {
            while paced.pop(now).is_some() {
                begun.push(now);
            }
            if begun.len() == sessions {
                break;
            }
        }
        begun
    }

    /// Returns the largest number of beginnings in any second.
    fn most_in_a_second(begun: &[Instant]) -> usize {
        let within = |at: usize| {
            let end = begun[at] + SECOND;
            begun[at..].iter().take_while(move |t| **t < end)
        };
        (0..begun.len()).map(|at| within(at).count()).max().unwrap()
    }

    #[test]
    fn no_second_has_more_than_the_rate_whenever_the_engine_looks() {
        let start = Instant::now();
        for n in [1, 7, 50, 199, 200, 201, 399, 1_000, 5_000] {
            for step in [1, 4_999, 5_000, 1_003_000, 2_700_000_u64] {
                let step = step.max(1_000_000 / u64::from(n) / 50).max(1);
                let sessions = 3 * n as usize;
                let looks = (0..).map(|i| start + Duration::from_micros(i * step));
                let begun = begun(rate(n), sessions, looks);
                assert_eq!(begun.len(), sessions);
                let most = most_in_a_second(&begun);
                assert!(most <= n as usize, "{n} at {step} us: {most}");
            }
        }
    }

    #[test]
    fn an_engine_that_was_held_up_does_not_make_up_for_it() {
        let start = Instant::now();
        let late = [0, 10_000, 10_000, 10_001, 10_019, 10_020];
        let looks = late.map(|ms| start + Duration::from_millis(ms));
        let begun = begun(rate(50), 10, looks.into_iter());
        let offsets: Vec<_> = begun.iter().map(|t| (*t - start).as_millis()).collect();
        assert_eq!(offsets, [0, 10_000, 10_020]);
    }

    #[test]
    fn a_look_at_each_turn_takes_the_least_time() {
        let start = Instant::now();
        for n in [1, 50, 1_000] {
            let turn = rate(n).between_turns();
            let looks = (0..).map(|i| start + turn * i);
            let begun = begun(rate(n), 101, looks);
            assert_eq!(*begun.last().unwrap() - begun[0], rate(n).least(101));
        }
    }

    #[test]
    fn batches_have_their_own_rates_and_unlimited_ones_are_not_held() {
        let mut paced = Paced::default();
        paced.limit(1, Pace::new(rate(1)));
        paced.limit(2, Pace::new(rate(10)));
        assert_eq!(paced.push(3, "c"), Err("c"));
        for (batch, name) in [(1, "a"), (1, "b"), (2, "x"), (2, "y")] {
            paced.push(batch, name).unwrap();
        }
        assert_eq!(paced.len(), 4);
        let start = Instant::now();
        assert_eq!([paced.pop(start), paced.pop(start)], [Some("a"), Some("x")]);
        assert_eq!(paced.pop(start), None);
        let (next, at) = paced.first().unwrap();
        assert_eq!((*next, at), ("y", Some(start + SECOND / 10)));
        assert_eq!(paced.pop(start + SECOND / 10), Some("y"));
        assert_eq!(paced.first().unwrap().1, Some(start + SECOND));
        assert_eq!(paced.take(|name| *name == "b"), ["b"]);
        assert!(paced.first().is_none());
        paced.forget(1);
        assert_eq!(paced.push(1, "d"), Err("d"));
    }

    #[test]
    fn two_queues_of_a_request_share_its_rate() {
        let pace = Pace::new(rate(1));
        let [mut one, mut other] = [(); 2].map(|()| Paced::default());
        for queue in [&mut one, &mut other] {
            queue.limit(1, pace.clone());
            queue.push(1, "a").unwrap();
        }
        let start = Instant::now();
        assert_eq!([one.pop(start), other.pop(start)], [Some("a"), None]);
        assert_eq!(other.first().unwrap().1, Some(start + SECOND));
        assert_eq!(other.pop(start + SECOND), Some("a"));
        other.forget_empty();
        assert_eq!(other.push(1, "b"), Err("b"));
    }
}
