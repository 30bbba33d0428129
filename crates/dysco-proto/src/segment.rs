//! Segments of chains that have a change under way. The host that opened a session knows its chain,
//! and grants each segment to one change at a time. Changes whose segments have at most an anchor
//! in common do not hinder each other.

use std::collections::{BTreeMap, BTreeSet};

use dysco_common::Element;

use super::message::Order;
use super::names::{ChangeId, HostId, Subsession};
use super::reason::Reason;

/// Locked segments of all sessions.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Segments(BTreeMap<Subsession, BTreeMap<ChangeId, Segment>>);

/// A locked segment. `None` is an end of the session.
#[derive(Clone, Hash, Debug)]
struct Segment {
    left: Option<HostId>,
    right: Option<HostId>,
    /// Hosts that are between the anchors, or shall be.
    hosts: BTreeSet<HostId>,
}

impl Segment {
    fn of(order: &Order) -> Segment {
        Segment {
            left: order.left(),
            right: order.inner_right(),
            hosts: order
                .segment_before()
                .iter()
                .chain(order.segment_after())
                .map(Element::host)
                .collect(),
        }
    }

    /// Returns true if the segment has a hop, or a host between the anchors, in common with the
    /// order's segment. Anchors stay in a chain during the change, and therefore have a place in
    /// the chain that the order was made from.
    fn overlaps(&self, order: &Order) -> bool {
        let chain = &order.before;
        let place = |host: HostId| chain.iter().position(|e| e.host() == host).map(|at| at + 1);
        let ends = (
            self.left.map_or(Some(0), place),
            self.right.map_or(Some(chain.len() + 1), place),
        );
        let (Some(left), Some(right)) = ends else {
            return true;
        };
        let begins = usize::from(order.margins.left);
        let ends = (chain.len() + 1).saturating_sub(order.margins.right.into());
        let apart = right <= begins || ends <= left;
        !apart || !self.hosts.is_disjoint(&Segment::of(order).hosts)
    }
}

impl Segments {
    pub(crate) fn lock(&mut self, change: ChangeId, order: &Order) -> Result<(), Reason> {
        let of_session = self.0.entry(order.session).or_default();
        let another = of_session
            .iter()
            .find(|(other, held)| **other != change && held.overlaps(order));
        if let Some((other, _)) = another {
            return Err(Reason::LockedByAnother(*other));
        }
        of_session.insert(change, Segment::of(order));
        Ok(())
    }

    /// Locks the segment of a record, which was granted before.
    pub(crate) fn restore(&mut self, change: ChangeId, order: &Order) {
        let of_session = self.0.entry(order.session).or_default();
        of_session.insert(change, Segment::of(order));
    }

    pub(crate) fn unlock(&mut self, change: ChangeId, session: &Subsession) {
        if let Some(of_session) = self.0.get_mut(session) {
            of_session.remove(&change);
            if of_session.is_empty() {
                self.0.remove(session);
            }
        }
    }

    /// Returns the changes of a session's chain.
    pub(crate) fn of(&self, session: &Subsession) -> impl Iterator<Item = ChangeId> + '_ {
        self.0
            .get(session)
            .into_iter()
            .flat_map(|s| s.keys().copied())
    }
}
