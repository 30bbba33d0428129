//! Packets for the local end.

use dysco_common::seq::{after, max};
use dysco_common::session::life;
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor, OldIncoming};
use dysco_common::{FlowKey, State};

use super::{Entry, Notice, Packet, edited};

impl Entry {
    pub(super) fn track_in(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
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

    pub(super) fn ends(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
        if seg.has(RST) {
            self.s.life.reset |= life::SEEN;
            tell.push(Notice::Reset);
        } else if seg.has(FIN) {
            self.s.life.fin_in |= life::SEEN;
        }
    }

    /// Returns what the local end receives of a packet on the session's own five-tuple.
    pub(crate) fn ingress_old(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
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

    pub(super) fn deliver_old(&self, at: Anchor, packet: Packet) -> Option<Packet> {
        match two_paths::old_incoming(at, &self.s, &packet.seg, 0) {
            OldIncoming::Deliver(seg) => Some(Packet { seg, ..packet }),
            OldIncoming::Drop | OldIncoming::Withhold => None,
        }
    }

    /// Returns what the local end receives of a packet on the new path.
    pub(crate) fn ingress_new(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
        if self.state() == State::TwoPaths && !two_paths::is_live(&self.s, &packet.seg) {
            return None;
        }
        self.ingress_any(packet, tell)
    }

    /// Processes the packet whether the path is open or not.
    pub(crate) fn ingress_any(&mut self, packet: Packet, tell: &mut Vec<Notice>) -> Option<Packet> {
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
    pub(super) fn receive_new(&mut self, at: Anchor, mut packet: Packet) -> Option<Packet> {
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
