//! The extent to which a host of a chain forgets a session.

use serde::{Deserialize, Serialize};

/// Part of a session that a host of a chain is to forget.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// The session, which has left the host by this change.
    Session,
    /// The session, which would have come to the host by this change.
    Newcomer,
    /// The earlier path: the session passes the host by its new path.
    PathBefore,
    /// The new path: the session passes the host by its earlier path.
    NewPath,
    /// Nothing, because the new path was not opened. Late messages of this change shall have no
    /// effect.
    Unopened,
}
