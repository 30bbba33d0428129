//! A TCP socket: of an end, or of a handler. Acknowledgements, windows, retransmission, and bytes
//! that come out of order.

use dysco_common::seq::{after, before, max};
use dysco_common::tcp::{ACK, FIN, RST, Segment};

/// Window that each socket announces: more than any stream here takes.
const ROOM: u32 = 8;

/// A byte: its place in the sender's stream, and what handlers did with it.
pub(super) type Byte = u8;

/// A handler has changed the byte. Between two handlers, it is a ciphertext.
pub(crate) const HANDLED: Byte = 0x80;
/// A handler has added the byte. At both ends, a handler has decrypted it.
pub(super) const ADDED: Byte = 0x40;

/// A segment with its bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Packet {
    /// First sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window, not scaled.
    pub window: u16,
    /// Flags.
    pub flags: u8,
    /// Payload.
    pub bytes: Vec<Byte>,
}

impl Packet {
    /// Returns the header.
    pub fn segment(&self) -> Segment {
        Segment {
            seq: self.seq,
            ack: self.ack,
            len: self.bytes.len() as u32,
            window: self.window,
            flags: self.flags,
        }
    }
}

/// A segment that a socket sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Say {
    /// The next byte, or the FIN.
    New,
    /// The first byte that is not acknowledged.
    Again,
    /// All bytes that are not acknowledged, and one that was not sent before if there is one.
    AllAgain,
    /// An acknowledgement that is owed, or the reset that answers data after a reset.
    Ack,
}

/// A fault that a socket has noticed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Harm {
    /// Bytes were acknowledged that it has not sent.
    AckOfUnsent,
    /// Two different bytes, or two ends, have the same number.
    TwoBytes,
}

/// A socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tcp {
    /// Number of the first byte that it sends.
    pub first: u32,
    una: u32,
    next: u32,
    edge: u32,
    /// Bytes to send, from the first one on.
    pub sends: Vec<Byte>,
    /// True if a FIN follows the bytes.
    pub ends: bool,
    into: u32,
    /// Last number that the socket has acknowledged.
    said: u32,
    early: Vec<(u8, Byte)>,
    /// Bytes that have come, from the first one on.
    pub got: Vec<Byte>,
    end: Option<u8>,
    owes: bool,
    /// True if the socket was reset.
    pub dead: bool,
}

impl Tcp {
    /// Creates a socket that sends from the number `first` on, and receives from `into` on.
    pub fn new(first: u32, into: u32) -> Tcp {
        Tcp {
            first,
            una: first,
            next: first,
            edge: first.wrapping_add(ROOM),
            into,
            said: into,
            ..Tcp::default()
        }
    }

    /// Number of units that it has sent and that are not acknowledged.
    fn unacknowledged(&self) -> u32 {
        self.next.wrapping_sub(self.una)
    }

    /// True if it has sent bytes that are not acknowledged.
    pub fn waits(&self) -> bool {
        !self.dead && self.unacknowledged() > 0
    }

    /// True if everything that it has to send was acknowledged.
    pub(crate) fn is_heard(&self) -> bool {
        let all = self.sends.len() as u32 + u32::from(self.ends);
        self.una == self.first.wrapping_add(all)
    }

