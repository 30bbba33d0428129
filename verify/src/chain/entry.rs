//! The entry of one path of a session in an anchor's data plane: the effect of the programs on a
//! segment, as far as numbers go. The shipped decision (`dysco_common::two_paths`) determines the
//! path that a segment takes and what may be acknowledged there. This module holds only the actions
//! of the programs around that decision. Windows never close.

use std::hash::{Hash, Hasher};

use dysco_common::seq::{after, max, min};
use dysco_common::session::{Two, part};
use dysco_common::tcp::{ACK, FIN, PSH, Segment};
use dysco_common::two_paths::{Anchor, least_carried};
use dysco_common::two_paths::{
    Leaving, carries_all, has_old, is_live_beside, leaving, opens_windows,
};
use dysco_common::{Delta, FlowKey, Session, State};

use crate::plane::{Packet, edited};
use crate::socket::Base;

/// An entry as the programs have it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The session entry.
    pub s: Session,
}

/// Packets that an anchor sends for one segment of its end.
pub enum Sent {
    /// The whole segment leaves by the path that is taken.
    Taken(Packet),
    /// The whole segment leaves by the path before.
    Before(Packet),
    /// The acknowledgement leaves by the path before, if it is news there; the rest leaves by the
    /// path that is taken.
    Both(Option<Packet>, Packet),
}

impl Entry {
    /// Entry of the path that a session began with: a chain's path, or the direct one.
    pub fn opened(base: &Base, opened_here: bool, chained: bool) -> Entry {
        let mut s = Session {
            snd_max: base.out,
            snd_ack: base.into,
            rcv_max: base.into,
            rcv_ack: base.out,
            ..Session::default()
        };
        s.life.opened_here = opened_here.into();
        (s.state, s.two.chained) = match chained {
            true => (State::NewPath as u32, 2),
            false => (State::Tracked as u32, 0),
        };
        Entry { s }
    }

    /// Models `Agent::add_path` and `lead_beyond`.
    pub fn beside(&self) -> Entry {
        let two = Two {
            chained: 2,
            part: part::NEXT,
            ..Two::default()
        };
        let s = Session {
            state: State::Joining as u32,
            translation: self.s.carried(),
            two,
            ..self.s
        };
        Entry { s }
    }

    /// Models `Agent::lead_beyond`.
    pub fn lead_beyond(&mut self, delta: &Delta) {
        self.s.translation = self.s.translation.beyond(delta);
    }

    /// Models `Memory::take_over`.
    pub fn take_over(&mut self, from: &Entry) {
        let (s, from) = (&mut self.s, &from.s);
        (s.bytes_out, s.snd_max, s.snd_ack) = (from.bytes_out, from.snd_max, from.snd_ack);
    }

    /// Models `Memory::share_life`.
    pub fn share_life(&mut self, from: &Entry) {
        let (life, from) = (&mut self.s.life, &from.s.life);
        life.fin_out |= from.fin_out;
        life.fin_in |= from.fin_in;
    }

    /// True if the entry is in this state.
    pub fn is(&self, state: State) -> bool {
        self.s.state == state as u32
    }

    /// Makes the path the session's only one, again or for the first time.
    pub fn remain(&mut self) {
        if self.is(State::Switching) {
            self.s.state = State::NewPath as u32;
            self.s.two.part = part::CURRENT;
        }
    }

    /// Models `Agent::settle_path`.
    pub(crate) fn settles(&mut self, peer_cutoff: u32) -> bool {
        let s = &mut self.s;
        (s.cut_in, s.two.cut_in_set) = (peer_cutoff, 1);
        let acked = has_old(Anchor::Local, s, peer_cutoff);
        acked && carries_all(s) && !after(s.snd_ack, s.rcv_max)
    }

    /// Returns the packet that shows the path's firewalls how far this end has sent.
    pub fn primer(&self) -> Packet {
        let seg = Segment {
            seq: self.s.sent_on_wire(self.s.snd_max),
            ack: self.s.received_on_wire(self.s.rcv_max),
            flags: ACK | PSH,
            len: 0,
            window: u16::MAX,
        };
        Packet { seg, first: 0 }
    }

    /// True if the other end has acknowledged everything that this end has shown or may show.
    pub(crate) fn is_heard(&self) -> bool {
        !after(self.s.snd_max, self.s.rcv_ack)
    }

