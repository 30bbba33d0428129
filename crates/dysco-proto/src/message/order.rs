//! What is asked for where a session gets another chain.

use serde::{Deserialize, Serialize};

use super::{HostId, Subsession};

/// Another chain for a session, or for a segment of its chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The session, as its two ends have it.
    pub session: Subsession,
    /// The hosts that it passes now, from the end that opened it.
    pub before: Vec<HostId>,
    /// Those that it shall pass.
    pub after: Vec<HostId>,
    /// What of both has no part in it.
    pub margins: Margins,
    /// Whose state of the session goes to whom before that.
    pub state: Vec<(HostId, HostId)>,
    /// Numbers of the paths by which the session passes the segment now, as
    /// [`path_number`](dysco_common::chain::path_number) has them.
    pub paths: Vec<u32>,
    /// That of the path which this change lays: higher than any of the session's before.
    pub number: u32,
}

/// How many hosts of a chain, from either end, a change leaves alone. The innermost
/// of them are its anchors; where there are none, that end of the session is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Margins {
    /// Next to the end that opened it.
    pub left: u8,
    /// Next to the other.
    pub right: u8,
}

impl Margins {
    /// As many as are the same before and after.
    pub fn between(before: &[HostId], after: &[HostId]) -> Margins {
        let same = |pair: &(&HostId, &HostId)| pair.0 == pair.1;
        let left = before.iter().zip(after).take_while(same).count();
        let rest = |hosts: &[HostId]| hosts[left..].iter().rev().copied().collect::<Vec<_>>();
        let (one, other) = (rest(before), rest(after));
        let right = one.iter().zip(&other).take_while(same).count();
        // A chain has few hosts.
        let few = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        Margins {
            left: few(left),
            right: few(right),
        }
    }

    fn inner<'a>(&self, hosts: &'a [HostId]) -> &'a [HostId] {
        let end = hosts.len().saturating_sub(self.right.into());
        hosts.get(self.left.into()..end).unwrap_or_default()
    }
}

impl Order {
    /// Is it about the same segment of the session's chain as another, whatever has become
    /// of the rest?
    pub fn is_about_segment_of(&self, other: &Order) -> bool {
        let what = |o: &Order| (o.left(), o.segment_before().to_vec(), o.inner_right());
        what(self) == what(other)
    }

    /// The hosts between the anchors before.
    pub fn segment_before(&self) -> &[HostId] {
        self.margins.inner(&self.before)
    }

    /// Those between them after.
    pub fn segment_after(&self) -> &[HostId] {
        self.margins.inner(&self.after)
    }

    /// The left anchor, if it is a host of the chain.
    pub fn left(&self) -> Option<HostId> {
        let last = usize::from(self.margins.left).checked_sub(1)?;
        self.before.get(last).copied()
    }

    /// The right anchor, if it is a host of the chain.
    pub fn inner_right(&self) -> Option<HostId> {
        let first = self.before.len().checked_sub(self.margins.right.into())?;
        self.before.get(first).copied()
    }

    /// Those of a whole chain's path numbers, one more than hosts, that are of the segment.
    pub fn segment_of<'a>(&self, paths: &'a [u32]) -> &'a [u32] {
        let end = paths.len().saturating_sub(self.margins.right.into());
        paths.get(self.margins.left.into()..end).unwrap_or_default()
    }

    /// The right anchor.
    pub fn right(&self) -> HostId {
        self.inner_right().unwrap_or(self.session.right.ip())
    }

    /// The hosts by which the new path leads to the right anchor, with that if the
    /// session does not end there.
    pub fn path(&self) -> Vec<HostId> {
        self.segment_after()
            .iter()
            .copied()
            .chain(self.inner_right())
            .collect()
    }
}
