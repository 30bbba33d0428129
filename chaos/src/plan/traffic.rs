//! Proxies and sessions of a plan.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{PROXY_PORT, SERVER_PORT, address};

/// What a proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyKind {
    /// HAProxy that splices.
    HaproxySplice,
    /// HAProxy that copies.
    HaproxyCopy,
    /// HAProxy as master and worker, splicing.
    HaproxyMaster,
    /// nginx's stream module.
    NginxStream,
    /// socat, one process a session.
    Socat,
    /// A relay in Go, by raw splice.
    Go,
    /// A relay that fills a buffer of so many bytes before it writes.
    Buffer {
        /// Bytes.
        bytes: u32,
    },
    /// A relay that splices so many bytes, and from there on rewrites each at equal length.
    Rewrite {
        /// The first byte that is rewritten, counted from the start of each direction.
        from: u64,
    },
}

/// One proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyPlan {
    /// Its host.
    pub host: u8,
    /// The server's host.
    pub server: u8,
    /// What it is.
    pub kind: ProxyKind,
    /// Whether the shim is loaded into it.
    pub shim: bool,
    /// Whether the operator has given a word for its listener.
    pub declared: bool,
    /// IPv6 on both sides.
    pub v6: bool,
}

impl ProxyPlan {
    /// Where it listens.
    pub fn listen(&self) -> SocketAddr {
        SocketAddr::new(address(self.host, self.v6), PROXY_PORT)
    }

    /// The server behind it.
    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(address(self.server, self.v6), SERVER_PORT)
    }

    /// Whether it passes on every byte as it came.
    pub fn is_transparent(&self) -> bool {
        !matches!(self.kind, ProxyKind::Rewrite { .. })
    }
}

/// An end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The one that opened it.
    Client,
    /// The one that accepted it.
    Server,
}

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// Both ends send at their rates, in bytes a second; 0 for not at all.
    Bulk {
        /// The client's.
        up: u64,
        /// The server's.
        down: u64,
    },
    /// Requests and answers in turn.
    Requests {
        /// Bytes of a request.
        ask: u32,
        /// Bytes of an answer.
        answer: u32,
        /// Between an answer and the next request.
        pause_ms: u64,
    },
    /// One side reads slower than the other would send.
    SlowReader {
        /// Who reads slowly.
        side: Side,
        /// Bytes a second.
        rate: u64,
    },
    /// One side closes its half early, the other goes on.
    HalfClosed {
        /// Who closes.
        side: Side,
        /// When, after the start.
        after_ms: u64,
        /// What the other sends, in bytes a second.
        rate: u64,
    },
    /// One side has a receive buffer of so few bytes.
    TinyWindow {
        /// Which.
        side: Side,
        /// Bytes.
        buffer: u32,
        /// What each sends, in bytes a second.
        rate: u64,
    },
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// Its number, from which its bytes follow.
    pub id: u64,
    /// The client's host.
    pub client: u8,
    /// The host of the proxy that it goes through; none for straight to the server.
    pub proxy: Option<u8>,
    /// The server's host.
    pub server: u8,
    /// IPv6; with a proxy it is the proxy's choice.
    pub v6: bool,
    /// When it opens.
    pub start_ms: u64,
    /// What it does.
    pub kind: SessionKind,
}
