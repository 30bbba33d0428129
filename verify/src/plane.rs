//! The data plane of one session on one host: the effect of the TC programs on a packet, as far as
//! numbers go. The decisions are the shipped ones of `dysco_common::two_paths`. This module holds
//! only the actions of the programs around these decisions. Windows never close in this model.

use std::hash::{Hash, Hasher};

use dysco_common::session::life;
use dysco_common::tcp::{Edit, Segment};
use dysco_common::two_paths::{self, Anchor, CLOSES, Cutoff};
use dysco_common::{Session, State, Translation};
use dysco_proto::Subsession;

mod announced;
mod egress;
mod ingress;
pub(crate) mod relay;

/// A segment in flight, and its real payload: the units of the stream from `first` on, even if its
/// numbers claim otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Header of the segment.
    pub seg: Segment,
    /// Index of its first unit.
    pub first: u8,
}

/// A notice of the programs to user space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Notice {
    /// Both FINs have passed.
    Closed,
    /// A reset has passed.
    Reset,
    /// The local end has acknowledged all data of the old path.
    Drained,
    /// The proxy has ended the session while two paths were in use.
    Broken,
}

/// A session's entry, and the new subsession that it is prepared for.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The entry as the programs have it.
    pub s: Session,
    /// The new path, from the two-path phase on.
    pub path: Option<Subsession>,
}

impl Entry {
    /// Entry of an open session. `local` and `remote` are the next numbers of this end and of the
    /// other end.
    pub fn tracked(local: u32, remote: u32) -> Entry {
        let s = Session {
            state: State::Tracked as u32,
            snd_max: local,
            snd_ack: remote,
            rcv_max: remote,
            rcv_ack: local,
            ..Session::default()
        };
        Entry { s, path: None }
    }

    /// Returns the state of the entry.
    pub fn state(&self) -> State {
        State::from_word(self.s.state).unwrap_or(State::Free)
    }

    /// True if the new path has been used.
    pub fn used(&self) -> bool {
        self.s.two.cut_armed | self.s.two.cut_set | self.s.two.new_received != 0
    }

    /// Models `Agent::prepare`, and the number that the following SYN shows: at least what the
    /// proxy has sent at that time.
    pub fn prepare(&mut self, new: Subsession, translation: Translation) {
        self.s.translation = translation;
        self.s.two = Default::default();
        self.s.cut_out = self.s.snd_max;
        let sent = self.s.rcv_max;
        two_paths::record_announced(&mut self.s, sent);
        self.s.state = State::TwoPaths as u32;
        self.path = Some(new);
    }

    /// Models `Agent::unprepare`.
    pub fn unprepare(&mut self) {
        self.s.state = State::Tracked as u32;
        self.s.clamp = 0;
        self.forget_two();
        self.path = None;
    }

    /// Models `Memory::cut`.
    pub fn cut(&mut self, at: Anchor) -> Cutoff {
        self.s.two.cut_armed = 1;
        self.cut_if_due(at);
        two_paths::cutoff(at, &self.s)
    }

    /// Models `Memory::set_cut_in`.
    pub fn set_cut_in(&mut self, cutoff: Cutoff, at: Anchor) -> bool {
        self.s.cut_in = cutoff.at;
        self.s.two.cut_in_set = 1 | if cutoff.closes { CLOSES } else { 0 };
        if two_paths::has_old(at, &self.s, cutoff.at) {
            self.s.two.drained = 1;
        }
        self.is_drained()
    }

    /// Models `Agent::break_off`.
    pub fn break_off(&mut self) {
        self.s.life.reset |= life::SEEN | life::BY_MIDDLEBOX;
    }

    /// True if the proxy has ended the session, regardless of the cutoffs.
    pub fn is_broken(&self, at: Anchor) -> bool {
        two_paths::is_broken(&self.s) || two_paths::closed_before(at, &self.s)
    }

    /// Models `ingress::was_broken`, for a packet of the old path that the end receives.
    fn receive_end(&mut self, at: Anchor, notify_end: Option<&Packet>, tell: &mut Vec<Notice>) {
        let breaks = notify_end.is_some_and(|p| two_paths::breaks(at, &self.s, &p.seg));
        if breaks && !two_paths::is_broken(&self.s) {
            self.break_off();
            tell.push(Notice::Broken);
        }
    }

    /// Models `Engine::is_drained`.
    pub fn is_drained(&self) -> bool {
        let drained = self.s.two.drained != 0 && two_paths::has_announced_all(&self.s);
        drained || two_paths::has_reset(&self.s)
    }

    /// Models `Agent::mute`.
    pub fn mute(&mut self) -> bool {
        let muted = self.state() == State::TwoPaths
            && self.s.life.reset == 0
            && !two_paths::has_carried(&self.s);
        self.s.muted = u8::from(muted);
        muted
    }

    /// Models `Agent::take_back`.
    pub fn take_back(&mut self) {
        let two = &mut self.s.two;
        (two.cut_armed, two.new_received, two.cut_in_set) = (0, 0, 0);
        (two.drained, two.edge_set, two.cut_set) = (0, 0, 0);
        self.s.muted = 1;
    }

    /// Models `Agent::complete`.
    pub fn complete(&mut self) {
        self.s.state = State::NewPath as u32;
        self.forget_two();
    }

    /// Clears fields that no program reads outside two paths, so that equal states look equal.
    fn forget_two(&mut self) {
        let s = &mut self.s;
        s.two = Default::default();
        (s.cut_out, s.cut_in, s.edge, s.peer_ack) = (0, 0, 0, 0);
        (s.new_low, s.old_ack, s.new_ack) = (0, 0, 0);
        (s.muted, s.peer_sent_max) = (0, 0);
    }

    fn notify_end(&mut self, tell: &mut Vec<Notice>) {
        if self.s.life.fin_out & self.s.life.fin_in != 0 && self.s.life.notified == 0 {
            self.s.life.notified = 1;
            tell.push(Notice::Closed);
        }
    }
}

pub(crate) fn edited(packet: Packet, edit: &Edit) -> Packet {
    let seg = Segment {
        seq: edit.seq,
        ack: edit.ack,
        window: edit.window,
        flags: edit.flags,
        ..packet.seg
    };
    Packet { seg, ..packet }
}

/// Hashes what later behaviour depends on.
impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Session { life, two, .. } = &self.s;
        let s = &self.s;
        (
            s.state,
            life.fin_out,
            life.fin_in,
            life.reset,
            life.notified,
        )
            .hash(state);
        (s.clamp, s.clamp_remote, s.joined, s.muted).hash(state);
        if self.state() != State::Relay {
            (s.snd_max, s.snd_ack).hash(state);
        }
        if self.state() != State::NewPath {
            (s.rcv_max, s.rcv_ack).hash(state);
        }
        let (cut, heard) = (
            (two.cut_armed, two.cut_set),
            (two.new_received, two.edge_set),
        );
        (cut, heard, two.cut_in_set, two.drained, two.new_data).hash(state);
        (two.old_ack_set, two.new_ack_set, s.cut_out, s.cut_in).hash(state);
        (s.edge, s.peer_ack, s.new_low, s.old_ack, s.new_ack).hash(state);
        (self.path, s.peer_sent_max).hash(state);
    }
}