    /// True if the FIN of the other side and all bytes before it have come.
    pub fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| end as usize == self.got.len())
    }

    /// Next number that it expects.
    fn awaits(&self) -> u32 {
        let taken = self.got.len() as u32 + u32::from(self.has_ended());
        self.into.wrapping_add(taken)
    }

    /// Returns a segment, if there is reason for it.
    pub fn say(&mut self, what: Say) -> Option<Packet> {
        if self.dead {
            let answers = what == Say::Ack && std::mem::take(&mut self.owes);
            return answers.then(|| self.reset());
        }
        let units = self.sends.len() as u32 + u32::from(self.ends);
        let last = self.first.wrapping_add(units);
        let new = before(self.next, last) && before(self.next, self.edge);
        let (seq, end) = match what {
            Say::New if new => (self.next, self.next.wrapping_add(1)),
            Say::Again if self.unacknowledged() > 0 => (self.una, self.una.wrapping_add(1)),
            Say::AllAgain if self.unacknowledged() + u32::from(new) > 1 && self.waits() => {
                (self.una, self.next.wrapping_add(u32::from(new)))
            }
            Say::Ack if self.owes => (self.next, self.next),
            _ => return None,
        };
        self.next = max(self.next, end);
        self.owes = false;
        self.said = self.awaits();
        let from = seq.wrapping_sub(self.first) as usize;
        let to = end.wrapping_sub(self.first) as usize;
        let fin = to > self.sends.len() && to > from;
        let bytes = self.sends[from.min(self.sends.len())..to.min(self.sends.len())].to_vec();
        Some(Packet {
            seq,
            ack: self.said,
            window: ROOM as u16,
            flags: if fin { ACK | FIN } else { ACK },
            bytes,
        })
    }

    /// Resets the connection. Returns the RST segment.
    pub fn reset(&mut self) -> Packet {
        self.dead = true;
        Packet {
            seq: self.next,
            ack: self.awaits(),
            window: 0,
            flags: ACK | RST,
            bytes: Vec::new(),
        }
    }

    /// Receives a segment.
    ///
    /// # Errors
    /// The fault that it shows.
    pub fn hear(&mut self, packet: &Packet) -> Result<(), Harm> {
        let seg = packet.segment();
        if self.dead {
            self.owes |= !seg.has(RST);
            return Ok(());
        }
        if seg.has(RST) {
            self.dead = true;
            self.owes = false;
            return Ok(());
        }
        // A segment outside the window is answered, and not read (`tcp_sequence`,
        // net/ipv4/tcp_input.c).
        if before(seg.end(), self.said) || after(seg.seq, self.awaits().wrapping_add(ROOM)) {
            self.owes = true;
            return Ok(());
        }
        if after(seg.ack, self.next) {
            return Err(Harm::AckOfUnsent);
        }
        if !before(seg.ack, self.una) {
            self.una = seg.ack;
            let edge = seg.ack.wrapping_add(u32::from(seg.window));
            self.edge = max(self.edge, edge);
        }
        self.owes |= seg.span() > 0;
        self.take(packet)
    }

    fn take(&mut self, packet: &Packet) -> Result<(), Harm> {
        let seg = packet.segment();
        let place = seg.seq.wrapping_sub(self.into);
        for (i, byte) in (0..).zip(&packet.bytes) {
            let at = place.wrapping_add(i);
            // Delivered bytes are not compared: after a handler has left, the sender
            // retransmits them as they were before the services.
            if at > u32::from(u8::MAX) || (at as usize) < self.got.len() {
                continue;
            }
            match self.early.iter().find(|(had, _)| u32::from(*had) == at) {
                Some((_, had)) if had != byte => return Err(Harm::TwoBytes),
                Some(_) => {}
                None => self.early.push((at as u8, *byte)),
            }
        }
        if seg.has(FIN) {
            let at = seg.end().wrapping_sub(1).wrapping_sub(self.into);
            if self.end.is_some_and(|end| u32::from(end) != at) {
                return Err(Harm::TwoBytes);
            }
            // A FIN before the first byte that the socket receives is an old one.
            self.end = u8::try_from(at).ok();
        }
        self.early.sort_unstable();
        while let Some(&(at, byte)) = self.early.first()
            && usize::from(at) == self.got.len()
        {
            self.early.remove(0);
            self.got.push(byte);
        }
        Ok(())
    }

    /// Makes the socket send an acknowledgement, as a keep-alive does.
    pub fn probes(&mut self) {
        self.owes = true;
    }

    /// Numbers of units that it has sent, and that were acknowledged.
    pub fn progress(&self) -> (u32, u32) {
        let of = |number: u32| number.wrapping_sub(self.first);
        (of(self.next), of(self.una))
    }
}
