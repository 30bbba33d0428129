//! Numbers that have passed a host of the chain.

use dysco_common::seq::max;
use dysco_common::tcp::Segment;

use crate::socket::Base;

/// Highest numbers that have passed a host of the chain towards one side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Passed {
    pub(super) end: u32,
    pub(super) ack: u32,
}

impl Passed {
    /// Nothing has passed of a direction that begins at these numbers.
    pub fn nothing(base: &Base) -> Passed {
        Passed {
            end: base.out,
            ack: base.into,
        }
    }

    pub(super) fn note(&mut self, seg: &Segment) {
        (self.end, self.ack) = (max(self.end, seg.end()), max(self.ack, seg.ack));
    }
}