    /// Models `second_path::leaves`, and the action of the programs on a session with one path.
    pub fn sends(&mut self, packet: Packet) -> Sent {
        self.track(&packet.seg);
        if !self.is(State::Switching) {
            return Sent::Taken(self.translated(packet));
        }
        let s = &mut self.s;
        s.rcv_max = max(s.rcv_max, least_carried(s, &packet.seg));
        match leaving(s, &packet.seg) {
            Leaving::New => Sent::Taken(self.translated(packet)),
            Leaving::Before => Sent::Before(packet),
            Leaving::Split => {
                let copy = self.acknowledgement(&packet);
                let seg = Segment {
                    ack: min(packet.seg.ack, self.s.rcv_max),
                    ..packet.seg
                };
                Sent::Both(copy, self.translated(Packet { seg, ..packet }))
            }
        }
    }

    /// Models `second_path::acknowledge_before`.
    fn acknowledgement(&mut self, packet: &Packet) -> Option<Packet> {
        let s = &mut self.s;
        if s.two.old_ack_set != 0 && !after(packet.seg.ack, s.old_ack) {
            return None;
        }
        (s.old_ack, s.two.old_ack_set) = (packet.seg.ack, 1);
        let seg = Segment {
            flags: ACK,
            len: 0,
            ..packet.seg
        };
        Some(Packet { seg, ..*packet })
    }

    /// Models `egress::track`.
    fn track(&mut self, seg: &Segment) {
        let s = &mut self.s;
        if after(seg.end(), s.snd_max) {
            s.bytes_out += u64::from(seg.end().wrapping_sub(s.snd_max));
            s.snd_max = seg.end();
        }
        if seg.has(ACK) {
            s.snd_ack = max(s.snd_ack, seg.ack);
        }
        if seg.has(FIN) {
            s.life.fin_out = 1;
        }
    }

    /// Returns true once when both FINs have passed.
    pub(crate) fn has_closed(&mut self) -> bool {
        let life = &mut self.s.life;
        let news = life.fin_out & life.fin_in != 0 && life.notified == 0;
        life.notified |= u8::from(news);
        news
    }

    /// Returns a segment as the path's wire has it.
    pub fn translated(&self, packet: Packet) -> Packet {
        let t = &self.s.translation;
        edited(packet, &t.outgoing(&packet.seg, &FlowKey::default()))
    }

    /// Translates a segment off the path's wire. Returns none if the segment is for firewalls only.
    /// A host of the chain forwards such segments, unless they open the path.
    pub fn hears(&mut self, packet: Packet, passes_on: bool) -> Option<Packet> {
        let edit = (self.s.translation).incoming(&packet.seg, &FlowKey::default());
        let packet = edited(packet, &edit);
        let primer = opens_windows(&packet.seg) && self.may_be_announced();
        let one_path = self.is(State::NewPath);
        let s = &mut self.s;
        if primer {
            s.rcv_max = max(s.rcv_max, packet.seg.end());
            s.rcv_ack = packet.seg.ack;
            return (passes_on && one_path).then_some(packet);
        }
        s.rcv_max = max(s.rcv_max, packet.seg.end());
        if packet.seg.has(FIN) {
            s.life.fin_in = 1;
        }
        Some(packet)
    }

    /// True if a packet that shows firewalls something may arrive on this path. On other paths such
    /// a packet belongs to a stack.
    fn may_be_announced(&self) -> bool {
        !self.is(State::Tracked) || self.s.two.new_received != 0
    }

    /// True if the path of the packet may deliver it. A packet shown to firewalls is always
    /// delivered.
    pub fn is_live(&self, packet: &Packet) -> bool {
        let between = self.is(State::Joining) || self.is(State::Switching);
        !between || opens_windows(&packet.seg) || is_live_beside(&self.s, &packet.seg)
    }

    /// True if `dysco_follow` may take the path.
    pub(crate) fn may_follow(&self) -> bool {
        let s = &self.s;
        self.is(State::Joining) && s.life.opened_here == 0 && s.two.part == part::NEXT
    }
}

/// Hashes what later behaviour depends on.
impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Session { life, two, .. } = &self.s;
        let s = &self.s;
        (s.state, life.fin_out, life.fin_in, life.notified).hash(state);
        (s.snd_max, s.snd_ack, s.rcv_max, s.rcv_ack).hash(state);
        (two.part, two.new_received, two.old_ack_set).hash(state);
        s.translation.seq_out.hash(state);
        if two.old_ack_set != 0 {
            s.old_ack.hash(state);
        }
        s.translation.seq_in.hash(state);
    }
}
