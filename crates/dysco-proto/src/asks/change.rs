//! Requests to the host that opened a session.

use std::net::IpAddr;

use crate::{Reason, Subsession};
use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use crate::KindName;

/// A request of one host to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// The session, as the host that opened it has it.
    pub session: Subsession,
    /// Wanted change of its chain.
    pub wish: ChainWish,
    /// Kinds of firewall state that is copied from the hosts that leave to the hosts that join.
    pub state: Vec<KindName>,
    /// True if the host shall only report what it would do.
    pub dry_run: bool,
}

/// Wanted change of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ChainWish {
    /// The chain shall consist of these hosts.
    Become(Vec<IpAddr>),
    /// This host shall join the chain, as the last one.
    Insert(IpAddr),
    /// The second host shall take the place of the first.
    Replace(IpAddr, IpAddr),
    /// This host shall leave the chain.
    Remove(IpAddr),
}

impl ChainWish {
    /// Returns true if the request names one host, and not the whole chain.
    pub fn is_about_one(&self) -> bool {
        !matches!(self, ChainWish::Become(_))
    }

    /// Returns the host that is to leave.
    pub fn leaves(&self) -> Option<IpAddr> {
        match self {
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => Some(*old),
            ChainWish::Become(_) | ChainWish::Insert(_) => None,
        }
    }

    /// Returns true if a request for all sessions includes a session with this chain.
    pub fn makes_sense(&self, now: &[IpAddr]) -> bool {
        match self {
            ChainWish::Become(hosts) => hosts != now,
            ChainWish::Insert(host) => !now.contains(host),
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => now.contains(old),
        }
    }

    /// Returns the chain that results from this one.
    ///
    /// # Errors
    /// Fails if the host that is to leave is not in the chain.
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
            let cause = Cause::new(format!("{old} is not in its chain"));
            let cause = cause.hint("see 'dyscoctl sessions' for the hosts that are");
            return Err(Reason::NoSuchChain(cause));
        }
        let place = |host: &IpAddr| match host == old {
            true => new,
            false => Some(*host),
        };
        Ok(now.iter().filter_map(place).collect())
    }

    /// Replaces the addresses of a host by the one that the chain has. A host may have several
    /// addresses, and may name itself by any of them.
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
