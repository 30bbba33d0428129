//! Reports of this host's middleboxes about sessions, and the paths on which these bytes are
//! compensated once the middleboxes have left.

use dysco_common::Delta;
use dysco_common::delta::DeclaredDelta;

use crate::Agent;
use crate::chain::maps::DeclaredPod;
use crate::error::AgentError;
use crate::maps::{lock, map_error};

impl Agent {
    /// Records a middlebox's report about the session that came by this slot. The record
    /// outlives the process, and is removed with the session.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn set_delta(&self, slot: u32, declared: &DeclaredDelta) -> Result<(), AgentError> {
        lock(&self.chains)
            .deltas
            .insert(slot, DeclaredPod(*declared), 0)
            .map_err(map_error("write", "DELTAS"))
    }

    /// Returns the report about the session of a slot.
    pub fn delta_of(&self, slot: u32) -> Option<DeclaredDelta> {
        let declared = lock(&self.chains).deltas.get(&slot, 0).ok()?.0;
        (declared.created_ns == self.session(slot).created_ns).then_some(declared)
    }

    pub(crate) fn forget_delta(&self, slot: u32) {
        // Most sessions have none.
        let _ = lock(&self.chains).deltas.remove(&slot);
    }

    /// Sets the translation of a path of [`Agent::add_path`] that has no five-tuple yet: between
    /// this end's numbers and those behind the middleboxes of the path before.
    pub fn lead_beyond(&self, second: u32, delta: &Delta) {
        let s = self.session(second);
        if let (true, Some(first)) = (s.path.is_none(), s.other_path()) {
            let translation = self.session(first).carried().beyond(delta);
            self.memory().write(second, |s| s.translation = translation);
        }
    }
}
