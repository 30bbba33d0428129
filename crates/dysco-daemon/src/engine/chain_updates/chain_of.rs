//! The chain that a session has, as the host that opened it knows it, and the chains that it may
//! get.

use std::net::IpAddr;

use dysco_common::chain::{Chain, Given, MAX_CHAIN, WireElement};
use dysco_common::{Element, Session};
use dysco_explain::Explain;
use dysco_proto::{Order, Reason, Subsession};

use crate::engine::{ChainUpdates, Plane};

impl Plane {
    /// Returns the elements that a session passes, where the session was opened here.
    pub(in crate::engine) fn chain_now(&self, slot: u32, s: &Session) -> Vec<Element> {
        if !s.is_chained() {
            return Vec::new();
        }
        self.agent.chain_of(slot).unwrap_or_default()
    }

    /// Returns the chain and numbers that a session was given, where it was opened here. A direct
    /// session has had a chain, or the attempt to give it one.
    pub(in crate::engine) fn given(&self, slot: u32, s: &Session) -> Given {
        let given = self.agent.given(slot).unwrap_or_default();
        match s.is_chained() {
            true => given,
            false => Given {
                highest: given.highest,
                ..Given::default()
            },
        }
    }
}

impl ChainUpdates {
    /// Returns the slots of a session's paths. The session may be about to take or leave one of
    /// them.
    fn path_slots(&self, plane: &Plane, slot: u32) -> impl Iterator<Item = u32> + use<> {
        let mut paths = self.paths.values();
        let next = paths
            .find(|p| p.first.0 == slot)
            .and_then(|p| p.second_path);
        let before = plane.agent.session(slot).other_path();
        let other = before.filter(|_| !self.is_done_with_before(slot)).or(next);
        [Some(slot), other].into_iter().flatten()
    }

    /// Gives a number to the path that a change is about to lay, and records which paths the
    /// session has now. The number is recorded before any host learns it, so that no number is
    /// given twice, even if this process dies.
    pub(in crate::engine) fn number_path(
        &self,
        plane: &Plane,
        order: &mut Order,
    ) -> Result<(), Reason> {
        let slot = plane.find(&order.session).ok_or(Reason::Closing)?;
        let given = |slot| plane.given(slot, &plane.agent.session(slot));
        let highest = self
            .path_slots(plane, slot)
            .map(|slot| given(slot).highest)
            .max();
        order.number = highest.unwrap_or_default() + 1;
        for slot in self.path_slots(plane, slot) {
            let numbered = Given {
                highest: order.number,
                ..given(slot)
            };
            let noted = plane.agent.set_given(slot, &numbered);
            noted.map_err(|e| Reason::Failed(e.explain().into()))?;
        }
        order.paths = order.segment_of(given(slot).paths()).to_vec();
        Ok(())
    }

    /// Records the elements that a session passes now between two hosts of its chain, or its ends,
    /// and the number of the path that leads there.
    pub(in crate::engine) fn splice_chain(
        &self,
        plane: &Plane,
        session: &Subsession,
        between: (Option<IpAddr>, Option<IpAddr>),
        elements: &[Element],
        number: u32,
    ) {
        let Some(slot) = plane.find(session) else {
            return;
        };
        for slot in self.path_slots(plane, slot) {
            let now = plane.given(slot, &plane.agent.session(slot));
            let Some(given) = relaid(&now, between, elements, number) else {
                tracing::error!(%session, ?now, ?between, "a session's chain is not what was taken down");
                continue;
            };
            if let Err(error) = plane.agent.set_given(slot, &given) {
                tracing::error!(%session, %error, "a session's chain is not taken down");
            }
        }
    }

    /// Returns true if the path before this one, which a session takes, only admits late packets.
    fn is_done_with_before(&self, slot: u32) -> bool {
        let change = self.by_slot.get(&slot);
        let paths = change.and_then(|change| self.paths.get(change));
        paths.is_none_or(|paths| paths.completed.is_some())
    }
}

/// Returns the chain of a session after it got other elements between two hosts of its chain, or
/// its ends, and a path of this number between them. Returns nothing if its chain does not have the
/// two.
pub(super) fn relaid(
    now: &Given,
    (left, right): (Option<IpAddr>, Option<IpAddr>),
    elements: &[Element],
    number: u32,
) -> Option<Given> {
    let all = now.chain.elements();
    let place = |host: IpAddr| all.iter().position(|e| e.host.ip() == host);
    let from = left.map_or(Some(0), |host| Some(place(host)? + 1))?;
    let to = right.map_or(Some(all.len()), place)?;
    let (before, behind) = (all.get(..from)?, all.get(to.max(from)..)?);
    let between: Vec<WireElement> = elements.iter().copied().map(Into::into).collect();
    let chain = Chain::of(&[before, &between, behind].concat())?;
    let new = vec![number; elements.len() + 1];
    let numbers = now.paths();
    let numbers = [numbers.get(..from)?, &new, numbers.get(to.max(from) + 1..)?].concat();
    let mut paths = [0; MAX_CHAIN + 1];
    paths.get_mut(..numbers.len())?.copy_from_slice(&numbers);
    Some(Given {
        chain,
        paths,
        highest: now.highest.max(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(chain: &[u8], paths: &[u32]) -> Given {
        let elements = elements(chain);
        let mut given = Given {
            chain: Chain::of(&elements).unwrap(),
            highest: 9,
            ..Given::default()
        };
        given.paths[..paths.len()].copy_from_slice(paths);
        given
    }

    #[test]
    fn a_segment_gets_the_number_of_its_new_path_and_the_rest_keeps_its_own() {
        let now = given(&[3, 4, 5], &[0, 7, 7, 2]);
        let laid = |left: Option<u8>, right: Option<u8>, hosts: &[u8]| {
            relaid(&now, (left.map(ip), right.map(ip)), &elements(hosts), 9)
        };
        assert_eq!(laid(None, None, &[6]), Some(given(&[6], &[9, 9])));
        assert_eq!(laid(None, None, &[]), Some(given(&[], &[9])));
        let inner = laid(Some(3), Some(5), &[6, 8]).unwrap();
        assert_eq!(inner, given(&[3, 6, 8, 5], &[0, 9, 9, 9, 2]));
        assert_eq!(laid(Some(3), None, &[]), Some(given(&[3], &[0, 9])));
        // The same order arrives twice.
        let new = elements(&[6, 8]);
        let again = relaid(&inner, (Some(ip(3)), Some(ip(5))), &new, 9);
        assert_eq!(again, Some(inner));
        assert_eq!(laid(Some(6), None, &[]), None);
    }

    fn elements(hosts: &[u8]) -> Vec<Element> {
        hosts.iter().map(|last| Element::Host(ip(*last))).collect()
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }
}
