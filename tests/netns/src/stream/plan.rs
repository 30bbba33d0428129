//! Plan of a session.

/// An end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end that opened the session.
    Client,
    /// The end that accepted the session.
    Server,
}

impl Side {
    /// Returns the other end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// Amount of data that one end sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Data until the group is stopped.
    UntilStopped,
    /// This number of bytes, stopped or not.
    Bytes(u64),
}

/// End of a session once its ends have sent their data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// Both ends close their half when they have sent everything. HAProxy 2.6 itself occasionally
    /// cuts off such a session: expect all bytes of it only if no proxy is in it any more (or see
    /// [`Group::rest`](super::Group::rest)).
    Together,
    /// This end closes its half first. The other end continues to send, receives the FIN, sends
    /// [`Plan::after_close`] more bytes and closes.
    First(Side),
    /// This end resets the session.
    Reset(Side),
}

/// Reading mode of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// As fast as it can.
    Fast,
    /// At this number of bytes per second.
    Slow(u64),
    /// Not reading, so that the window closes.
    Paused,
}

/// Plan of each session of a group.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Amount that the client sends.
    pub up: Amount,
    /// Amount that the server sends.
    pub down: Amount,
    /// End of the session.
    pub close: Close,
    /// Number of bytes sent after the other end has closed its half.
    pub after_close: u64,
    /// Maximum number of bytes per second that each end sends.
    pub rate: Option<u64>,
    /// Number of bytes per write.
    pub write: usize,
    /// Size of the client's receive buffer. By default the system chooses.
    pub receive_buffer: Option<usize>,
    /// True if the client requests MPTCP (RFC 8684).
    pub multipath: bool,
    /// True if the client first requests an upgrade to WebSocket.
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
            receive_buffer: None,
            multipath: false,
            web_socket: false,
        }
    }
}

impl Plan {
    /// Returns a plan of this rate, which ends in this way.
    pub fn paced(rate: u64, close: Close) -> Plan {
        Plan {
            rate: Some(rate),
            close,
            ..Plan::default()
        }
    }

    /// Returns plans with full segments in one direction: a download, and an upload.
    pub fn one_way() -> [Plan; 2] {
        let plan = |up, down, first| Plan {
            up,
            down,
            close: Close::First(first),
            ..Plan::default()
        };
        let (all, none) = (Amount::UntilStopped, Amount::Bytes(0));
        [plan(none, all, Side::Server), plan(all, none, Side::Client)]
    }

    /// Returns plans of sessions that differ, as those of different people do.
    pub fn different(count: usize) -> Vec<Plan> {
        let plan = |i: usize| Plan {
            rate: Some(3_000_000 + 170_000 * i as u64),
            write: 5_000 + 1_100 * i,
            ..Plan::default()
        };
        (0..count).map(plan).collect()
    }

    /// Plan with traffic in both directions that leaves the processors to the subject of a test, if
    /// load is not the subject.
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
