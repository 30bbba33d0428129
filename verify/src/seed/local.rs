//! Bugs of a host that is both anchors.

use dysco_common::State;

use super::Seed;
use crate::plane::{Entry, Packet};

/// True if a daemon takes back a path that it does not know, although the path is in use.
pub(crate) fn takes_back(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ForgottenCut)
}

/// True if these sessions count as drained.
pub(crate) fn have_drained(seed: Option<Seed>, drained: impl IntoIterator<Item = bool>) -> bool {
    let mut drained = drained.into_iter();
    match seed {
        Some(Seed::HalfDrained) => drained.any(|d| d),
        _ => drained.all(|d| d),
    }
}

/// Applies the proxy's acknowledgement without a check. `delivered` is the packet for the end.
pub(crate) fn believes(seed: Option<Seed>, entry: &Entry, said: &Packet, delivered: &mut Packet) {
    if seed == Some(Seed::ProxyBelieved) && entry.state() == State::RelayTwoPaths {
        delivered.seg.ack = dysco_common::seq::max(delivered.seg.ack, said.seg.ack);
    }
}
