//! What can go wrong with a pair, in words an operator can act on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::pair::PairId;

/// What to do about a proxy that is never seen empty.
pub const LESS_BUSY: &str = "try again when the session is less busy, or run the proxy under the shim (dyscoctl run), which sees where each byte goes";

/// Why a proxy holds data of a direction: forward, or reverse.
pub const fn slow_and_fast(forward: bool) -> &'static str {
    match forward {
        true => "its server reads slower than its client sends",
        false => "its client reads slower than its server sends",
    }
}

/// The proxy's side could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The shim's socket could not be made.
    #[error(
        "cannot {what} the shim's socket {path}: {source}; is another dyscod running, and may this one write there?"
    )]
    Socket {
        /// The step that failed.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a shim's report was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Its descriptors are not what it says.
    #[error("these are not the TCP sockets of its process that it means (any more): {0}")]
    Descriptors(#[from] io::Error),
    /// Its user has as many already as one may have.
    #[error(
        "user {uid} has {own} {what} known, and so few more are free that the others' come first; what is over keeps its proxy (`max_sessions` under [data_plane] makes room)"
    )]
    Share {
        /// "pairs" or "processes".
        what: &'static str,
        /// The user.
        uid: u32,
        /// How many are known of it.
        own: usize,
    },
    /// Nobody may have more.
    #[error(
        "no more are kept; what is over keeps its proxy (`max_sessions` under [data_plane] makes room)"
    )]
    NoRoom,
}

/// Why a pair may not lose its proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTransparent {
    /// The pair is not known, or no longer.
    #[error("the pair {0} is not known: its sockets were closed, or the shim took its word back")]
    Gone(PairId),
    /// No direction is spliced endlessly.
    #[error(
        "the proxy may still change the bytes: neither direction is spliced endlessly yet; switch splicing on in the proxy (HAProxy: `option splice-request` and `option splice-response`, `mode tcp`) and let data flow"
    )]
    NotSpliced,
    /// One direction is, and no one vouches for the other.
    #[error(
        "the {direction} direction has not been spliced yet and the listener {listener} is not declared transparent; wait until data flows that way, or say `transparent = true` of it in a [[listener]] of the configuration"
    )]
    OneDirection {
        /// The one that is missing: "forward" or "reverse".
        direction: &'static str,
        /// The accepted side's local address.
        listener: SocketAddr,
    },
    /// The kernel has seen what the shim has not.
    #[error(
        "the shim says that the {direction} direction is spliced endlessly, but since then {calls} receiving calls have taken bytes of it, by the kernel's account (sock_recv_length): the proxy reads it by a way that the shim does not follow, and may change it"
    )]
    Received {
        /// "forward" or "reverse".
        direction: &'static str,
        /// How many.
        calls: u32,
    },
    /// Only the counts tell, and no one vouches for the bytes.
    #[error(
        "its counts agree in both directions ({forward:+} and {reverse:+} bytes of the proxy's own), but counts cannot show that the bytes are the same, nor that they stay so; if the proxy only passes them on, say so with --listen {listener}, or with `transparent = true` in a [[listener]] of the configuration"
    )]
    OnlyCounts {
        /// The accepted side's local address.
        listener: SocketAddr,
        /// The difference of the counts, client to server.
        forward: i64,
        /// The same, server to client.
        reverse: i64,
    },
    /// The proxy itself says that it reads the messages of this listener.
    #[error(
        "the {direction} direction has not been spliced yet and the proxy parses the messages of the listener {listener} (frontend {frontend} is in mode {mode}); only an upgraded session, spliced both ways, can leave such a proxy"
    )]
    Parsed {
        /// The one that is missing.
        direction: &'static str,
        /// The accepted side's local address.
        listener: SocketAddr,
        /// The proxy's name of it.
        frontend: String,
        /// Its mode there.
        mode: String,
    },
}

/// The kernel's numbers do not confirm what was claimed, or cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The pair is not known, or its sockets are no longer those.
    #[error("the sockets of the pair {0} are gone")]
    Gone(PairId),
    /// The claim is false.
    #[error("the {direction} direction of process {pid} is claimed to change the count of bytes by {claimed}, but the kernel's numbers show {seen}; the session stays with its proxy, which changes the bytes after all (or has an outdated shim)", pid = .pair.pid)]
    DeltaMismatch {
        /// Which pair.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// The shim's delta.
        claimed: i64,
        /// The kernel's.
        seen: i64,
    },
    /// See [`NotTransparent::Received`].
    #[error("{0}")]
    Received(NotTransparent),
    /// The kernel changes the bytes of one side on their way.
    #[error(
        "a socket of the pair {pair} has `{protocol}` between it and the wire (TCP_ULP): its bytes there are not those of the other side; the session stays with its proxy"
    )]
    Encoded {
        /// Which pair.
        pair: PairId,
        /// What it has.
        protocol: String,
    },
    /// A thousand ticks of its clock are one of most others': the new path's would stand
    /// still for the end that has seen it (PAWS).
    #[error(
        "a socket of the pair {0} has timestamps in microseconds: the other side's would seem to stand still after it; the session stays with its proxy, and later ones need not if `features tcp_usec_ts` is taken from the route"
    )]
    Microseconds(PairId),
    /// No still moment confirmed the claim in time.
    #[error(
        "no moment within {waited_ms} ms confirmed the claimed delta of {claimed} in the {direction} direction of the pair {pair} (last seen {seen:?}); the proxy holds bytes back, or the claim is false: try again when the session is calmer"
    )]
    NeverStill {
        /// Which pair.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// The shim's delta.
        claimed: i64,
        /// The last consistent reading, if there was one.
        seen: Option<i64>,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// The counts agree with the claim, but never while the proxy was surely empty.
    #[error(
        "the proxy may hold data of the {direction} direction of the pair {pair}: {ends}, so that its counts never showed it empty within {waited_ms} ms; {LESS_BUSY}"
    )]
    MayHold {
        /// Which pair.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// What of its ends makes it hold data.
        ends: &'static str,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// The kernel does not answer: the proxy holds a lock of its pipe.
    #[error(
        "the pair {0} cannot be read: its proxy waits inside a splice; it should splice with SPLICE_F_NONBLOCK"
    )]
    Stalled(PairId),
    /// Earlier measurements have not come back.
    #[error(
        "the pair {pair} is not measured: {stalled} measurements of other proxies wait inside the kernel, each for a splice of its proxy; stop these proxies, or start them anew with SPLICE_F_NONBLOCK"
    )]
    ManyStalled {
        /// Which pair.
        pair: PairId,
        /// How many.
        stalled: usize,
    },
    /// A system call failed.
    #[error("cannot {what} of the pair {pair}: {source}")]
    System {
        /// Which pair.
        pair: PairId,
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The sockets were not closed; both are as they were, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The descriptors are of other sockets now; nothing was touched.
    #[error("the descriptors of the pair {0} belong to other sockets now; nothing was closed")]
    Changed(PairId),
    /// A system call failed.
    #[error(
        "cannot {what} of the pair {pair}: {source}; dyscod needs CAP_NET_ADMIN and CAP_SYS_PTRACE"
    )]
    System {
        /// Which pair.
        pair: PairId,
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
