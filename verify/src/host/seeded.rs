//! Bugs put in on purpose in a host that is both anchors.

use dysco_proto::{ChangeId, Machine, Phase};

use super::Host;
use crate::plane::Entry;
use crate::seed::Seed;
use crate::seed::local::takes_back;

impl Host {
    /// True if the record of this change is written after the step that it describes.
    pub(super) fn puts_off(&self, change: ChangeId) -> bool {
        let mut changes = self.machine.iter().flat_map(Machine::changes);
        self.seed == Some(Seed::RecordAfterCut)
            && changes.any(|c| c.change == change && c.phase == Phase::Cutting)
    }

    /// Removes what the next process does not find after a daemon has died.
    pub(super) fn forget_as_seeded(&mut self) {
        let cut = |e: &Entry| e.s.two.cut_set != 0;
        if takes_back(self.seed) && self.entries.iter().flatten().any(cut) {
            self.records.clear();
        }
    }
}
