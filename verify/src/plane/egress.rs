//! Packets of the local end.

use dysco_common::seq::max;
use dysco_common::session::life;
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor, VALID};
use dysco_common::{FlowKey, Path, State};

use super::{Entry, Notice, Packet, edited};

impl Entry {
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

    pub(super) fn egress_two_paths(
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
    pub(super) fn cut_if_due(&mut self, at: Anchor) {
        let two = &mut self.s.two;
        if two.cut_armed | two.new_received != 0 && two.cut_set == 0 && self.s.muted == 0 {
            two.cut_set = 1;
            self.s.cut_out = at.snd_max(&self.s);
        }
    }

    /// Splits a segment of the end that the anchor acts for: returns its path, and the copy for the
    /// other path.
    pub(super) fn split(
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

    pub(super) fn send_on(&self, path: Path, packet: Packet, send: &mut impl FnMut(Path, Packet)) {
        match path {
            Path::Old => send(path, packet),
            Path::New => send(path, self.translated(packet)),
        }
    }

    pub(super) fn translated(&self, packet: Packet) -> Packet {
        let edit = self
            .s
            .translation
            .outgoing(&packet.seg, &FlowKey::default());
        edited(packet, &edit)
    }

    pub(super) fn track_out(&mut self, seg: &Segment, tell: &mut Vec<Notice>) {
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

    pub(super) fn remember_ack(&mut self, path: Path, ack: u32) {
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
}
