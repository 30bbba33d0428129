//! Errors about pairs, in words that an operator can act on.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use dysco_explain::{Cause, Explain, Explanation, display_explained};

use super::pair::PairId;

/// Hint for a proxy that is never seen empty.
pub(crate) const LESS_BUSY: &str = "try again when the session is less busy, or run the proxy under the shim (dyscoctl run), which sees where each byte goes";

/// Returns the reason why a proxy holds data of a direction: forward if true, otherwise reverse.
pub(crate) const fn slow_and_fast(forward: bool) -> &'static str {
    match forward {
        true => "its server reads slower than its client sends",
        false => "its client reads slower than its server sends",
    }
}

/// An error at the start of the proxy's side.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The shim's socket could not be created.
    Socket {
        /// Step that failed.
        what: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

display_explained!(StartError);

impl Explain for StartError {
    fn explain(&self) -> Explanation {
        let StartError::Socket { what, path, source } = self;
        Explanation::new(
            format!("{what} the shim's socket {}", path.display()),
            source,
        )
        .hint("stop the other dyscod if one runs, or let this one write there")
    }
}

/// Reason why a shim's report was rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The descriptors are not the sockets that the report names.
    Descriptors(#[from] io::Error),
    /// The user has reached the limit of entries for one user.
    Share {
        /// "pairs" or "processes".
        what: &'static str,
        /// User id.
        uid: u32,
        /// Number of entries of this user.
        own: usize,
    },
    /// The table is full.
    NoRoom,
}

/// Reason why a pair may not lose its proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTransparent {
    /// The pair is unknown, or no longer known.
    Gone(PairId),
    /// No direction is spliced endlessly.
    NotSpliced,
    /// One direction is spliced, and neither configuration nor HAProxy vouches for the other.
    OneDirection {
        /// The direction that is not spliced: "forward" or "reverse".
        direction: &'static str,
        /// Local address of the accepted side.
        listener: SocketAddr,
    },
    /// The kernel has counted receiving calls that the shim has not seen.
    Received {
        /// "forward" or "reverse".
        direction: &'static str,
        /// Number of calls.
        calls: u32,
    },
    /// Only the counts are known, and nothing vouches for the bytes.
    OnlyCounts {
        /// Local address of the accepted side.
        listener: SocketAddr,
        /// Difference of the counts from client to server.
        forward: i64,
        /// Difference of the counts from server to client.
        reverse: i64,
    },
    /// HAProxy reports that it parses the messages of this listener.
    Parsed {
        /// The direction that is not spliced.
        direction: &'static str,
        /// Local address of the accepted side.
        listener: SocketAddr,
        /// Name of the frontend in HAProxy.
        frontend: String,
        /// Mode of the frontend.
        mode: String,
    },
}

