//! Work that an engine which was held up still has to do.

use std::hash::{Hash, Hasher};

use dysco_proto::{ChangeId, Command};

use crate::place::Side;

/// Remaining work of an engine that was held up.
#[derive(Clone, Debug)]
pub enum Rest {
    /// The whole command.
    Command(Command),
    /// Join the second entry, and report that both are joined.
    Join(ChangeId),
    /// Cut the second entry.
    Cut(ChangeId),
    /// Notify this entry of the cutoff at which the other entry's new data begins.
    CutIn(ChangeId, Side),
    /// Report that both entries are cut.
    SayCut(ChangeId),
    /// Relay the data of the second end.
    Relay(ChangeId),
    /// Take back the second entry.
    Unjoin(ChangeId),
}

impl Hash for Rest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        format!("{self:?}").hash(state);
    }
}
