//! What a session is to do.

/// An end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that opened it.
    Client,
    /// The one that accepted it.
    Server,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// How much one end sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Until the group is stopped.
    UntilStopped,
    /// So many bytes, stopped or not.
    Bytes(u64),
}

/// How a session ends once its ends have sent what they should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// Both ends close their half when they have sent all. HAProxy 2.6 itself
    /// now and then cuts off such a session: expect all bytes of it only where no
    /// proxy is in it any more (or see [`Group::rest`](super::Group::rest)).
    Together,
    /// This end closes its half first. The other sends on, hears the end, sends
    /// [`Plan::after_close`] bytes more and closes.
    First(Side),
    /// This end resets the session.
    Reset(Side),
}

/// How an end reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// As fast as it can.
    Fast,
    /// So many bytes a second.
    Slow(u64),
    /// Not at all: the window closes.
    Paused,
}

/// What each session of a group does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the client sends.
    pub up: Amount,
    /// What the server sends.
    pub down: Amount,
    /// How it ends.
    pub close: Close,
    /// Bytes sent after the other end has closed its half.
    pub after_close: u64,
    /// Bytes a second that each end sends at most.
    pub rate: Option<u64>,
    /// Bytes written at once.
    pub write: usize,
    /// Whether both streams are hashed, besides being checked byte by byte.
    pub hash: bool,
    /// The client's receive buffer; else the system's choice.
    pub receive_buffer: Option<usize>,
    /// Whether the client asks for MPTCP (RFC 8684).
    pub multipath: bool,
    /// Whether the client asks for an upgrade to WebSocket first.
    pub web_socket: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            up: Amount::UntilStopped,
            down: Amount::UntilStopped,
            close: Close::First(Side::Client),
            after_close: 100_000,
            rate: None,
            write: 16 << 10,
            hash: true,
            receive_buffer: None,
            multipath: false,
            web_socket: false,
        }
    }
}

impl Plan {
    /// Bytes both ways that leave the processors to what a test is about, where that is
    /// not the load.
    pub fn gentle() -> Plan {
        Plan {
            rate: Some(8_000_000),
            ..Plan::default()
        }
    }

    pub(crate) fn amount(&self, side: Side) -> Amount {
        match side {
            Side::Client => self.up,
            Side::Server => self.down,
        }
    }
}