/// The kernel's counts do not confirm the claim, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The pair is unknown, or its sockets have changed.
    Gone(PairId),
    /// The claim is false.
    DeltaMismatch {
        /// Pair that was measured.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// Delta that the shim claims.
        claimed: i64,
        /// Delta that the kernel's counts show.
        seen: i64,
    },
    /// A direction was read by other calls; see [`NotTransparent::Received`].
    Received(NotTransparent),
    /// The kernel encodes the bytes of one side before they reach the wire.
    Encoded {
        /// Pair that was measured.
        pair: PairId,
        /// Name of the protocol above TCP.
        protocol: String,
    },
    /// A socket has timestamps in microseconds. A thousand of its ticks are one tick of most
    /// other clocks, so that the new path's clock would stand still for the end that has seen
    /// this one (PAWS).
    Microseconds(PairId),
    /// No still moment confirmed the claim within the limit.
    NeverStill {
        /// Pair that was measured.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// Delta that the shim claims.
        claimed: i64,
        /// Last consistent reading, if there was one.
        seen: Option<i64>,
        /// Time spent on the measurement, in milliseconds.
        waited_ms: u64,
    },
    /// The counts agree with the claim, but never at a moment at which the proxy was certainly
    /// empty.
    MayHold {
        /// Pair that was measured.
        pair: PairId,
        /// "forward" or "reverse".
        direction: &'static str,
        /// Reason why the proxy holds data, which is about its ends.
        ends: &'static str,
        /// Time spent on the measurement, in milliseconds.
        waited_ms: u64,
    },
    /// The kernel does not answer, because the proxy holds the lock of its pipe.
    Stalled(PairId),
    /// Earlier measurements have not returned.
    ManyStalled {
        /// Pair that was to be measured.
        pair: PairId,
        /// Number of measurements that have not returned.
        stalled: usize,
    },
    /// A system call failed.
    System {
        /// Pair that was measured.
        pair: PairId,
        /// Step that failed.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// The sockets were not closed. Both are unchanged unless the message says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The descriptors belong to other sockets now. Nothing was closed.
    Changed(PairId),
    /// A system call failed.
    System {
        /// Pair that was to be closed.
        pair: PairId,
        /// Step that failed.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Refused {
    /// Returns the cause and the hint.
    pub(crate) fn cause(&self) -> Cause {
        let over = |why: String| {
            Cause::new(format!("{why}; what is over keeps its proxy"))
                .hint("raise `max_sessions` under [data_plane] to make room")
        };
        match self {
            Refused::Descriptors(source) => Cause::new(format!(
                "these are not the TCP sockets of its process that it means (any more): {source}"
            )),
            Refused::Share { what, uid, own } => over(format!(
                "user {uid} has {own} {what} known, and so few more are free that the others' come first"
            )),
            Refused::NoRoom => over("no more are kept".into()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl NotTransparent {
    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            NotTransparent::Gone(pair) => Cause::new(format!(
                "the pair {pair} is not known: its sockets were closed, or the shim withdrew its report"
            )),
            NotTransparent::NotSpliced => Cause::new(
                "the proxy may still change the bytes: neither direction is spliced endlessly yet",
            )
            .hint(
                "switch splicing on in the proxy (HAProxy: `option splice-request` and `option splice-response`, `mode tcp`) and let data flow",
            ),
            NotTransparent::OneDirection {
                direction,
                listener,
            } => Cause::new(format!(
                "the {direction} direction has not been spliced yet and the listener {listener} is not declared transparent"
            ))
            .hint(
                "wait until data flows that way, or set `transparent = true` for it in a [[listener]] of the configuration",
            ),
            NotTransparent::Received { direction, calls } => Cause::new(format!(
                "the shim reports that the {direction} direction is spliced endlessly, but since then {calls} receiving calls have taken bytes of it, by the kernel's count (sock_recv_length): the proxy reads it by a way that the shim does not follow, and may change it"
            )),
            NotTransparent::OnlyCounts {
                listener,
                forward,
                reverse,
            } => Cause::new(format!(
                "its counts agree in both directions ({forward:+} and {reverse:+} bytes of the proxy's own), but counts cannot show that the bytes are the same, nor that they stay so"
            ))
            .hint(format!(
                "if the proxy only passes them on, declare it: --listen {listener} of 'remove-middlebox', --transparent of 'drain', or `transparent = true` in a [[listener]] of the configuration"
            )),
            NotTransparent::Parsed {
                direction,
                listener,
                frontend,
                mode,
            } => Cause::new(format!(
                "the {direction} direction has not been spliced yet and the proxy parses the messages of the listener {listener} (frontend {frontend} is in mode {mode})"
            ))
            .hint("wait for an upgraded session, spliced in both directions: only such a one can lose this proxy"),
        }
    }
}

impl fmt::Display for NotTransparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl MeasureError {
    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            MeasureError::Gone(pair) => {
                Cause::new(format!("the sockets of the pair {pair} are gone"))
            }
            MeasureError::DeltaMismatch {
                pair,
                direction,
                claimed,
                seen,
            } => Cause::new(format!(
                "the shim claims that process {} changes the count of the {direction} direction by {claimed} bytes, but the kernel's counts show {seen}: the proxy changes the bytes after all, or has an outdated shim",
                pair.pid
            ))
            .hint("keep the proxy in this session"),
            MeasureError::Received(why) => why.cause(),
            MeasureError::Encoded { pair, protocol } => Cause::new(format!(
                "a socket of the pair {pair} has `{protocol}` between it and the wire (TCP_ULP): its bytes there are not those of the other side"
            ))
            .hint("keep the proxy in this session"),
            MeasureError::Microseconds(pair) => Cause::new(format!(
                "a socket of the pair {pair} has timestamps in microseconds, after which those of the other side would seem to stand still"
            ))
            .hint(
                "keep the proxy in this session, and remove `features tcp_usec_ts` from the route for later ones",
            ),
            MeasureError::NeverStill {
                pair,
                direction,
                claimed,
                seen,
                waited_ms,
            } => Cause::new(format!(
                "no moment within {waited_ms} ms confirmed the claimed delta of {claimed} in the {direction} direction of the pair {pair} (last seen {seen:?}): the proxy holds bytes back, or the claim is false"
            ))
            .hint("try again when the session is calmer"),
            MeasureError::MayHold {
                pair,
                direction,
                ends,
                waited_ms,
            } => Cause::new(format!(
                "the proxy may hold data of the {direction} direction of the pair {pair}: {ends}, so that its counts never showed it empty within {waited_ms} ms"
            ))
            .hint(LESS_BUSY),
            MeasureError::Stalled(pair) => Cause::new(format!(
                "the pair {pair} cannot be read: its proxy waits inside a splice"
            ))
            .hint("let the proxy splice with SPLICE_F_NONBLOCK"),
            MeasureError::ManyStalled { pair, stalled } => Cause::new(format!(
                "the pair {pair} is not measured: {stalled} measurements of other proxies wait inside the kernel, each for a splice of its proxy"
            ))
            .hint("stop these proxies, or start them anew with SPLICE_F_NONBLOCK"),
            MeasureError::System { pair, what, source } => {
                Cause::new(format!("cannot {what} of the pair {pair}: {source}"))
            }
        }
    }
}

impl fmt::Display for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl CloseError {
    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            CloseError::Changed(pair) => Cause::new(format!(
                "the descriptors of the pair {pair} belong to other sockets now, and nothing was closed"
            )),
            CloseError::System { pair, what, source } => {
                Cause::new(format!("cannot {what} of the pair {pair}: {source}"))
                    .hint("give dyscod CAP_NET_ADMIN and CAP_SYS_PTRACE")
            }
        }
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}
