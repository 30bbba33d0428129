//! Names of sessions: a short id or a five-tuple.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// A session's short name on one host, written in hexadecimal. The low half is the session's
/// slot. The high half distinguishes the session from earlier ones in that slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SessionId(pub u64);

impl SessionId {
    /// Returns the id of a slot's session.
    pub const fn new(slot: u32, generation: u32) -> Self {
        SessionId((generation as u64) << 32 | slot as u64)
    }

    /// Returns the slot.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Returns the number that distinguishes the session from earlier ones in its slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Name of a session in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SessionName {
    /// The id of the session.
    Id(SessionId),
    /// The five-tuple of the session, as seen from the host that receives the request.
    Tuple {
        /// The end at that host.
        local: SocketAddr,
        /// The other end.
        remote: SocketAddr,
    },
}

/// Returns the cause for a text that is not the name of a session.
fn no_name(s: &str) -> Cause {
    Cause::new(format!("'{s}' names no session")).hint(
        "give an id as 'dyscoctl sessions' lists it, or 'LOCAL>REMOTE' such as '10.0.0.1:8080>10.0.0.2:40000'",
    )
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionName::Id(id) => id.fmt(f),
            SessionName::Tuple { local, remote } => write!(f, "{local}>{remote}"),
        }
    }
}

impl FromStr for SessionId {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let hex = s.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(s, 16) {
            Ok(id) if hex => Ok(SessionId(id)),
            _ => Err(no_name(s)),
        }
    }
}

impl FromStr for SessionName {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let Some((local, remote)) = s.split_once('>') else {
            return s.parse().map(SessionName::Id);
        };
        let end = |end: &str| end.trim().parse().map_err(|_| no_name(s));
        Ok(SessionName::Tuple {
            local: end(local)?,
            remote: end(remote)?,
        })
    }
}

macro_rules! as_string {
    ($($t:ty),*) => {$(
        impl From<$t> for String {
            fn from(name: $t) -> String {
                name.to_string()
            }
        }

        impl TryFrom<String> for $t {
            type Error = Cause;

            fn try_from(s: String) -> Result<Self, Cause> {
                s.parse()
            }
        }
    )*};
}

as_string!(SessionId, SessionName);
