//! How changes ended on this host, counted by their end and its reason, whoever asked for
//! them. What was asked for here is counted with its report, and so once for each session,
//! however many changes that took.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;

use dysco_api::Outcome;
use dysco_proto::{ChangeId, Progress, Reason, Role, Subsession};
use lru::LruCache;

/// The most changes whose other part here may still end.
const PARTS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Since `dyscod` started. A reason that was never given is not listed.
pub(super) struct Tally {
    done: u64,
    rolled_back: u64,
    /// The session ended with it.
    lost: u64,
    refused: u64,
    reasons: BTreeMap<&'static str, u64>,
    /// What has ended here by one part: who asks may be an anchor as well.
    ended: LruCache<ChangeId, ()>,
    /// Sessions for which their opener is asked for another chain. This host's own part
    /// in that ends before the answer comes.
    asking: HashSet<Subsession>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            done: 0,
            rolled_back: 0,
            lost: 0,
            refused: 0,
            reasons: BTreeMap::new(),
            ended: LruCache::new(PARTS),
            asking: HashSet::new(),
        }
    }
}

impl Tally {
    /// What was asked for here has ended so, for one session. The reason is not known by
    /// its name where another host has given it.
    pub fn told(&mut self, outcome: Outcome, why: Option<&Reason>) {
        match outcome {
            Outcome::Removed => return self.done += 1,
            // Its end is counted when it comes.
            Outcome::Pending | Outcome::Unconfirmed => return,
            Outcome::RolledBack => self.rolled_back += 1,
            Outcome::Lost => self.lost += 1,
            Outcome::Refused => self.refused += 1,
        }
        if let Some(why) = why {
            *self.reasons.entry(why.into()).or_default() += 1;
        }
    }

    /// This host's part in a change has ended.
    pub fn part_ended(
        &mut self,
        change: ChangeId,
        role: Role,
        session: &Subsession,
        progress: &Progress,
        asked_here: bool,
    ) {
        let (outcome, why) = match progress {
            Progress::Removed => (Outcome::Removed, None),
            Progress::RolledBack(why) => (Outcome::RolledBack, Some(why)),
            Progress::Lost(why) => (Outcome::Lost, Some(why)),
            Progress::Refused(why) => (Outcome::Refused, Some(why)),
            Progress::Requested
            | Progress::Locked
            | Progress::SetUp
            | Progress::Switched
            | Progress::Drained => return,
        };
        // The part that asked is still to end.
        if asked_here && matches!(role, Role::Left | Role::Right) {
            return;
        }
        let chain = matches!(role, Role::Tail | Role::Lead);
        let told = asked_here || chain && self.asking.contains(session);
        if self.ended.put(change, ()).is_none() && !told {
            self.told(outcome, why);
        }
    }

    /// The host that opened a session is asked for another chain.
    pub fn asks(&mut self, session: Subsession) {
        self.asking.insert(session);
    }

    /// It has answered, or does not.
    pub fn asks_no_more(&mut self, session: &Subsession) {
        self.asking.remove(session);
    }

    /// For `status`.
    pub fn list(&self, all: &mut BTreeMap<String, u64>) {
        all.insert("changes_done".into(), self.done);
        all.insert("changes_rolled_back".into(), self.rolled_back);
        all.insert("changes_refused".into(), self.refused);
        if self.lost > 0 {
            all.insert("changes_lost".into(), self.lost);
        }
        let named = |(why, n): (&&str, &u64)| (format!("changes_not_done_{why}"), *n);
        all.extend(self.reasons.iter().map(named));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Subsession {
        Subsession {
            left: ([10, 0, 0, 2], 40000).into(),
            right: ([10, 0, 0, 1], 80).into(),
        }
    }

    fn change(n: u8) -> ChangeId {
        ChangeId([n; 16])
    }

    fn listed(tally: &Tally) -> Vec<(String, u64)> {
        let mut all = BTreeMap::new();
        tally.list(&mut all);
        all.into_iter().collect()
    }

    fn numbers(tally: &Tally) -> [u64; 3] {
        [tally.done, tally.rolled_back, tally.refused]
    }

    #[test]
    fn each_end_is_counted_and_each_reason_by_its_name() {
        let mut tally = Tally::default();
        let ends = [
            Progress::Removed,
            Progress::Switched,
            Progress::Refused(Reason::PortsExhausted),
            Progress::RolledBack(Reason::PortsExhausted),
        ];
        for (n, end) in (1..).zip(&ends) {
            tally.part_ended(change(n), Role::Left, &session(), end, false);
        }
        let rewrites = Reason::NotTransparent("it rewrites".into());
        tally.told(Outcome::Refused, Some(&rewrites));
        let expected = [
            ("changes_done", 1),
            ("changes_not_done_not_transparent", 1),
            ("changes_not_done_ports_exhausted", 2),
            ("changes_refused", 2),
            ("changes_rolled_back", 1),
        ];
        assert_eq!(
            listed(&tally),
            expected.map(|(name, n)| (name.to_owned(), n))
        );
    }

    /// By `return` it takes three changes.
    #[test]
    fn what_was_asked_for_here_is_counted_with_its_report_alone() {
        let mut tally = Tally::default();
        for (n, role) in [(1, Role::Proof), (2, Role::Local), (3, Role::Proof)] {
            tally.part_ended(change(n), role, &session(), &Progress::Removed, true);
        }
        assert_eq!(numbers(&tally), [0; 3]);
        tally.told(Outcome::Removed, None);
        assert_eq!(numbers(&tally), [1, 0, 0]);
    }

    #[test]
    fn who_asks_and_is_an_anchor_counts_once_whichever_part_ends_first() {
        let mut tally = Tally::default();
        let removed = &Progress::Removed;
        tally.part_ended(change(1), Role::Left, &session(), removed, true);
        tally.part_ended(change(1), Role::Asker, &session(), removed, true);
        tally.told(Outcome::Removed, None);
        tally.part_ended(change(2), Role::Asker, &session(), removed, true);
        tally.told(Outcome::Removed, None);
        tally.part_ended(change(2), Role::Left, &session(), removed, false);
        assert_eq!(numbers(&tally), [2, 0, 0]);
    }

    #[test]
    fn what_was_told_as_pending_is_counted_when_it_ends() {
        let mut tally = Tally::default();
        tally.told(Outcome::Pending, None);
        assert_eq!(numbers(&tally), [0; 3]);
        tally.part_ended(
            change(1),
            Role::Middle,
            &session(),
            &Progress::Removed,
            false,
        );
        assert_eq!(numbers(&tally), [1, 0, 0]);
    }

    #[test]
    fn a_part_in_a_chain_that_was_asked_for_here_is_counted_with_the_answer() {
        let mut tally = Tally::default();
        tally.asks(session());
        tally.part_ended(change(1), Role::Tail, &session(), &Progress::Removed, false);
        assert_eq!(numbers(&tally), [0; 3]);
        tally.asks_no_more(&session());
        tally.told(Outcome::Removed, None);
        tally.part_ended(change(2), Role::Tail, &session(), &Progress::Removed, false);
        assert_eq!(numbers(&tally), [2, 0, 0]);
    }
}
