//! Reasons for which the channel did not start, and for which a peer is not connected.

use std::fmt;
use std::net::SocketAddr;

use dysco_explain::{Cause, Explain, Explanation, display_explained};

/// Error that keeps the channel from starting.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be bound.
    Bind {
        /// Address to listen on.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// TLS cannot use the keys.
    Tls(#[from] rustls::Error),
    /// TLS cannot use the authority.
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// No cipher suite fits QUIC.
    Quic(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

display_explained!(ControlError);

impl Explain for ControlError {
    fn explain(&self) -> Explanation {
        let tls = |why: String| Explanation::new("set up TLS", why);
        match self {
            ControlError::Bind { address, source } => {
                Explanation::new(format!("listen for peers on UDP {address}"), source).hint(
                    "stop the other dyscod, or name an address of this host in [control] listen",
                )
            }
            ControlError::Tls(error) => tls(error.to_string())
                .hint("issue this host's certificate again with 'dyscoctl pki issue'"),
            ControlError::Verifier(error) => {
                tls(format!("the authority verifies no client: {error}"))
            }
            ControlError::Quic(error) => tls(format!("no cipher suite fit for QUIC: {error}")),
        }
    }
}

/// Reason for which there is no connection to a peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DownReason {
    /// No answer arrived: no daemon, no route, or a firewall.
    NoAnswer(u64),
    /// One of the two did not accept the other's certificate.
    Tls(String),
    /// The certificate names no address.
    Anonymous,
    /// The peer broke the framing.
    Framing(&'static str),
    /// The peer closed the connection.
    Closed(String),
    /// The peer fell silent.
    Silent,
    /// This side closed the connection.
    ClosedHere(&'static str),
    /// The address cannot be reached from here.
    Unreachable(Cause),
    /// This daemon has no channel.
    NoChannel,
}

impl DownReason {
    /// Returns the cause for which a daemon without a channel does nothing that needs another host.
    pub fn no_channel() -> Cause {
        Cause::new("this dyscod serves a network namespace for the dyscod of its host, and has no channel to other hosts").hint("use --mode local, which needs no other host, or run a dyscod with keys of its own in the container or pod")
    }

    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            DownReason::NoAnswer(ms) => Cause::new(format!("no answer within {ms} ms"))
                .hint("start dyscod there, and open its UDP port"),
            DownReason::Tls(why) => Cause::new(format!("the TLS handshake failed: {why}"))
                .hint("issue both hosts' certificates by one authority, anew if one has ended or was revoked"),
            DownReason::Anonymous => Cause::new("its certificate names no address")
                .hint("issue it again with 'dyscoctl pki issue'"),
            DownReason::Framing(why) => Cause::new(format!("it broke the framing: {why}"))
                .hint("run the same release of dyscod on both hosts"),
            DownReason::Closed(why) => Cause::new(format!("it closed the connection: {why}")),
            DownReason::Silent => {
                Cause::new("it fell silent").hint("start dyscod there, and open its UDP port")
            }
            DownReason::ClosedHere(why) => Cause::new(format!("closed here: {why}")),
            DownReason::Unreachable(cause) => {
                cause.clone().after("it cannot be reached from here")
            }
            DownReason::NoChannel => DownReason::no_channel(),
        }
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}
