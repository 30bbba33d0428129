//! Names of changes, hosts and sessions in messages.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Identifier of a change, the same on all of its hosts. Of two changes that one host began, the
/// later has the greater identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChangeId(pub [u8; 16]);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host, named by one of its addresses. A host may have several addresses; its certificate lists
/// them.
pub type HostId = IpAddr;

/// The five-tuple between two neighbouring hosts (TCP is implied).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subsession {
    /// The end that opened it.
    pub left: SocketAddr,
    /// The end that accepted it.
    pub right: SocketAddr,
}

impl fmt::Display for Subsession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.left, self.right)
    }
}

impl fmt::Debug for Subsession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
