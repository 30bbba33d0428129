//! The data plane of one session on one host: the effect of the TC programs on a packet, as far as
//! numbers go. The decisions are the shipped ones of `dysco_common::two_paths`. This module holds
//! only the actions of the programs around these decisions. Windows never close in this model.

use std::hash::{Hash, Hasher};

use dysco_common::seq::{after, max};
use dysco_common::session::life;
use dysco_common::tcp::{ACK, Edit, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor, CLOSES, Cutoff, OldIncoming, VALID};
use dysco_common::{FlowKey, Path, Session, State, Translation};
use dysco_proto::Subsession;

mod announced;
pub mod relay;

/// A segment in flight, and its real payload: the units of the stream from `first` on, whatever its
/// numbers claim.
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

    /// True if the proxy has ended the session, whatever the cutoffs say.
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

    /// Processes a packet of the local end. Calls `send` for each packet and its path.
    pub fn egress(
        &mut self,
        packet: Packet,
        tell: &mut Vec<Notice>,
        send: &mut impl FnMut(Path, Packet),
    ) {
        match self.state() {
            State::Tracked if self.s.clamp_remote != 0 => self.stack_says(packet, tell, send),
            State::Tracked | State::Adopted | State::Opening => {
                self.track_out(&packet.seg, tell);
                send(Path::Old, packet);
            }
            State::RelayTwoPaths => self.stack_says(packet, tell, send),
            State::TwoPaths => self.egress_two_paths(packet, tell, send),
            State::NewPath => {
                self.track_out(&packet.seg, tell);
                send(Path::New, self.translated(packet));
            }
            // No host receives packets of the stack for a relayed session. The last states belong
            // to mode `return`, to chains and to services, which are not explored here.
            State::Tombstone
            | State::Relay
            | State::Return
            | State::Joining
            | State::Switching
            | State::Passing
            | State::Detour
            | State::Held => {}
            State::Free | State::Closed => send(Path::Old, packet),
        }
    }

    fn egress_two_paths(
        &mut self,
        packet: Packet,
        tell: &mut Vec<Notice>,
        send: &mut impl FnMut(Path, Packet),
    ) {
        self.cut_if_due(Anchor::Local);
        self.track_out(&packet.seg, tell);
        let (whole, copy) = self.split(Anchor::Local, packet, tell);
        for (path, packet) in copy.into_iter().chain([whole]) {
            self.send_on(path, packet, send);
        }
    }

    /// Models `paths::cut_if_due`.
    fn cut_if_due(&mut self, at: Anchor) {
        let two = &mut self.s.two;
        if two.cut_armed | two.new_received != 0 && two.cut_set == 0 && self.s.muted == 0 {
            two.cut_set = 1;
            self.s.cut_out = at.snd_max(&self.s);
        }
    }

    /// Splits a segment of the end that the anchor acts for: returns its path, and the copy for the
    /// other path.
    fn split(
        &mut self,
        at: Anchor,
        packet: Packet,
        tell: &mut Vec<Notice>,
    ) -> ((Path, Packet), Option<(Path, Packet)>) {
        let seg = packet.seg;
        two_paths::acknowledge(&mut self.s, &seg);
        two_paths::record_window(at, &mut self.s, &seg);
        if two_paths::drains(&self.s, &seg) {
            self.s.two.drained = 1;
            tell.push(Notice::Drained);
        }
        let out = two_paths::outgoing(at, &self.s, &seg);
        let copy = out.copy.map(|copy| {
            let header = Segment {
                seq: copy.seq,
                ack: copy.ack,
                flags: copy.flags,
                len: 0,
                ..seg
            };
            if copy.flags & ACK != 0 {
                self.remember_ack(copy.path, copy.ack);
            }
            let first = packet.first;
            (copy.path, Packet { seg: header, first })
        });
        if seg.has(ACK) {
            self.remember_ack(out.path, out.ack);
        }
        let seg = Segment {
            seq: out.seq,
            ack: out.ack,
            ..seg
        };
        ((out.path, Packet { seg, ..packet }), copy)
    }

    fn send_on(&self, path: Path, packet: Packet, send: &mut impl FnMut(Path, Packet)) {
        match path {
            Path::Old => send(path, packet),
            Path::New => send(path, self.translated(packet)),
        }
    }

    fn translated(&self, packet: Packet) -> Packet {
        let edit = self
            .s
            .translation
            .outgoing(&packet.seg, &FlowKey::default());
        edited(packet, &edit)
    }

    fn track_out(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
        self.s.snd_max = max(self.s.snd_max, seg.end());
        if seg.has(ACK) {
            self.s.snd_ack = max(self.s.snd_ack, seg.ack);
        }
        if seg.has(RST) {
            self.s.life.reset |= life::SEEN | life::BY_END;
            tell.extend([Notice::Reset, Notice::Drained]);
        } else if seg.has(FIN) {
            self.s.life.fin_out |= life::SEEN | life::OLD_PATH;
        }
        self.notify_end(tell);
    }

    fn notify_end(&mut self, tell: &mut Vec<Notice>) {
        if self.s.life.fin_out & self.s.life.fin_in != 0 && self.s.life.notified == 0 {
            self.s.life.notified = 1;
            tell.push(Notice::Closed);
        }
    }

    fn track_in(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
        self.ends(seg, tell);
        if seg.has(RST) {
            return;
        }
        if seg.has(FIN) {
            self.s.life.fin_in |= life::OLD_PATH;
        }
        self.s.rcv_max = max(self.s.rcv_max, seg.end());
        if seg.has(ACK) && after(seg.ack, self.s.rcv_ack) && !after(seg.ack, self.s.snd_max) {
            self.s.rcv_ack = seg.ack;
        }
    }

    fn ends(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
        if seg.has(RST) {
            self.s.life.reset |= life::SEEN;
            tell.push(Notice::Reset);
        } else if seg.has(FIN) {
            self.s.life.fin_in |= life::SEEN;
        }
    }

    fn remember_ack(&mut self, path: Path, ack: u32) {
        let (set, held) = match path {
            Path::Old => (&mut self.s.two.old_ack_set, &mut self.s.old_ack),
            Path::New => (&mut self.s.two.new_ack_set, &mut self.s.new_ack),
        };
        *held = if *set & VALID != 0 {
            max(*held, ack)
        } else {
            ack
        };
        *set |= VALID;
    }

    /// Returns what the local end receives of a packet on the session's own five-tuple.
    pub fn ingress_old(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
        match self.state() {
            State::Tracked | State::Adopted | State::Opening => {
                self.track_in(&packet.seg, tell);
                if self.s.clamp > 0 {
                    self.deliver_old(Anchor::Local, packet)
                } else {
                    Some(packet)
                }
            }
            State::TwoPaths => {
                if let Some(seg) = two_paths::taught(Anchor::Local, &self.s, &packet.seg) {
                    self.track_in(&seg, tell);
                }
                let notify_end = self.deliver_old(Anchor::Local, packet);
                self.receive_end(Anchor::Local, notify_end.as_ref(), tell);
                notify_end
            }
            // Far anchors process the packets of their ends elsewhere.
            State::NewPath
            | State::Tombstone
            | State::RelayTwoPaths
            | State::Relay
            | State::Return
            | State::Joining
            | State::Switching
            | State::Passing
            | State::Detour
            | State::Held => None,
            State::Free | State::Closed => Some(packet),
        }
    }

    fn deliver_old(&self, at: Anchor, packet: Packet) -> Option<Packet> {
        match two_paths::old_incoming(at, &self.s, &packet.seg, 0) {
            OldIncoming::Deliver(seg) => Some(Packet { seg, ..packet }),
            OldIncoming::Drop | OldIncoming::Withhold => None,
        }
    }

    /// Returns what the local end receives of a packet on the new path.
    pub fn ingress_new(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
        if self.state() == State::TwoPaths && !two_paths::is_live(&self.s, &packet.seg) {
            return None;
        }
        self.ingress_any(packet, tell)
    }

    /// Processes the packet whether the path is open or not.
    pub fn ingress_any(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
        let two = match self.state() {
            State::TwoPaths if self.s.muted != 0 => return None,
            State::TwoPaths => true,
            State::NewPath => false,
            _ => return None,
        };
        let edit = self
            .s
            .translation
            .incoming(&packet.seg, &FlowKey::default());
        let packet = edited(packet, &edit);
        self.ends(&packet.seg, tell);
        if !two {
            return Some(packet);
        }
        if !packet.seg.has(RST) && two_paths::record_announced(&mut self.s, packet.seg.end()) {
            tell.push(Notice::Drained);
        }
        self.receive_new(Anchor::Local, packet)
    }

    /// Models `paths::receive`: returns what the end receives of a segment on the new path.
    fn receive_new(&mut self, at: Anchor, mut packet: Packet) -> Option<Packet> {
        let seg = packet.seg;
        let judged = two_paths::new_incoming(at, &self.s, &seg, 0);
        let s = &mut self.s;
        two_paths::record_live(s, &seg);
        if !seg.has(RST) {
            two_paths::record_data(at, s, &seg);
            if seg.has(ACK) {
                two_paths::record_peer_ack(at, s, seg.ack, &judged);
            }
        }
        packet.seg.ack = judged.ack;
        packet.seg.window = judged.window;
        judged.deliver.then_some(packet)
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
