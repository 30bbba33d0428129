//! One TCP socket: what it has sent, what was acknowledged to it, and what it has received. A unit
//! is a byte or the FIN; units are counted from the stream's start.

use dysco_common::tcp::{ACK, FIN, RST, Segment};

use crate::plane::Packet;

/// Initial numbers of the two directions of one session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Base {
    /// Number of the first unit that this end sends.
    pub out: u32,
    /// Number of the first unit that this end receives.
    pub into: u32,
}

/// An event that TCP must never see.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Harm {
    /// An acknowledgement of data that this socket never sent.
    AckOfUnsent,
    /// A unit under another unit's number.
    WrongBytes,
    /// A clean end of a stream, after a cutover, although units of the stream are missing.
    CutShort,
    /// A reset by a device on a path that was never taken.
    Rejected,
}

/// End of a socket whose process has died, as the kernel performs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Death {
    /// The kernel sends the send queue, which ends before this unit, and a FIN.
    Fin(u8),
    /// The kernel sends a reset.
    Reset,
}

/// State of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Socket {
    /// First unit that is not acknowledged.
    pub una: u8,
    /// First unit that was never sent.
    pub nxt: u8,
    /// First unit that has not arrived.
    pub rcv: u8,
    /// Value of `rcv` that the socket has acknowledged last.
    announced: u8,
    /// True if a unit arrived that the socket already has: only a pure acknowledgement answers it.
    answers: bool,
    /// Units that arrived beyond a hole, as a bit set.
    beyond: u16,
    /// True if data arrived that is not acknowledged.
    pub owes: bool,
    /// True if the socket was closed without a packet, or reset.
    pub dead: bool,
    /// True if the socket was reset.
    pub reset: bool,
    /// Set if the process has died: the stream that the kernel still sends ends before this unit.
    pub closed: Option<u8>,
    /// True if the kernel owes a reset: the process has died, and data has arrived since.
    pub refuses: bool,
}

/// A segment that a socket sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Say {
    /// The next unit.
    New,
    /// A retransmission of the first unit that is not acknowledged.
    Again,
    /// A retransmission of all units that are not acknowledged, in one segment.
    AllAgain,
    /// An acknowledgement.
    Ack,
    /// A reset.
    Reset,
}

impl Socket {
    /// Returns the segment, if there is reason for it. `available` is the number of units that the
    /// socket has been given to send. `bytes` is the number of the stream's units that are bytes;
    /// the next unit is the FIN.
    pub fn say(&mut self, what: Say, base: &Base, available: u8, bytes: u8) -> Option<Packet> {
        if self.dead && !self.refuses {
            return None;
        }
        let (first, end) = match what {
            _ if self.dead && what != Say::Reset => return None,
            Say::New if self.nxt < available => {
                self.nxt += 1;
                (self.nxt - 1, self.nxt)
            }
            Say::Again if self.una < self.nxt => (self.una, self.una + 1),
            Say::AllAgain if self.una + 1 < self.nxt => (self.una, self.nxt),
            Say::Ack if self.owes || self.answers => (self.nxt, self.nxt),
            Say::Reset => {
                self.dead = true;
                self.reset = true;
                self.refuses = false;
                (self.nxt, self.nxt)
            }
            _ => return None,
        };
        self.owes = false;
        self.announced = self.rcv;
        self.answers &= what != Say::Ack;
        let fin = end > bytes && first < end;
        let reset = what == Say::Reset;
        let seg = Segment {
            seq: base.out.wrapping_add(u32::from(first)),
            ack: base.into.wrapping_add(u32::from(self.rcv)),
            len: u32::from(end - first) - u32::from(fin),
            window: 1000,
            flags: ACK | if fin { FIN } else { 0 } | if reset { RST } else { 0 },
        };
        Some(Packet { seg, first })
    }

    /// Receives a segment that has passed the data plane.
    pub fn hear(&mut self, packet: &Packet, base: &Base) -> Result<(), Harm> {
        let Packet { seg, first } = packet;
        if self.dead {
            self.refuses |= self.closed.is_some() && !seg.has(RST);
            return Ok(());
        }
        if seg.has(RST) {
            self.dead = true;
            self.reset = true;
            return Ok(());
        }
        // A segment that ends before this number is not delivered (`tcp_sequence`,
        // net/ipv4/tcp_input.c), but it is answered.
        let ends = seg.end().wrapping_sub(base.into) as i32;
        if ends < i32::from(self.announced) {
            self.answers |= seg.span() > 0;
            return Ok(());
        }
        let acked = seg.ack.wrapping_sub(base.out) as i32;
        if acked > i32::from(self.nxt) {
            return Err(Harm::AckOfUnsent);
        }
        self.una = self.una.max(acked.max(0) as u8);
        if seg.span() == 0 {
            return Ok(());
        }
        let claimed = seg.seq.wrapping_sub(base.into) as i32;
        if claimed != i32::from(*first) {
            return Err(Harm::WrongBytes);
        }
        self.owes = true;
        for unit in *first..*first + seg.span() as u8 {
            // No process reads the data any more (`tcp_rcv_state_process`, net/ipv4/tcp_input.c).
            self.refuses |= self.closed.is_some() && unit >= self.rcv;
            if unit >= self.rcv {
                self.beyond |= 1 << unit;
            }
        }
        while self.beyond & (1 << self.rcv) != 0 {
            self.beyond &= !(1 << self.rcv);
            self.rcv += 1;
        }
        Ok(())
    }

    /// Ends the process of the socket. `all` is the number of units that it could have written.
    pub fn dies(&mut self, how: Death, all: u8) -> bool {
        let end = match how {
            Death::Fin(end) => end,
            Death::Reset => self.nxt,
        };
        if self.dead || self.closed.is_some() || end < self.nxt || end > all {
            return false;
        }
        self.closed = Some(end);
        if how == Death::Reset {
            (self.dead, self.refuses) = (true, true);
        }
        true
    }

    /// Receives a reset.
    pub fn is_reset(&mut self) {
        (self.dead, self.reset) = (true, true);
    }

    /// True if both directions are over and acknowledged, so that the kernel forgets the socket.
    pub fn finished(&self, out: u8, into: u8) -> bool {
        self.dead || (self.una == out && self.rcv == into)
    }
}
