//! How a session is named: by a short id, or by its five-tuple.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A session's short name on one host, written in hexadecimal. The low half
/// is its slot, the high half tells it from the slot's earlier sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SessionId(pub u64);

impl SessionId {
    /// The id of a slot's session.
    pub const fn new(slot: u32, generation: u32) -> Self {
        SessionId((generation as u64) << 32 | slot as u64)
    }

    /// Its slot.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// What tells it from the slot's earlier sessions.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// How a client names a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SessionName {
    /// By its id.
    Id(SessionId),
    /// By its five-tuple, seen from the host asked.
    Tuple {
        /// That host's end.
        local: SocketAddr,
        /// The other end.
        remote: SocketAddr,
    },
}

/// Not a session's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{0}' names no session: give an id as 'dyscoctl sessions' lists it, or 'LOCAL>REMOTE' such as '10.0.0.1:8080>10.0.0.2:40000'"
)]
pub struct BadName(String);

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
    type Err = BadName;

    fn from_str(s: &str) -> Result<Self, BadName> {
        let hex = s.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(s, 16) {
            Ok(id) if hex => Ok(SessionId(id)),
            _ => Err(BadName(s.to_owned())),
        }
    }
}

impl FromStr for SessionName {
    type Err = BadName;

    fn from_str(s: &str) -> Result<Self, BadName> {
        let Some((local, remote)) = s.split_once('>') else {
            return s.parse().map(SessionName::Id);
        };
        let end = |end: &str| end.trim().parse().map_err(|_| BadName(s.to_owned()));
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
            type Error = BadName;

            fn try_from(s: String) -> Result<Self, BadName> {
                s.parse()
            }
        }
    )*};
}

as_string!(SessionId, SessionName);
