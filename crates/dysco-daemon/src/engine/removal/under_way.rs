//! Removals that have been accepted and have not ended, with an index by session: among tens of
//! thousands one is found at once.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dysco_proto::{ChangeId, Subsession};

use super::Running;
use super::mode::Undecided;
use super::task::Task;
use crate::engine::paced::{Pace, Paced};

/// Removals from their acceptance on. Each change of the queues also changes `known`.
#[derive(Default)]
pub(super) struct UnderWay {
    /// Removals whose neighbours have still to answer, in the order in which these were asked.
    undecided: VecDeque<Undecided>,
    waiting: VecDeque<Task>,
    /// Removals that wait, of requests with a rate.
    paced: Paced<u64, Task>,
    running: HashMap<ChangeId, Running>,
    /// Number of removals of each session: several requests may concern the same session.
    known: HashMap<Subsession, usize>,
}

impl UnderWay {
    pub(super) fn knows(&self, subsession: &Subsession) -> bool {
        self.known.contains_key(subsession)
    }

    pub(crate) fn decide_later(&mut self, undecided: Undecided) {
        self.comes(undecided.task().subsession);
        self.undecided.push_back(undecided);
    }

    pub(crate) fn undecided(&self) -> usize {
        self.undecided.len()
    }

    pub(crate) fn next_undecided(&mut self) -> Option<Undecided> {
        let undecided = self.undecided.pop_front()?;
        self.goes(undecided.task().subsession);
        Some(undecided)
    }

    /// Returns the time at which a decision is due even if the neighbours have not answered: all
    /// have the same time.
    pub(crate) fn next_decision(&self) -> Option<Instant> {
        self.undecided.front().map(Undecided::until)
    }

    /// Limits the rate at which a batch's removals begin.
    pub(crate) fn limit(&mut self, batch: u64, pace: Pace) {
        self.paced.limit(batch, pace);
    }

    /// Forgets the limit of a batch that has ended.
    pub(crate) fn end_limit(&mut self, batch: u64) {
        self.paced.forget(batch);
    }

    pub(super) fn wait(&mut self, task: Task) {
        self.comes(task.subsession);
        if let Err(task) = self.paced.push(task.batch, task) {
            self.waiting.push_back(task);
        }
    }

    pub(crate) fn wait_first(&mut self, task: Task) {
        self.comes(task.subsession);
        self.waiting.push_front(task);
    }

    /// Returns the removal that is next, and the time before which its rate does not let it begin.
    /// One whose rate lets it begin is before those of requests without a rate.
    pub(crate) fn first_waiting(&self, now: Instant) -> Option<(&Task, Option<Instant>)> {
        match (self.paced.first(), self.waiting.front()) {
            (Some((task, at)), _) if at.is_none_or(|at| at <= now) => Some((task, None)),
            (_, Some(task)) => Some((task, None)),
            (paced, None) => paced,
        }
    }

    /// Removes and returns the removal that is next: it begins now.
    pub(crate) fn next_waiting(&mut self, now: Instant) -> Option<Task> {
        let paced = self.paced.pop(now);
        let task = paced.or_else(|| self.waiting.pop_front())?;
        self.goes(task.subsession);
        Some(task)
    }

