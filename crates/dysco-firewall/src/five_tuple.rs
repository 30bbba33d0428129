//! Five-tuples of sessions.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use dysco_explain::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A TCP session's five-tuple, from the end that opened it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FiveTuple {
    /// The end that opened it.
    pub source: SocketAddr,
    /// The other end.
    pub destination: SocketAddr,
}

impl FiveTuple {
    /// Returns the five-tuple from the other end.
    pub const fn reversed(self) -> FiveTuple {
        FiveTuple {
            source: self.destination,
            destination: self.source,
        }
    }

    /// Returns its two ends.
    pub const fn ends(&self) -> [SocketAddr; 2] {
        [self.source, self.destination]
    }

    /// True if both name the same session, from either end.
    pub fn same(&self, other: &FiveTuple) -> bool {
        self == other || *self == other.reversed()
    }

    /// True if a TCP session can have this five-tuple.
    pub(crate) fn possible(&self) -> bool {
        let end = |end: SocketAddr| {
            let ip = end.ip();
            end.port() != 0 && !ip.is_unspecified() && !ip.is_multicast()
        };
        self.source.is_ipv4() == self.destination.is_ipv4()
            && end(self.source)
            && end(self.destination)
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.source, self.destination)
    }
}

impl FromStr for FiveTuple {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' names no session"))
                .hint("give SOURCE>DESTINATION such as '10.0.0.2:40000>10.0.0.1:80'")
        };
        let (source, destination) = s.split_once('>').ok_or_else(bad)?;
        let end = |end: &str| end.trim().parse().map_err(|_| bad());
        Ok(FiveTuple {
            source: end(source)?,
            destination: end(destination)?,
        })
    }
}
