//! How changes ended on this host, counted by their end and its reason, whoever asked for
//! them.

use std::collections::BTreeMap;

use crate::protocol::{Progress, Reason};

/// Since `dyscod` started. A reason that was never given is not listed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    done: u64,
    rolled_back: u64,
    refused: u64,
    reasons: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// A change that this host has a part in has come so far.
    pub fn ended(&mut self, progress: &Progress) {
        match progress {
            Progress::Removed => self.done += 1,
            Progress::Refused(why) => self.refused(why),
            Progress::RolledBack(why) => {
                self.rolled_back += 1;
                self.because(why);
            }
            _ => {}
        }
    }

    /// One was not begun.
    pub fn refused(&mut self, why: &Reason) {
        self.refused += 1;
        self.because(why);
    }

    fn because(&mut self, why: &Reason) {
        *self.reasons.entry(why.into()).or_default() += 1;
    }

    /// For `status`.
    pub fn list(&self, all: &mut BTreeMap<String, u64>) {
        all.insert("changes_done".into(), self.done);
        all.insert("changes_rolled_back".into(), self.rolled_back);
        all.insert("changes_refused".into(), self.refused);
        let named = |(why, n): (&&str, &u64)| (format!("changes_not_done_{why}"), *n);
        all.extend(self.reasons.iter().map(named));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_and_each_reason_by_its_name() {
        let mut tally = Tally::default();
        tally.ended(&Progress::Removed);
        tally.ended(&Progress::Switched);
        tally.ended(&Progress::Refused(Reason::PortsExhausted));
        tally.ended(&Progress::RolledBack(Reason::PortsExhausted));
        tally.refused(&Reason::NotTransparent("it rewrites".into()));
        let mut all = BTreeMap::new();
        tally.list(&mut all);
        let found = all.iter().map(|(name, n)| (name.as_str(), *n));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                ("changes_done", 1),
                ("changes_not_done_not_transparent", 1),
                ("changes_not_done_ports_exhausted", 2),
                ("changes_refused", 2),
                ("changes_rolled_back", 1),
            ]
        );
    }
}
