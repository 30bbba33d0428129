//! Removals that have been accepted and have not ended, with an index by session: among tens of
//! thousands one is found at once.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dysco_proto::{ChangeId, Subsession};

use super::mode::Undecided;
use super::{Running, Task};

/// Removals from their acceptance on. Each change of the queues also changes `known`.
#[derive(Default)]
pub(super) struct UnderWay {
    /// Removals whose neighbours have still to answer, in the order in which these were asked.
    undecided: VecDeque<Undecided>,
    waiting: VecDeque<Task>,
    running: HashMap<ChangeId, Running>,
    /// Number of removals of each session: several requests may concern the same session.
    known: HashMap<Subsession, usize>,
}

impl UnderWay {
    pub fn knows(&self, subsession: &Subsession) -> bool {
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

    pub fn wait(&mut self, task: Task) {
        self.comes(task.subsession);
        self.waiting.push_back(task);
    }

    pub(crate) fn wait_first(&mut self, task: Task) {
        self.comes(task.subsession);
        self.waiting.push_front(task);
    }

    pub(crate) fn first_waiting(&self) -> Option<&Task> {
        self.waiting.front()
    }

    pub(crate) fn next_waiting(&mut self) -> Option<Task> {
        let task = self.waiting.pop_front()?;
        self.goes(task.subsession);
        Some(task)
    }

    /// Removes and returns the waiting removals that match.
    pub(crate) fn take_waiting(&mut self, like: impl Fn(&Task) -> bool) -> Vec<Task> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (taken, kept): (VecDeque<_>, VecDeque<_>) = all.partition(like);
        self.waiting = kept;
        for task in &taken {
            self.goes(task.subsession);
        }
        taken.into()
    }

    pub fn begin(&mut self, change: ChangeId, running: Running) {
        self.comes(running.task.subsession);
        if let Some(former) = self.running.insert(change, running) {
            self.goes(former.task.subsession);
        }
    }

    pub fn end(&mut self, change: ChangeId) -> Option<Running> {
        let running = self.running.remove(&change)?;
        self.goes(running.task.subsession);
        Some(running)
    }

    pub fn running(&self) -> &HashMap<ChangeId, Running> {
        &self.running
    }

    pub fn get_mut(&mut self, change: ChangeId) -> Option<&mut Running> {
        self.running.get_mut(&change)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&ChangeId, &mut Running)> {
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
    use dysco_api::{Mode, SessionId, Way};
    use dysco_common::Session;

    use super::*;
    use crate::engine::removal::task::Accepted;
    use crate::engine::removal::{Said, Stage};

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
        let first = all.next_waiting().unwrap();
        assert!(first.subsession == other && !all.knows(&other));
        all.begin(ChangeId([1; 16]), running(first));
        assert!(all.knows(&other));
        assert!(all.end(ChangeId([1; 16])).is_some() && !all.knows(&other));
        assert!(all.end(ChangeId([1; 16])).is_none());
        assert!(all.next_waiting().is_some());
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
        let left = std::iter::from_fn(|| all.next_waiting());
        assert_eq!(left.map(|t| t.session.0).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn one_that_two_requests_want_is_known_until_both_have_ended() {
        let mut all = UnderWay::default();
        let one = task(1).subsession;
        all.begin(ChangeId([1; 16]), running(task(1)));
        all.wait(task(1));
        assert!(all.end(ChangeId([1; 16])).is_some() && all.knows(&one));
        assert!(all.next_waiting().is_some() && !all.knows(&one));
    }
}
