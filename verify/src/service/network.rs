//! Places between which packets go, faults of the network, and sides of connections.

use super::tcp::Packet;

/// A place to which a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum To {
    /// The socket of an end.
    End(usize),
    /// A socket of the handler of a host: the near one, or the far one.
    Socket(usize, usize),
    /// The interface of a host.
    Host(usize),
}

/// A socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The socket of an end.
    End(usize),
    /// A socket of the handler of a host: the near one, or the far one.
    Socket(usize, usize),
}

/// A packet that comes late.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Late {
    /// Its destination.
    pub to: To,
    /// The packet.
    pub packet: Packet,
}

/// Fate of the packet of this number among those that a step causes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Twist {
    /// Number of the packet.
    pub at: u8,
    /// Its fate.
    pub what: Mishap,
}

/// A fault of the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mishap {
    /// The packet is lost.
    Lost,
    /// The packet comes later.
    Late,
    /// The packet comes, and comes again later.
    Twice,
}

/// One side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The daemon of the host does not have it yet.
    Pending(u8),
    /// The handler of the host has it.
    Held,
    /// It is closed there.
    Closed,
}
