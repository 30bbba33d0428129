//! Proxies and sessions of a plan.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{PROXY_PORT, SERVER_PORT, address};

/// Kind of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyKind {
    /// HAProxy that splices.
    HaproxySplice,
    /// HAProxy that copies.
    HaproxyCopy,
    /// HAProxy as master and worker, with splicing.
    HaproxyMaster,
    /// nginx's stream module.
    NginxStream,
    /// socat, one process per session.
    Socat,
    /// A relay in Go that uses raw splice.
    Go,
    /// A relay that fills a buffer of this size before it writes.
    Buffer {
        /// Size of the buffer in bytes.
        bytes: u32,
    },
    /// A relay that splices first, and then rewrites each byte without changing the length.
    Rewrite {
        /// Index of the first byte that is rewritten, counted from the start of each direction.
        from: u64,
    },
}

/// One proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProxyPlan {
    /// Number of the proxy's host.
    pub host: u8,
    /// Number of the server's host.
    pub server: u8,
    /// Kind of the proxy.
    pub kind: ProxyKind,
    /// True if the shim is loaded into the proxy.
    pub shim: bool,
    /// True if the operator has vouched for the listener.
    pub declared: bool,
    /// True if both sides use IPv6.
    pub v6: bool,
}

impl ProxyPlan {
    /// Returns the address on which the proxy listens.
    pub(crate) fn listen(&self) -> SocketAddr {
        SocketAddr::new(address(self.host, self.v6), PROXY_PORT)
    }

    /// Returns the address of the server behind the proxy.
    pub(crate) fn to(&self) -> SocketAddr {
        SocketAddr::new(address(self.server, self.v6), SERVER_PORT)
    }

    /// True if the proxy forwards every byte unchanged.
    pub(crate) fn is_transparent(&self) -> bool {
        !matches!(self.kind, ProxyKind::Rewrite { .. })
    }
}

/// An end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// The end that opened the session.
    Client,
    /// The end that accepted the session.
    Server,
}

/// Traffic of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionKind {
    /// Both ends send at their rates, in bytes per second. With a rate of 0 an end sends nothing.
    Bulk {
        /// Rate of the client.
        up: u64,
        /// Rate of the server.
        down: u64,
    },
    /// Alternating requests and answers.
    Requests {
        /// Number of bytes of a request.
        ask: u32,
        /// Number of bytes of an answer.
        answer: u32,
        /// Milliseconds between an answer and the next request.
        pause_ms: u64,
    },
    /// One side reads more slowly than the other could send.
    SlowReader {
        /// The slow reader.
        side: Side,
        /// Rate in bytes per second.
        rate: u64,
    },
    /// One side closes its half early, and the other side continues.
    HalfClosed {
        /// The side that closes.
        side: Side,
        /// Milliseconds between the start and the close.
        after_ms: u64,
        /// Rate of the other side, in bytes per second.
        rate: u64,
    },
    /// One side has a small receive buffer.
    TinyWindow {
        /// The side with the small buffer.
        side: Side,
        /// Size of the buffer in bytes.
        buffer: u32,
        /// Rate of each side, in bytes per second.
        rate: u64,
    },
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionPlan {
    /// Number of the session. Its bytes follow from it.
    pub id: u64,
    /// Number of the client's host.
    pub client: u8,
    /// Number of the proxy's host; none if the session goes straight to the server.
    pub proxy: Option<u8>,
    /// Number of the server's host.
    pub server: u8,
    /// True for IPv6. With a proxy, the proxy's setting applies.
    pub v6: bool,
    /// Time at which the session opens.
    pub start_ms: u64,
    /// Traffic of the session.
    pub kind: SessionKind,
}
