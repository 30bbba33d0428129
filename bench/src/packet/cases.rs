//! The packets that are measured by many runs each, and what the programs find of
//! their sessions.
//!
//! A run sees the packet as the last one left it. So the two five-tuples of a session
//! are the same here, or of a relayed one each other's mirror: what is translated
//! belongs to it again. In a phase of two paths, where numbers decide, only the
//! timestamps' differ; the programs write all the same.

use dysco_common::session::{Life, Two};
use dysco_common::{Counter, FlowKey, Path, Session, State, Translation};

use super::frame::{FULL, NOT_TCP, OPENS, Packet, USUAL, WITH_SACK};
use super::programs::{DROP, OK, PASS, REDIRECT, Way, XDP_TX};

/// A translation that changes all there is.
pub const TRANSLATION: Translation = Translation {
    seq_out: 0x1234_5678,
    seq_in: 0x8765_4321,
    ts_out: 1000,
    ts_in: 2000,
    wscale_local: 7,
    wscale_local_far: 7,
    wscale_remote_far: 7,
    wscale_remote: 7,
    flags: 0,
};
/// The same, but for what must stay where it is.
const TIMES: Translation = Translation {
    seq_out: 0,
    seq_in: 0,
    ..TRANSLATION
};

/// A packet's way through a program.
pub struct Spec {
    /// What becomes of it, and by which program where that is not said by the rest.
    pub name: &'static str,
    pub way: Way,
    pub packet: Packet,
    /// Its session, and by which path the packet belongs to it.
    pub entry: Option<(Path, Session)>,
    /// What the program has to say.
    pub verdict: u32,
    /// What it has to count each time.
    pub counter: Option<Counter>,
    /// Whether the neighbour is known that it goes to: the one that it goes to already.
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

    /// Of a session's own five-tuple.
    fn old(self, state: State, translation: Translation) -> Spec {
        self.of(Path::Old, entry(state, translation))
    }

    /// Of its new path.
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

    /// Is it relayed?
    pub fn relays(&self) -> bool {
        let state = self.entry.map(|(_, session)| session.state);
        state == Some(State::Relay as u32)
    }

    /// The five-tuple: each has another. Where a neighbour is known it is for all that
    /// have the same addresses.
    pub fn key(&self, at: usize) -> FlowKey {
        let net = u8::from(self.taught);
        let port = 4000 + at as u16;
        FlowKey::new(([10, 0, net, 1], port).into(), ([10, 0, net, 2], 80).into())
    }

    /// The frame.
    pub fn frame(&self, key: &FlowKey) -> Vec<u8> {
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

/// A session of two paths whose ends have acknowledged all there is: no copies.
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

/// All of them.
pub fn all() -> Vec<Spec> {
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
        // Behind the kernel's look-up, on its way to the interface.
        spec("translated_out_second_way", PASS)
            .new_path(new, TRANSLATION)
            .taught(),
        translated("return_out").old(State::Return, TRANSLATION),
        spec("tombstone_out", DROP)
            .old(State::Tombstone, same)
            .counts(Counter::DroppedTombstone),
        // All that a first one needs, but for a free slot.
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
    // Each run takes one from it.
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
