//! Reasons for which the channel did not start, and for which a peer is not connected.

use std::net::SocketAddr;

use dysco_explain::{Explain, Explanation, display_explained};

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
    /// There is no address to listen on.
    NoAddress,
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
            ControlError::NoAddress => {
                Explanation::new("listen for peers", "[control] listen is empty")
                    .hint("leave it out for all addresses")
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
    #[error("no answer within {0} ms: is dyscod running there, and UDP open?")]
    NoAnswer(u64),
    /// One of the two did not accept the other's certificate.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// The certificate names no address.
    #[error("its certificate names no address")]
    Anonymous,
    /// The peer broke the framing.
    #[error("it broke the framing: {0}")]
    Framing(&'static str),
    /// The peer closed the connection.
    #[error("it closed the connection: {0}")]
    Closed(String),
    /// The peer fell silent.
    #[error("it fell silent")]
    Silent,
    /// This side closed the connection.
    #[error("closed here: {0}")]
    ClosedHere(&'static str),
    /// The address cannot be reached from here.
    #[error("it cannot be reached from here: {0}")]
    Unreachable(String),
}
