//! Packets that are measured by many runs each, and the sessions that the programs find for them.
//!
//! A run sees the packet as the last run left it. The two five-tuples of a session are therefore
//! equal here, and those of a relayed session mirror each other, so that a translated packet
//! belongs to the session again. In the two-path phase, in which numbers decide, only the
//! timestamps differ; the programs nevertheless write all fields.

use dysco_common::session::{Life, Two};
use dysco_common::{Counter, FlowKey, Path, Session, State, Translation};

use super::frame::{FULL, NOT_TCP, OPENS, Packet, USUAL, WITH_SACK};
use super::programs::{DROP, OK, PASS, REDIRECT, Way, XDP_TX};

/// A translation that changes every field.
pub(crate) const TRANSLATION: Translation = Translation {
    seq_out: 0x1234_5678,
    seq_in: 0x8765_4321,
    ts_out: 1000,
    ts_in: 2000,
    wscale_local: 7,
    wscale_local_at_peer: 7,
    wscale_remote_at_peer: 7,
    wscale_remote: 7,
    flags: 0,
};
/// A translation that changes only fields that may change.
const TIMES: Translation = Translation {
    seq_out: 0,
    seq_in: 0,
    ..TRANSLATION
};

/// A packet's path through a program.
pub(super) struct Spec {
    /// Effect on the packet, and the program if the effect does not imply it.
    pub name: &'static str,
    pub way: Way,
    pub packet: Packet,
    /// Session of the packet, and the path by which the packet belongs to it.
    pub entry: Option<(Path, Session)>,
    /// Verdict that the program must return.
    pub verdict: u32,
    /// Counter that the program must increment each time.
    pub counter: Option<Counter>,
    /// True if the packet's neighbour is known. It is then the neighbour that the packet already
    /// goes to.
    pub taught: bool,
}

impl Spec {
    fn new(name: &'static str, way: Way, verdict: u32) -> Spec {
        Spec {
            name,
            way,
            packet: USUAL,
            entry: None,
            verdict,
            counter: None,
            taught: false,
        }
    }

    /// Adds a session, with the packet on the session's own five-tuple.
    fn old(self, state: State, translation: Translation) -> Spec {
        self.of(Path::Old, entry(state, translation))
    }

    /// Adds a session, with the packet on the session's new path.
    fn new_path(self, state: State, translation: Translation) -> Spec {
        self.of(Path::New, entry(state, translation))
    }

    fn of(mut self, path: Path, session: Session) -> Spec {
        self.entry = Some((path, session));
        self
    }

    fn packet(mut self, packet: Packet) -> Spec {
        self.packet = packet;
        self
    }

    fn counts(mut self, counter: Counter) -> Spec {
        self.counter = Some(counter);
        self
    }

    fn taught(mut self) -> Spec {
        self.taught = true;
        self
    }

    /// True if the packet is relayed.
    pub(super) fn relays(&self) -> bool {
        let state = self.entry.map(|(_, session)| session.state);
        state == Some(State::Relay as u32)
    }

    /// Returns the five-tuple, which differs for each case. A known neighbour applies to all
    /// five-tuples with the same addresses.
    pub(super) fn key(&self, at: usize) -> FlowKey {
        let net = u8::from(self.taught);
        let port = 4000 + at as u16;
        FlowKey::new(([10, 0, net, 1], port).into(), ([10, 0, net, 2], 80).into())
    }

    /// Returns the frame.
    pub(super) fn frame(&self, key: &FlowKey) -> Vec<u8> {
        match self.way {
            Way::Out => self.packet.leaves(key),
            _ => self.packet.comes(key),
        }
    }
}

fn entry(state: State, translation: Translation) -> Session {
    Session {
        state: state as u32,
        ifindex: 1,
        translation,
        ..Session::default()
    }
}

/// Returns a session with two paths whose ends have acknowledged everything, so that no packet is
/// copied.
fn two_paths(cut_out: Option<u32>) -> Session {
    Session {
        cut_out: cut_out.unwrap_or_default(),
        rcv_max: 1,
        old_ack: 1,
        new_ack: 1,
        two: Two {
            cut_set: cut_out.is_some().into(),
            old_ack_set: 1,
            new_ack_set: 1,
            ..Two::default()
        },
        ..entry(State::TwoPaths, TIMES)
    }
}

