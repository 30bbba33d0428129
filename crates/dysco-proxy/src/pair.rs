//! What is known of two sockets that a proxy relays between.

use std::fmt;

use dysco_common::FlowKey;

use super::sending::Sending;

/// Names a pair on this host: a process and its two descriptors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
pub struct PairId {
    /// The proxy's process, as this host's process namespace numbers it.
    pub pid: i32,
    /// Descriptor of the accepted (client's) side.
    pub fd_a: i32,
    /// Descriptor of the other (server's) side.
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
    /// The kernel's name of the socket, never used twice.
    pub cookie: u64,
    /// This host opened it (sent the SYN).
    pub opened_here: bool,
}

/// What the shim says of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Direction {
    /// Spliced endlessly, with its delta steady.
    pub endless: bool,
    /// The program itself declared it, by `dysco_splice`.
    pub declared: bool,
    /// Bytes that the proxy added (or, negative, removed).
    pub delta: i64,
    /// Read end of the pipe last used, in the proxy's process.
    pub pipe: Option<i32>,
}

/// Two sockets of one process that it relays between. A is the accepted side
/// (the client's), forward is from A to B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Which.
    pub id: PairId,
    /// The client's side.
    pub a: End,
    /// The server's side.
    pub b: End,
    /// From A to B.
    pub forward: Direction,
    /// From B to A.
    pub reverse: Direction,
    /// Who says so.
    pub witness: Witness,
}

/// Who says that two sockets belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Witness {
    /// The shim, which sees what the proxy does.
    Shim,
    /// The kernel's counts over a while, which show how much and not what.
    Counts,
}

/// What happened to a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairEvent {
    /// It became known.
    New(Pair),
    /// What is said of it changed.
    Changed(Pair),
    /// It is closed, or what was said of it no longer holds.
    Gone(Pair),
}

/// What the kernel confirms of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Bytes written to B less bytes read from A.
    pub delta_forward: i64,
    /// Bytes written to A less bytes read from B.
    pub delta_reverse: i64,
    /// The timestamp clock of A's socket (its next TSval), read at the same
    /// tick as `clock_b`.
    pub clock_a: u32,
    /// The timestamp clock of B's socket.
    pub clock_b: u32,
    /// `TCPI_OPT_*` bits of A: 1 timestamps, 2 SACK, 4 window scale, 8 ECN.
    pub options_a: u8,
    /// The same of B.
    pub options_b: u8,
    /// How A's socket sends.
    pub sending_a: Sending,
    /// The same of B's.
    pub sending_b: Sending,
}

/// How a silent close ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// Both sockets were closed now, without a packet.
    Now,
    /// One or both had been closed before; nothing is left open.
    Already,
}
