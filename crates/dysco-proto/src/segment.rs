//! Which segments of sessions' chains have a change under way. The host that opened a
//! session knows its chain, and grants each segment to one change at a time: changes
//! whose segments have no more than an anchor in common do not hinder each other.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{ChangeId, HostId, Order, Subsession};
use super::reason::Reason;

/// All of them, by session.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Segments(BTreeMap<Subsession, BTreeMap<ChangeId, Segment>>);

/// One that is locked. None stands for an end of the session.
#[derive(Clone, Hash, Debug)]
struct Segment {
    left: Option<HostId>,
    right: Option<HostId>,
    /// The hosts that are between the anchors, or shall be.
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
                .copied()
                .collect(),
        }
    }

    /// Has it any hop in common with what the order is about, or a host between the
    /// anchors? Anchors stay in a chain for as long as the change takes, so they have a
    /// place in the one that the order was made by.
    fn overlaps(&self, order: &Order) -> bool {
        let chain = &order.before;
        let place = |host: HostId| chain.iter().position(|h| *h == host).map(|at| at + 1);
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
    pub fn lock(&mut self, change: ChangeId, order: &Order) -> Result<(), Reason> {
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

    /// Of a record: it was granted before.
    pub fn restore(&mut self, change: ChangeId, order: &Order) {
        let of_session = self.0.entry(order.session).or_default();
        of_session.insert(change, Segment::of(order));
    }

    pub fn unlock(&mut self, change: ChangeId, session: &Subsession) {
        if let Some(of_session) = self.0.get_mut(session) {
            of_session.remove(&change);
            if of_session.is_empty() {
                self.0.remove(session);
            }
        }
    }

    /// The changes of a session's chain.
    pub fn of(&self, session: &Subsession) -> impl Iterator<Item = ChangeId> + '_ {
        self.0
            .get(session)
            .into_iter()
            .flat_map(|s| s.keys().copied())
    }
}
