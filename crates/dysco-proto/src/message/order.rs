//! The order for another chain of a session.

use dysco_common::Element;
use serde::{Deserialize, Serialize};

use super::{HostId, Subsession};

/// Another chain for a session, or for a segment of its chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The session, as its two ends have it.
    pub session: Subsession,
    /// Elements that the session passes now, from the end that opened it.
    pub before: Vec<Element>,
    /// Elements that the session shall pass.
    pub after: Vec<Element>,
    /// Elements of both chains that the change does not concern.
    pub margins: Margins,
    /// Pairs of hosts: state of the session is copied from the first to the second before the
    /// change.
    pub state: Vec<(HostId, HostId)>,
    /// Numbers of the paths by which the session passes the segment now, in the form of
    /// [`path_number`](dysco_common::chain::path_number).
    pub paths: Vec<u32>,
    /// Number of the new path. It is higher than all earlier ones of the session.
    pub number: u32,
}

/// Numbers of elements at either end of a chain that a change does not concern. The hosts of the
/// innermost ones are the anchors. If there are none, that end of the session is the anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Margins {
    /// Number of elements next to the end that opened the session.
    pub left: u8,
    /// Number of elements next to the other end.
    pub right: u8,
}

impl Margins {
    /// Returns the greatest margins within which both chains are the same.
    pub fn between(before: &[Element], after: &[Element]) -> Margins {
        let same = |pair: &(&Element, &Element)| pair.0 == pair.1;
        let left = before.iter().zip(after).take_while(same).count();
        let rest = |chain: &[Element]| chain[left..].iter().rev().copied().collect::<Vec<_>>();
        let (one, other) = (rest(before), rest(after));
        let right = one.iter().zip(&other).take_while(same).count();
        // A chain has few elements.
        let few = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        Margins {
            left: few(left),
            right: few(right),
        }
    }

    fn inner<'a>(&self, chain: &'a [Element]) -> &'a [Element] {
        let end = chain.len().saturating_sub(self.right.into());
        chain.get(self.left.into()..end).unwrap_or_default()
    }
}

impl Order {
    /// Returns true if another order concerns the same segment of the session's chain. The rest of
    /// the chain may differ.
    pub fn is_about_segment_of(&self, other: &Order) -> bool {
        let what = |o: &Order| (o.left(), o.segment_before().to_vec(), o.inner_right());
        what(self) == what(other)
    }

    /// Returns the elements between the anchors before the change.
    pub fn segment_before(&self) -> &[Element] {
        self.margins.inner(&self.before)
    }

    /// Returns the elements between the anchors after the change.
    pub fn segment_after(&self) -> &[Element] {
        self.margins.inner(&self.after)
    }

    /// Returns the left anchor, if it is a host of the chain.
    pub fn left(&self) -> Option<HostId> {
        let last = usize::from(self.margins.left).checked_sub(1)?;
        self.before.get(last).map(Element::host)
    }

    /// Returns the right anchor, if it is a host of the chain.
    pub fn inner_right(&self) -> Option<HostId> {
        self.first_behind().map(|element| element.host())
    }

    /// Returns the element at the right anchor, if that is in the chain.
    fn first_behind(&self) -> Option<Element> {
        let first = self.before.len().checked_sub(self.margins.right.into())?;
        self.before.get(first).copied()
    }

    /// Returns the path numbers of the segment. `paths` are those of the whole chain, one more than
    /// it has elements.
    pub fn segment_of<'a>(&self, paths: &'a [u32]) -> &'a [u32] {
        let end = paths.len().saturating_sub(self.margins.right.into());
        paths.get(self.margins.left.into()..end).unwrap_or_default()
    }

    /// Returns the right anchor.
    pub fn right(&self) -> HostId {
        self.inner_right().unwrap_or(self.session.right.ip())
    }

    /// Returns the elements of the new path, up to the right anchor. That anchor is included if it
    /// is not the end of the session.
    pub fn path(&self) -> Vec<Element> {
        self.segment_after()
            .iter()
            .copied()
            .chain(self.first_behind())
            .collect()
    }
}
