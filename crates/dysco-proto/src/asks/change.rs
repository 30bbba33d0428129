//! Requests to the host that opened a session.

use dysco_common::Element;
use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use crate::{HostId, KindName, Reason, Subsession};

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
    /// The chain shall consist of these elements.
    Become(Vec<Element>),
    /// This element shall join the chain, as the last one.
    Insert(Element),
    /// The second element shall take the place of the first.
    Replace(Element, Element),
    /// This element shall leave the chain.
    Remove(Element),
}

impl ChainWish {
    /// Returns true if the request names one element, and not the whole chain.
    pub fn is_about_one(&self) -> bool {
        !matches!(self, ChainWish::Become(_))
    }

    /// Returns the element that is to leave.
    pub fn leaves(&self) -> Option<Element> {
        match self {
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => Some(*old),
            ChainWish::Become(_) | ChainWish::Insert(_) => None,
        }
    }

    /// Returns true if a request for all sessions includes a session with this chain.
    pub fn makes_sense(&self, now: &[Element]) -> bool {
        match self {
            ChainWish::Become(chain) => chain != now,
            ChainWish::Insert(new) => !now.contains(new),
            ChainWish::Replace(old, _) | ChainWish::Remove(old) => now.contains(old),
        }
    }

    /// Returns the chain that results from this one.
    ///
    /// # Errors
    /// Fails if the element that is to leave is not in the chain.
    pub fn apply(&self, now: &[Element]) -> Result<Vec<Element>, Reason> {
        let (old, new) = match self {
            ChainWish::Become(chain) => return Ok(chain.clone()),
            ChainWish::Insert(new) => {
                return Ok(now.iter().copied().chain([*new]).collect());
            }
            ChainWish::Replace(old, new) => (old, Some(*new)),
            ChainWish::Remove(old) => (old, None),
        };
        if !now.contains(old) {
            let cause = Cause::new(format!("{old} is not in its chain"));
            let cause = cause.hint("see 'dyscoctl sessions' for the hosts that are");
            return Err(Reason::NoSuchChain(cause));
        }
        let place = |element: &Element| match element == old {
            true => new,
            false => Some(*element),
        };
        Ok(now.iter().filter_map(place).collect())
    }

    /// Replaces the addresses of a host by the one that the chain has. A host may have several
    /// addresses, and may name itself by any of them.
    pub fn named_as(self, now: &[Element], host: &[HostId]) -> ChainWish {
        let known = now.iter().map(Element::host).find(|at| host.contains(at));
        let name = |element: Element| match (host.contains(&element.host()), known) {
            (true, Some(known)) => element.at(known),
            _ => element,
        };
        match self {
            ChainWish::Become(chain) => ChainWish::Become(chain.into_iter().map(name).collect()),
            ChainWish::Insert(new) => ChainWish::Insert(name(new)),
            ChainWish::Replace(old, new) => ChainWish::Replace(name(old), new),
            ChainWish::Remove(old) => ChainWish::Remove(name(old)),
        }
    }
}
