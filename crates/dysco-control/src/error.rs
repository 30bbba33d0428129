//! Why the channel did not start, and why a peer is not there.

use std::net::SocketAddr;

/// The channel did not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error(
        "failed to listen for peers on UDP {address}: {source}; is another dyscod running, or [control] listen not an address of this host?"
    )]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No address to listen on.
    #[error(
        "failed to listen for peers: [control] listen is empty; leave it out for all addresses"
    )]
    NoAddress,
    /// The keys.
    #[error(
        "failed to set up TLS: {0}; issue this host's certificate again with 'dyscoctl pki issue'"
    )]
    Tls(#[from] rustls::Error),
    /// The authority.
    #[error("failed to set up TLS: the authority verifies no client: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The cipher suites.
    #[error("failed to set up TLS: no cipher suite fit for QUIC: {0}")]
    Quic(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

/// Why there is no connection to a peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DownReason {
    /// No answer: no daemon, no route, or a firewall.
    #[error("no answer within {0} ms: is dyscod running there, and UDP open?")]
    NoAnswer(u64),
    /// One of the two did not accept the other's certificate.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// The certificate names no address.
    #[error("its certificate names no address")]
    Anonymous,
    /// It sent what is not allowed.
    #[error("it broke the framing: {0}")]
    Framing(&'static str),
    /// It closed the connection.
    #[error("it closed the connection: {0}")]
    Closed(String),
    /// It fell silent.
    #[error("it fell silent")]
    Silent,
    /// This side closed the connection.
    #[error("closed here: {0}")]
    ClosedHere(&'static str),
    /// The address cannot be reached from here.
    #[error("it cannot be reached from here: {0}")]
    Unreachable(String),
}
