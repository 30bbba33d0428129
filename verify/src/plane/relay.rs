//! The two joined entries of a host that is both anchors: the effect of the programs (`relay.rs`
//! there) on a packet of a remote end, and on a packet of this host's stack for that end.

use dysco_common::seq::{after, before, max};
use dysco_common::session::life;
use dysco_common::tcp::{ACK, FIN, RST, SYN, Segment};
use dysco_common::two_paths::{self, Anchor};
use dysco_common::{FlowKey, Path, State, Translation};

use super::{Entry, Notice, Packet, edited};
use crate::place::Side;

const REMOTE: Anchor = Anchor::Remote;
/// Bound on the window that the stack announces. Windows are not modelled, but the removal of the
/// bound is.
const CLAMP: u16 = u16::MAX;

/// Both entries of a host.
pub(crate) type Pair = [Option<Entry>; 2];

/// Effects of a packet of an end.
#[derive(Default)]
pub(crate) struct Comes {
    /// Packets for this host's stack or for the other end.
    pub out: Vec<(Goes, Packet)>,
    /// Notices to user space.
    pub tell: Vec<(Side, Notice)>,
}

/// Destination of an end's packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goes {
    /// This host's stack, by the old path.
    Stack,
    /// The other end, by the new path.
    Other,
}

impl Entry {
    /// Models `Agent::clamp_remote`.
    pub fn clamp_remote(&mut self) {
        self.s.clamp_remote = CLAMP;
    }

    /// Models the first part of `Agent::join` for the entry at `side`: sets the translation and the
    /// joined entry.
    pub fn aim(&mut self, side: Side, translation: Translation) {
        self.forget_two();
        self.s.translation = translation;
        self.s.joined = side.other() as u32 + 1;
    }

    /// Models the second part of `Agent::join`: puts the translation in force.
    pub fn join(&mut self) {
        self.s.state = State::RelayTwoPaths as u32;
    }

    /// Models `Agent::unjoin`.
    pub fn unjoin(&mut self) {
        self.s.state = State::Tracked as u32;
        self.forget_two();
        (self.s.clamp_remote, self.s.joined) = (0, 0);
        self.s.translation = Translation::default();
    }

    /// Models `Agent::relay`.
    pub fn relay(&mut self) {
        self.s.state = State::Relay as u32;
        (self.s.clamp, self.s.clamp_remote) = (0, 0);
    }

    /// Forgets the cutoffs of a change whose record is gone, because nothing reads them any more.
    pub(crate) fn forget_change(&mut self) {
        if self.state() == State::Relay {
            self.forget_two();
        }
    }

    /// Processes a packet of this host's stack for the remote end, as that end receives it.
    pub(super) fn stack_says(
        &mut self,
        packet: Packet,
        tell: &mut Vec<Notice>,
        send: &mut impl FnMut(Path, Packet),
    ) {
        if let Some(seg) = two_paths::taught(REMOTE, &self.s, &packet.seg) {
            self.track_out(&seg, tell);
        }
        let delivered = self.deliver_old(REMOTE, packet);
        self.receive_end(REMOTE, delivered.as_ref(), tell);
        if let Some(delivered) = delivered {
            send(Path::Old, delivered);
        }
    }

    fn onto_new_path(&self, packet: Packet) -> Packet {
        let path = FlowKey::default();
        edited(packet, &self.s.translation.outgoing(&packet.seg, &path))
    }

    /// Sequence number up to which data was sent to an end by either path.
    fn sent_to(&self, other: &Entry) -> u32 {
        if self.s.two.new_data == 0 {
            return self.s.snd_max;
        }
        let relayed = (other.s.rcv_max).wrapping_add(other.s.translation.seq_out);
        max(self.s.snd_max, relayed)
    }

    /// True if an unexpected reset is this end's own.
    fn is_its_own(&self, other: &Entry, seg: &Segment) -> bool {
        self.state() == State::RelayTwoPaths
            && two_paths::is_shut_in(REMOTE, &self.s, seg)
            && !before(seg.ack, self.s.rcv_ack)
            && !after(seg.ack, self.sent_to(other))
    }
}

