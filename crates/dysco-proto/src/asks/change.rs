//! What may be asked for.

use std::net::IpAddr;

use crate::{Reason, Subsession};
use serde::{Deserialize, Serialize};

use crate::KindName;

/// What one host asks another for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// Which session, as the host that opened it knows it.
    pub session: Subsession,
    /// What is to become of its chain.
    pub wish: ChainWish,
    /// What the hosts that leave know of it goes to those that come, of these kinds.
    pub state: Vec<KindName>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What is to become of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ChainWish {
    /// It is to be these hosts.
    Become(Vec<IpAddr>),
    /// This host is to come into it, as the last.
    Insert(IpAddr),
    /// The first is to make room for the second.
    Replace(IpAddr, IpAddr),
    /// This host is to leave it.
    Remove(IpAddr),
}

impl ChainWish {
    /// Is it about one host, and not about the chain as a whole?
    pub fn is_about_one(&self) -> bool {
        !matches!(self, ChainWish::Become(_))
    }

    /// The host that is to leave.
    pub fn leaves(&self) -> Option<IpAddr> {
        match self {
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => Some(*old),
            ChainWish::Become(_) | ChainWish::Insert(_) => None,
        }
    }

    /// Is a session with this chain meant, where all are?
    pub fn makes_sense(&self, now: &[IpAddr]) -> bool {
        match self {
            ChainWish::Become(hosts) => hosts != now,
            ChainWish::Insert(host) => !now.contains(host),
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => now.contains(old),
        }
    }

    /// The chain that it makes of this one.
    ///
    /// # Errors
    /// If the host that it is about is not in it.
    pub fn apply(&self, now: &[IpAddr]) -> Result<Vec<IpAddr>, Reason> {
        let (old, new) = match self {
            ChainWish::Become(hosts) => return Ok(hosts.clone()),
            ChainWish::Insert(host) => {
                return Ok(now.iter().copied().chain([*host]).collect());
            }
            ChainWish::Replace(old, new) => (old, Some(*new)),
            ChainWish::Remove(old) => (old, None),
        };
        if !now.contains(old) {
            let why = format!("{old} is not in it; see 'dyscoctl sessions' for what is");
            return Err(Reason::NoSuchChain(why));
        }
        let place = |host: &IpAddr| match host == old {
            true => new,
            false => Some(*host),
        };
        Ok(now.iter().filter_map(place).collect())
    }

    /// A host may have several addresses, and name itself by any: that by which the
    /// chain has it counts.
    pub fn named_as(self, now: &[IpAddr], host: &[IpAddr]) -> ChainWish {
        let known = now.iter().find(|at| host.contains(at)).copied();
        let name = |at: IpAddr| match (host.contains(&at), known) {
            (true, Some(known)) => known,
            _ => at,
        };
        match self {
            ChainWish::Become(hosts) => ChainWish::Become(hosts.into_iter().map(name).collect()),
            ChainWish::Insert(host) => ChainWish::Insert(name(host)),
            ChainWish::Replace(old, new) => ChainWish::Replace(name(old), new),
            ChainWish::Remove(host) => ChainWish::Remove(name(host)),
        }
    }
}
