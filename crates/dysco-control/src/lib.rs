//! The channel between daemons: QUIC with mutual TLS. A peer's certificate is its identity. A peer
//! without a certificate of the fleet's authority gets the TLS failure and nothing else.
//!
//! Messages between two daemons are ordered as long as one connection lives. Nothing is
//! retransmitted across connections: the protocol's own timers do that. The crate carries bytes and
//! knows no message. It depends on `dysco-pki`, and on `dysco-common` for the form of a key.

mod endpoint;
mod error;
mod frame;
mod link;
mod peer;
mod registry;
mod stats;
mod tls;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dysco_pki::Credentials;
use tokio::sync::mpsc;

pub use error::{ControlError, DownReason};
pub use frame::MAX_MESSAGE;
pub use stats::ControlCounters;

use registry::Registry;
use tls::Tls;

/// Settings that the channel needs to start.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Addresses to listen on; `[::]:port` takes both families. Without any there is no channel:
    /// no peer can be reached.
    pub listen: Vec<SocketAddr>,
    /// Port that peers listen on.
    pub peer_port: u16,
    /// Certificate and key of this host, and the fleet's authority.
    pub credentials: Credentials,
}

/// Sender of a message, proven by its certificate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Addresses that the certificate names; never empty.
    pub addresses: Vec<IpAddr>,
}

impl Identity {
    /// Returns true if the peer may speak for this address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }
}

/// A message from a peer.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Sender.
    pub from: Arc<Identity>,
    /// Source address of the connection.
    pub via: IpAddr,
    /// Content; at most [`MAX_MESSAGE`] bytes.
    pub message: Vec<u8>,
}

/// Secret key; never shown.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Event that the channel reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer has sent a message.
    Message(Incoming),
    /// A connection to this address exists now.
    PeerUp(IpAddr),
    /// The two ends of a connection have a key that only they know.
    Key {
        /// Peer at the other end.
        peer: Arc<Identity>,
        /// Source address of the peer's packets.
        via: IpAddr,
        /// Name of the key, the same at both ends.
        id: u64,
        /// Key.
        key: Secret,
    },
    /// The connection of a key has ended.
    KeyGone(u64),
    /// The connection of a key has ended, and the peer's certificate is revoked or of another
    /// authority: nobody may use the key.
    KeyRevoked(u64),
    /// The connection has ended, or could not be made; messages that waited for it have been
    /// dropped.
    PeerDown(IpAddr, DownReason),
}

/// State of a peer, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Address of the peer.
    pub address: IpAddr,
    /// True if there is a connection.
    pub up: bool,
    /// Round-trip time.
    pub rtt: Option<Duration>,
    /// Reason for which there is no connection, if it is known: that of the last attempt, or of the end of
    /// the last connection.
    pub reason: Option<DownReason>,
}

/// Other credentials, ready for use.
pub struct Renewal(Tls);

/// Handle of the channel. Cheap to clone; the channel closes when the last clone is dropped or
/// [`Control::shutdown`] is called.
#[derive(Clone)]
pub struct Control {
    open: Arc<Open>,
}

/// Closes the channel with the last handle. The tasks hold the registry too, so that the registry
/// would never be dropped otherwise.
struct Open(Arc<Registry>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Control {
    /// Starts to listen. Must be called inside a tokio runtime.
    pub fn start(config: ControlConfig) -> Result<(Control, mpsc::Receiver<Event>), ControlError> {
        let (registry, events) = endpoint::start(config)?;
        let open = Arc::new(Open(registry));
        Ok((Control { open }, events))
    }

    /// Sends a message to the daemon at an address. Never blocks: a task of the peer connects on
    /// demand, and drops messages that cannot be sent.
    pub fn send(&self, to: IpAddr, message: Vec<u8>) {
        peer::send(&self.open.0, to.to_canonical(), message);
    }

    /// Connects to the daemon at an address, if there is no connection. The result is an
    /// [`Event::PeerUp`] or [`Event::PeerDown`].
    pub fn reach(&self, peer: IpAddr) {
        peer::reach(&self.open.0, peer.to_canonical());
    }

    /// Returns true if there is a connection to a peer with this address.
    pub fn is_connected(&self, peer: IpAddr) -> bool {
        self.open.0.link(peer.to_canonical()).is_some()
    }

    /// Returns the peers from which messages arrived or to which messages were sent.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.open.0.peers()
    }

    /// Returns the counters.
    pub fn counters(&self) -> ControlCounters {
        self.open.0.stats.read()
    }

    /// Returns the addresses listened on, with the ports that the system chose.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.open.0.local_addresses()
    }

    /// Makes other credentials ready for use.
    ///
    /// # Errors
    /// If TLS cannot use them.
    pub fn prepare(credentials: &Credentials) -> Result<Renewal, ControlError> {
        Tls::new(credentials).map(Renewal)
    }

    /// Proves this host by other credentials from now on. Existing connections continue, except
    /// those of peers whose certificates are now revoked, or of another authority. Returns the names
    /// of the keys whose connections are open.
    pub fn take_up(&self, renewal: Renewal) -> HashSet<u64> {
        self.open.0.take_up(renewal.0)
    }

    /// Closes all connections and waits until the peers have been notified.
    pub async fn shutdown(&self) {
        self.open.0.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