/// Processes an incoming packet of the remote end at this side.
pub(crate) fn comes(pair: &mut Pair, side: Side, packet: Packet) -> Comes {
    let mut comes = Comes::default();
    let [left, right] = pair;
    let (own, other) = match side {
        Side::Left => (left, right),
        Side::Right => (right, left),
    };
    let Some(s) = own else {
        comes.out.push((Goes::Stack, packet));
        return comes;
    };
    let joined = |e: &Entry| e.s.joined == side as u32 + 1;
    let other = other.as_mut().filter(|o| s.s.joined != 0 && joined(o));
    match (s.state(), other) {
        (State::Relay, other) => relays(s, other, side, packet, &mut comes),
        (State::RelayTwoPaths, Some(o)) => from_end(s, o, side, packet, &mut comes),
        (state, _) => {
            let mut tell = Vec::new();
            // The other entry has been taken back, and this entry is about to be.
            let packet = match state {
                State::RelayTwoPaths => {
                    s.track_in(&packet.seg, &mut tell);
                    Some(packet)
                }
                _ => s.ingress_old(packet, &mut tell),
            };
            comes.out.extend(packet.map(|p| (Goes::Stack, p)));
            comes.tell.extend(tell.into_iter().map(|t| (side, t)));
        }
    }
    comes
}

/// Relays a packet when there is no other path.
fn relays(s: &mut Entry, o: Option<&mut Entry>, side: Side, packet: Packet, comes: &mut Comes) {
    let seg = packet.seg;
    if seg.flags & (FIN | RST) != 0
        && let Some(o) = o
    {
        ends(s, o, side, &seg, comes);
    }
    if seg.flags & (SYN | RST) == 0 {
        s.s.rcv_max = max(s.s.rcv_max, seg.end());
        if seg.has(ACK) {
            s.s.rcv_ack = max(s.s.rcv_ack, seg.ack);
        }
    }
    comes.out.push((Goes::Other, s.onto_new_path(packet)));
}

/// Records that an end closes its half, or resets. A reset that the other end cannot believe ends
/// nothing here either.
fn ends(s: &mut Entry, o: &mut Entry, side: Side, seg: &Segment, comes: &mut Comes) {
    if seg.has(RST) {
        let low = (o.s.rcv_ack).wrapping_sub(s.s.translation.seq_out);
        let expected = !before(seg.seq, low) && !after(seg.seq, s.s.rcv_max);
        if !expected && !s.is_its_own(o, seg) {
            return;
        }
        if s.s.life.reset == 0 {
            o.s.life.reset = life::SEEN;
            comes.tell.push((side, Notice::Reset));
        }
        if s.s.life.reset & life::BY_END == 0 {
            s.s.life.reset |= life::SEEN | life::BY_END;
            comes.tell.push((side, Notice::Drained));
        }
        return;
    }
    s.s.life.fin_in |= life::SEEN;
    o.s.life.fin_out |= life::SEEN;
    if two_paths::is_at_cutoff(&s.s, seg) {
        o.s.life.fin_out |= life::AT_CUTOFF;
    }
    if s.s.life.fin_out != 0 && s.s.life.notified == 0 {
        (s.s.life.notified, o.s.life.notified) = (1, 1);
        comes.tell.push((side, Notice::Closed));
    }
}

/// Handles a packet of an end in the two-path phase.
fn from_end(s: &mut Entry, o: &mut Entry, side: Side, packet: Packet, comes: &mut Comes) {
    let seg = packet.seg;
    s.cut_if_due(REMOTE);
    if seg.flags & (FIN | RST) != 0 {
        ends(s, o, side, &seg, comes);
    }
    if !seg.has(RST) {
        let sent = s.sent_to(o);
        s.s.rcv_max = max(s.s.rcv_max, seg.end());
        if seg.has(ACK) && after(seg.ack, s.s.rcv_ack) && !after(seg.ack, sent) {
            s.s.rcv_ack = seg.ack;
        }
    }
    let mut tell = Vec::new();
    let (whole, copy) = s.split(REMOTE, packet, &mut tell);
    comes.tell.extend(tell.into_iter().map(|t| (side, t)));
    // The copy enters again, after the packet.
    for (path, packet) in [whole].into_iter().chain(copy) {
        let goes = match path {
            Path::Old => Some((Goes::Stack, packet)),
            Path::New => {
                let heard = o.receive_new(REMOTE, s.onto_new_path(packet));
                heard.map(|p| (Goes::Other, p))
            }
        };
        comes.out.extend(goes);
    }
}
