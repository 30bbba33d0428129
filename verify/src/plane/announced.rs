//! Packets that the data planes exchange on the new path of a removal: each shows the number up to
//! which its end has sent by the proxy. No socket receives these packets.

use dysco_common::State;
use dysco_common::tcp::{ACK, PSH, Segment};
use dysco_common::two_paths;

use super::{Entry, Notice};

impl Entry {
    /// Models `Engine::announce_cut`: the packet that the left anchor sends, in numbers of the new
    /// path.
    pub fn announcement(&self) -> Option<Segment> {
        let s = &self.s;
        let cut = self.state() == State::TwoPaths && s.two.cut_set != 0;
        cut.then(|| Segment {
            seq: s.sent_on_wire(s.cut_out),
            ack: s.received_on_wire(s.peer_sent_max),
            len: 0,
            window: u16::MAX,
            flags: ACK | PSH,
        })
    }

    /// Models `ingress::opening` at the right anchor, and returns its answer.
    pub(crate) fn receive_announcement(
        &mut self,
        announcement: &Segment,
        tell: &mut Vec<Notice>,
    ) -> Option<Segment> {
        if self.state() != State::TwoPaths || self.s.muted != 0 {
            return None;
        }
        if two_paths::record_opening(&mut self.s, announcement) {
            tell.push(Notice::Drained);
        }
        let answer = two_paths::answer_opening(&self.s, announcement);
        Some(Segment {
            seq: answer.seq,
            ack: answer.ack,
            flags: answer.flags,
            ..*announcement
        })
    }

    /// Models `ingress::answered` at the left anchor.
    pub fn is_answered(&mut self, answer: &Segment, tell: &mut Vec<Notice>) {
        if self.state() != State::TwoPaths || self.s.muted != 0 {
            return;
        }
        let to = self.s.received_off_wire(answer.seq);
        if two_paths::record_announced(&mut self.s, to) {
            tell.push(Notice::Drained);
        }
    }
}
