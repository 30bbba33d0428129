//! Removal of a host from the chains of sessions, which requests for other chains carry out.

use dysco_api::{ChainOutcome, Outcome};
use dysco_common::Element;

use crate::engine::paced::Pace;

/// Part of a removal: a host leaves the chains of these sessions.
pub(in crate::engine) struct Leaving {
    /// Batch of the removal.
    pub removal: u64,
    /// Slots of the sessions, and the host's address in their chains.
    pub chained: Vec<(u32, Element)>,
    pub dry_run: bool,
    /// Requester, in the words of a session's history.
    pub by: String,
    /// Limit of the request, if it has one.
    pub pace: Option<Pace>,
}

/// Returns the same outcome, as a removal has it.
pub(in crate::engine) fn as_removal(outcome: ChainOutcome) -> Outcome {
    match outcome {
        ChainOutcome::Changed => Outcome::Removed,
        ChainOutcome::Refused => Outcome::Refused,
        ChainOutcome::RolledBack => Outcome::RolledBack,
    }
}