/// Returns all packets.
pub(super) fn all() -> Vec<Spec> {
    let mut all = ingress();
    all.extend(egress());
    all.extend(two());
    all.extend(relayed());
    all
}

fn ingress() -> Vec<Spec> {
    let (same, new) = (Translation::default(), State::NewPath);
    let spec = |name, verdict| Spec::new(name, Way::In, verdict);
    let translated = |name| spec(name, OK).counts(Counter::Translated);
    vec![
        Spec::new(super::EMPTY, Way::Nothing, PASS),
        spec("not_tcp", PASS).packet(NOT_TCP),
        spec("untracked", PASS),
        spec("tracked", PASS).old(State::Tracked, same),
        translated("translated_in").new_path(new, TRANSLATION),
        translated("translated_in_1400_bytes")
            .new_path(new, TRANSLATION)
            .packet(FULL),
        translated("translated_in_sack")
            .new_path(new, TRANSLATION)
            .packet(WITH_SACK),
        translated("identity_in").new_path(new, same),
        translated("identity_in_sack")
            .new_path(new, same)
            .packet(WITH_SACK),
    ]
}

fn egress() -> Vec<Spec> {
    let (same, new) = (Translation::default(), State::NewPath);
    let spec = |name, verdict| Spec::new(name, Way::Out, verdict);
    let translated = |name| spec(name, REDIRECT).counts(Counter::Translated);
    let opening = Session {
        life: Life {
            opened_here: 1,
            ..Life::default()
        },
        ..entry(State::Opening, same)
    };
    vec![
        spec("untracked_out", PASS),
        spec("tracked_out", PASS).old(State::Tracked, same),
        translated("translated_out").old(new, TRANSLATION),
        translated("translated_out_1400_bytes")
            .old(new, TRANSLATION)
            .packet(FULL),
        translated("translated_out_sack")
            .old(new, TRANSLATION)
            .packet(WITH_SACK),
        translated("identity_out").old(new, same),
        Spec {
            verdict: OK,
            ..translated("translated_out_hop_known")
                .old(new, TRANSLATION)
                .taught()
        },
        // This packet leaves after the kernel's look-up, on its way to the interface.
        spec("translated_out_second_way", PASS)
            .new_path(new, TRANSLATION)
            .taught(),
        translated("return_out").old(State::Return, TRANSLATION),
        spec("tombstone_out", DROP)
            .old(State::Tombstone, same)
            .counts(Counter::DroppedTombstone),
        // This packet needs everything that a first SYN needs, except a free slot.
        spec("syn_again_out", PASS)
            .of(Path::Old, opening)
            .packet(OPENS),
    ]
}

fn two() -> Vec<Spec> {
    let spec = |name, way, verdict, counter| {
        let spec = Spec::new(name, way, verdict).packet(FULL);
        spec.counts(counter)
    };
    let old = |name| spec(name, Way::Out, PASS, Counter::OldPath);
    let new = |name, way, verdict| spec(name, way, verdict, Counter::Translated);
    let (not, far, here) = (None, Some(1 << 20), Some(1));
    let from_old = Spec::new("two_paths_in_old", Way::In, PASS).packet(FULL);
    vec![
        old("two_paths_out_not_cut").of(Path::Old, two_paths(not)),
        old("two_paths_out_old").of(Path::Old, two_paths(far)),
        new("two_paths_out_new", Way::Out, REDIRECT).of(Path::Old, two_paths(here)),
        from_old.of(Path::Old, two_paths(far)),
        new("two_paths_in_new", Way::In, OK).of(Path::New, two_paths(here)),
    ]
}

fn relayed() -> Vec<Spec> {
    // Each run decrements the TTL.
    let packet = Packet { ttl: 255, ..USUAL };
    let relay = |name, way, verdict, counter| {
        let spec = Spec::new(name, way, verdict).counts(counter);
        spec.packet(packet).old(State::Relay, TRANSLATION)
    };
    vec![
        relay("relay_in", Way::In, REDIRECT, Counter::Relayed),
        relay("relay_xdp", Way::Xdp, XDP_TX, Counter::RelayedByXdp).taught(),
    ]
}
