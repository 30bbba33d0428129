//! The treatment of an arriving packet.

use dysco_common::Counter;

use crate::verdict::Verdict;

/// Treatment of a packet.
pub(super) enum Decision {
    /// Leave the packet unchanged.
    Leave(Verdict),
    /// Apply the change and count it, or count the failure.
    Write {
        counter: Option<Counter>,
        failure: Counter,
        then: Verdict,
    },
}
