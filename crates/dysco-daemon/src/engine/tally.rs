//! Counts of how changes ended on this host, by their end and its reason, whichever host requested
//! them. A change requested here is counted with its report, and therefore once for each session,
//! however many changes the request took.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use dysco_api::Outcome;
use dysco_proto::{ChangeId, Progress, Reason, Role, Subsession};
use lru::LruCache;

use crate::metrics::{ChangeKind, End, Ended};

/// Maximum number of changes whose other part here may still end.
const PARTS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Counts since `dyscod` started. A reason that was never given is not listed.
pub(super) struct Tally {
    counts: Ended,
    /// Changes of which one part has ended here: the host that asks may be an anchor as well.
    ended: LruCache<ChangeId, ()>,
    /// Sessions for which their opener is asked for another chain. This host's own part in the
    /// change ends before the answer arrives.
    asking: HashSet<Subsession>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            counts: Ended::default(),
            ended: LruCache::new(PARTS),
            asking: HashSet::new(),
        }
    }
}

impl Tally {
    /// Counts the end of a requested change of one session. The name of the reason is not known if
    /// another host has given it.
    pub(super) fn reported(&mut self, kind: ChangeKind, outcome: Outcome, why: Option<&Reason>) {
        // The end of a pending change is counted when it arrives.
        let Some(end) = End::of(outcome) else {
            return;
        };
        *self.counts.ends.entry((kind, end)).or_default() += 1;
        if let (Some(why), false) = (why, end == End::Done) {
            *self.counts.reasons.entry(why.into()).or_default() += 1;
        }
    }

    /// Records how long a requested and completed change took until its switch and until its end,
    /// in microseconds.
    pub(super) fn took(&self, kind: ChangeKind, to_switch: Option<u64>, to_end: Option<u64>) {
        let times = [
            (&self.counts.to_switch, to_switch),
            (&self.counts.to_end, to_end),
        ];
        for (durations, took) in times {
            if let Some(took) = took {
                durations.observe(kind, Duration::from_micros(took));
            }
        }
    }

    /// Counts the end of this host's part in a change.
    pub(crate) fn part_ended(
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
        // The part that asked has not ended yet.
        if asked_here && matches!(role, Role::Left | Role::Right) {
            return;
        }
        let chain = matches!(role, Role::Tail | Role::Lead);
        let reported = asked_here || chain && self.asking.contains(session);
        if self.ended.put(change, ()).is_none() && !reported {
            self.reported(ChangeKind::of(role), outcome, why);
        }
    }

    /// Records that the host that opened a session is asked for another chain.
    pub(super) fn asks(&mut self, session: Subsession) {
        self.asking.insert(session);
    }

    /// Records that the host has answered, or does not answer.
    pub(crate) fn asks_no_more(&mut self, session: &Subsession) {
        self.asking.remove(session);
    }

    /// Returns the counts, for metrics.
    pub(super) fn counts(&self) -> Ended {
        self.counts.clone()
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::Mode;

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

    const BYPASS: ChangeKind = ChangeKind::Removal(Some(Mode::Bypass));

    fn numbers(tally: &Tally) -> [u64; 3] {
        [End::Done, End::RolledBack, End::Refused].map(|end| tally.counts.count(end))
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
        tally.reported(BYPASS, Outcome::Refused, Some(&rewrites));
        assert_eq!(numbers(&tally), [1, 1, 2]);
        assert_eq!(tally.counts.ends[&(BYPASS, End::Refused)], 2);
        let reasons = [("not_transparent", 1), ("ports_exhausted", 2)];
        assert_eq!(tally.counts.reasons, reasons.into());
    }

    #[test]
    fn kinds_and_modes_are_distinguished() {
        let mut tally = Tally::default();
        for (n, role) in [(1, Role::Local), (2, Role::Dsr), (3, Role::Head)] {
            tally.part_ended(change(n), role, &session(), &Progress::Removed, false);
        }
        let kinds = [
            ChangeKind::Removal(Some(Mode::Return)),
            ChangeKind::Removal(Some(Mode::Local)),
            ChangeKind::Chain,
        ];
        let ends = kinds.map(|kind| ((kind, End::Done), 1));
        assert_eq!(tally.counts.ends, ends.into());
    }

    /// The mode `return` takes three changes.
    #[test]
    fn what_was_asked_for_here_is_counted_with_its_report_alone() {
        let mut tally = Tally::default();
        for (n, role) in [(1, Role::Proof), (2, Role::Local), (3, Role::Proof)] {
            tally.part_ended(change(n), role, &session(), &Progress::Removed, true);
        }
        assert_eq!(numbers(&tally), [0; 3]);
        tally.reported(BYPASS, Outcome::Removed, None);
        assert_eq!(numbers(&tally), [1, 0, 0]);
    }

    #[test]
    fn who_asks_and_is_an_anchor_counts_once_whichever_part_ends_first() {
        let mut tally = Tally::default();
        let removed = &Progress::Removed;
        tally.part_ended(change(1), Role::Left, &session(), removed, true);
        tally.part_ended(change(1), Role::Asker, &session(), removed, true);
        tally.reported(BYPASS, Outcome::Removed, None);
        tally.part_ended(change(2), Role::Asker, &session(), removed, true);
        tally.reported(BYPASS, Outcome::Removed, None);
        tally.part_ended(change(2), Role::Left, &session(), removed, false);
        assert_eq!(numbers(&tally), [2, 0, 0]);
    }

    #[test]
    fn what_was_reported_as_pending_is_counted_when_it_ends() {
        let mut tally = Tally::default();
        tally.reported(BYPASS, Outcome::Pending, None);
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
        tally.reported(BYPASS, Outcome::Removed, None);
        tally.part_ended(change(2), Role::Tail, &session(), &Progress::Removed, false);
        assert_eq!(numbers(&tally), [2, 0, 0]);
    }
}
