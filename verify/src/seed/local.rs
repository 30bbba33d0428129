//! Bugs of a host that is both anchors.

use dysco_common::State;
use dysco_proto::{ChangeId, Machine, Phase};

use super::Seed;
use crate::host::Host;
use crate::plane::{Entry, Packet};

/// True if the record of this change is written after the step that it describes.
pub fn puts_off(host: &Host, change: ChangeId) -> bool {
    let mut changes = host.machine.iter().flat_map(Machine::changes);
    host.seed == Some(Seed::RecordAfterCut)
        && changes.any(|c| c.change == change && c.phase == Phase::Cutting)
}

/// Removes what the next process does not find after a daemon has died.
pub fn dies(host: &mut Host) {
    let cut = |e: &Entry| e.s.two.cut_set != 0;
    if takes_back(host.seed) && host.entries.iter().flatten().any(cut) {
        host.records.clear();
    }
}

/// True if a daemon takes back a path that it does not know, although the path is in use.
pub fn takes_back(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ForgottenCut)
}

/// True if these sessions count as drained.
pub fn have_drained(seed: Option<Seed>, drained: impl IntoIterator<Item = bool>) -> bool {
    let mut drained = drained.into_iter();
    match seed {
        Some(Seed::HalfDrained) => drained.any(|d| d),
        _ => drained.all(|d| d),
    }
}

/// Applies the proxy's acknowledgement, whatever it is. `delivered` is the packet for the end.
pub fn believes(seed: Option<Seed>, entry: &Entry, said: &Packet, delivered: &mut Packet) {
    if seed == Some(Seed::ProxyBelieved) && entry.state() == State::RelayTwoPaths {
        delivered.seg.ack = dysco_common::seq::max(delivered.seg.ack, said.seg.ack);
    }
}
