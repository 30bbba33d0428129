//! Two sockets that a proxy relays between.

use std::fmt;

use dysco_common::FlowKey;

use super::sending::Sending;

/// Identity of a pair on this host: a process and its two descriptors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
pub struct PairId {
    /// Pid of the proxy in this host's pid namespace.
    pub pid: i32,
    /// Descriptor of the accepted side, which is the client's.
    pub fd_a: i32,
    /// Descriptor of the other side, which is the server's.
    pub fd_b: i32,
}

impl fmt::Display for PairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.pid, self.fd_a, self.fd_b)
    }
}

/// One of the two sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The subsession as this host sees it: local is the proxy's end.
    pub key: FlowKey,
    /// The kernel's cookie of the socket, which is never reused.
    pub cookie: u64,
    /// True if this host opened the socket, that is, sent the SYN.
    pub opened_here: bool,
}

/// State of one direction, as the shim reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Direction {
    /// True if the direction is spliced endlessly with a steady delta.
    pub endless: bool,
    /// True if the program itself declared the direction by `dysco_splice`.
    pub declared: bool,
    /// Bytes that the proxy added; negative if it removed bytes.
    pub delta: i64,
    /// Read end of the pipe that was last used, in the proxy's process.
    pub pipe: Option<i32>,
}

/// Two sockets of one process that relays between them. A is the accepted side, which is the
/// client's. Forward is from A to B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Identity of the pair.
    pub id: PairId,
    /// Client's side.
    pub a: End,
    /// Server's side.
    pub b: End,
    /// Direction from A to B.
    pub forward: Direction,
    /// Direction from B to A.
    pub reverse: Direction,
    /// Source of the claim.
    pub witness: Witness,
}

/// Source of the claim that two sockets belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Witness {
    /// The shim, which sees the calls of the proxy.
    Shim,
    /// The kernel's counts over a while, which show amounts and not contents.
    Counts,
}

/// An event of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairEvent {
    /// The pair became known.
    New(Pair),
    /// The claim about the pair changed.
    Changed(Pair),
    /// The pair was closed, or the claim no longer holds.
    Gone(Pair),
}

/// Numbers of a pair that the kernel confirms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Bytes written to B less bytes read from A.
    pub delta_forward: i64,
    /// Bytes written to A less bytes read from B.
    pub delta_reverse: i64,
    /// Timestamp clock of A's socket (its next TSval), read at the same tick as `clock_b`.
    pub clock_a: u32,
    /// Timestamp clock of B's socket.
    pub clock_b: u32,
    /// `TCPI_OPT_*` bits of A: 1 timestamps, 2 SACK, 4 window scale, 8 ECN.
    pub options_a: u8,
    /// `TCPI_OPT_*` bits of B.
    pub options_b: u8,
    /// Sending parameters of A's socket.
    pub sending_a: Sending,
    /// Sending parameters of B's socket.
    pub sending_b: Sending,
}

/// Result of a silent close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// Both sockets were closed now, without a packet.
    Now,
    /// One or both sockets had been closed before. None is left open.
    Already,
}