    /// Removes and returns the waiting removals that match.
    pub(crate) fn take_waiting(&mut self, like: impl Fn(&Task) -> bool) -> Vec<Task> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (mut taken, kept): (VecDeque<_>, VecDeque<_>) = all.partition(&like);
        self.waiting = kept;
        taken.extend(self.paced.take(like));
        for task in &taken {
            self.goes(task.subsession);
        }
        taken.into()
    }

    pub(super) fn begin(&mut self, change: ChangeId, running: Running) {
        self.comes(running.task.subsession);
        if let Some(former) = self.running.insert(change, running) {
            self.goes(former.task.subsession);
        }
    }

    pub(super) fn end(&mut self, change: ChangeId) -> Option<Running> {
        let running = self.running.remove(&change)?;
        self.goes(running.task.subsession);
        Some(running)
    }

    pub(super) fn running(&self) -> &HashMap<ChangeId, Running> {
        &self.running
    }

    /// Returns the sessions with removals.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &Subsession> {
        self.known.keys()
    }

    pub(super) fn get_mut(&mut self, change: ChangeId) -> Option<&mut Running> {
        self.running.get_mut(&change)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&ChangeId, &mut Running)> {
        self.running.iter_mut()
    }

    fn comes(&mut self, subsession: Subsession) {
        *self.known.entry(subsession).or_default() += 1;
    }

    fn goes(&mut self, subsession: Subsession) {
        let Some(count) = self.known.get_mut(&subsession) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.known.remove(&subsession);
        }
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::{ChangeRate, Mode, SessionId, Way};
    use dysco_common::Session;

    use super::*;
    use crate::engine::removal::task::{Accepted, Said, Stage};

    fn task(port: u16) -> Task {
        let (left, right) = (([10, 0, 0, 2], port).into(), ([10, 0, 0, 1], 80).into());
        Task {
            batch: 0,
            session: SessionId(u64::from(port)),
            local: right,
            remote: left,
            subsession: Subsession { left, right },
            ask: None,
            timeout: std::time::Duration::from_secs(10),
            mode: Mode::Auto,
            by_name: false,
            way: None,
            why: None,
            neighbours: None,
            dry: false,
            objections: Vec::new(),
            said: Said::automatic(),
            relayed: false,
            from: Way::Middlebox,
            stage: Stage::Prove,
            since: None,
            switched: None,
            accepted: Accepted::new(&Session::default()),
            requested: Instant::now(),
            begun: None,
        }
    }

    fn running(task: Task) -> Running {
        Running {
            task,
            begun: Instant::now(),
            silent: false,
            switched: None,
            cancelled: None,
            reason: None,
        }
    }

    #[test]
    fn a_session_is_known_from_the_first_step_to_the_end() {
        let mut all = UnderWay::default();
        let (one, other) = (task(1).subsession, task(2).subsession);
        all.decide_later(Undecided::since(Instant::now(), task(1)));
        assert!(all.knows(&one) && !all.knows(&other));
        let decided = all.next_undecided().unwrap();
        assert!(!all.knows(&one));
        all.wait(decided.task().clone());
        all.wait_first(task(2));
        assert!(all.knows(&one) && all.knows(&other));
        let first = all.next_waiting(Instant::now()).unwrap();
        assert!(first.subsession == other && !all.knows(&other));
        all.begin(ChangeId([1; 16]), running(first));
        assert!(all.knows(&other));
        assert!(all.end(ChangeId([1; 16])).is_some() && !all.knows(&other));
        assert!(all.end(ChangeId([1; 16])).is_none());
        assert!(all.next_waiting(Instant::now()).is_some());
        assert!(all.known.is_empty());
    }

    #[test]
    fn what_waits_is_taken_out_in_its_order() {
        let mut all = UnderWay::default();
        (1..=4).for_each(|port| all.wait(task(port)));
        let odd = |t: &Task| t.session.0 % 2 == 1;
        let taken: Vec<_> = all.take_waiting(odd).iter().map(|t| t.session.0).collect();
        assert_eq!(taken, [1, 3]);
        assert!(!all.knows(&task(1).subsession) && all.knows(&task(2).subsession));
        let left = std::iter::from_fn(|| all.next_waiting(Instant::now()));
        assert_eq!(left.map(|t| t.session.0).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn one_that_two_requests_want_is_known_until_both_have_ended() {
        let mut all = UnderWay::default();
        let one = task(1).subsession;
        all.begin(ChangeId([1; 16]), running(task(1)));
        all.wait(task(1));
        assert!(all.end(ChangeId([1; 16])).is_some() && all.knows(&one));
        assert!(all.next_waiting(Instant::now()).is_some() && !all.knows(&one));
    }

    #[test]
    fn a_rate_holds_up_its_own_batch_and_no_other() {
        let mut all = UnderWay::default();
        let slow = |port| Task {
            batch: 7,
            ..task(port)
        };
        all.limit(7, Pace::new(ChangeRate::try_from(1).unwrap()));
        for task in [slow(1), slow(2), task(3), task(4)] {
            all.wait(task);
        }
        let now = Instant::now();
        let mut next = |at| all.next_waiting(at).map(|t| t.session.0);
        let later = now + std::time::Duration::from_secs(1);
        assert_eq!([now, now].map(&mut next), [Some(1), Some(3)]);
        assert_eq!([later, later, later].map(next), [Some(2), Some(4), None]);
        all.wait(slow(5));
        let (first, at) = all.first_waiting(later).unwrap();
        assert!(first.session.0 == 5 && at > Some(later));
        // The hosts beside the proxy have changed: what waits for its turn is judged anew.
        assert_eq!(all.take_waiting(|_| true).len(), 1);
        assert!(all.known.is_empty());
    }
}
