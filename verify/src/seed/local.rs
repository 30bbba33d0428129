//! Bugs that a host may have which is both anchors.

use dysco_common::State;
use dysco_proto::{ChangeId, Machine, Phase};

use super::Seed;
use crate::host::Host;
use crate::plane::{Entry, Packet};

/// Is the record of this change written after what it is about?
pub fn puts_off(host: &Host, change: ChangeId) -> bool {
    let mut changes = host.machine.iter().flat_map(Machine::changes);
    host.seed == Some(Seed::RecordAfterCut)
        && changes.any(|c| c.change == change && c.phase == Phase::Cutting)
}

/// A daemon has died: what does its successor not find?
pub fn dies(host: &mut Host) {
    let cut = |e: &Entry| e.s.two.cut_set != 0;
    if takes_back(host.seed) && host.entries.iter().flatten().any(cut) {
        host.records.clear();
    }
}

/// Does a daemon take back what it knows nothing of, though it is in use?
pub fn takes_back(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ForgottenCut)
}

/// Has all drained, if these have?
pub fn have_drained(seed: Option<Seed>, drained: impl IntoIterator<Item = bool>) -> bool {
    let mut drained = drained.into_iter();
    match seed {
        Some(Seed::HalfDrained) => drained.any(|d| d),
        _ => drained.all(|d| d),
    }
}

/// The proxy is believed whatever it acknowledges: `told` is what the end would hear.
pub fn believes(seed: Option<Seed>, entry: &Entry, said: &Packet, told: &mut Packet) {
    if seed == Some(Seed::ProxyBelieved) && entry.state() == State::FarTwoPaths {
        told.seg.ack = dysco_common::seq::max(told.seg.ack, said.seg.ack);
    }
}
