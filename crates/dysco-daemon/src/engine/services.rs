//! Services in sessions of this host's programs.

use dysco_explain::Cause;

use super::Plane;

/// Returns the reason for which a session with services cannot be changed otherwise.
pub(super) fn in_the_way() -> Cause {
    Cause::new("services are in the session, or have added bytes to it")
        .hint("take them out with 'dyscoctl service take'")
}

impl Plane {
    /// Ends the change of a session's routes, as far as it is complete.
    pub(super) fn rerouted(&self, slot: u32) {
        self.agent.settle_detour(slot);
    }
}
