//! The channel between daemons: QUIC with mutual TLS. A peer is who its
//! certificate says; whoever has none of the fleet's authority gets the TLS
//! failure and nothing else.
//!
//! Messages between two daemons are ordered as long as one connection lives.
//! Nothing is retransmitted across connections: the protocol's own timers do. The crate
//! carries bytes and knows no message: it depends on `dysco-pki`, and on `dysco-common`
//! for the form of a key.

mod endpoint;
mod error;
mod frame;
mod link;
mod peer;
mod registry;
mod stats;
mod tls;

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

/// What the channel needs to start.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Where to listen; `[::]:port` takes both families.
    pub listen: Vec<SocketAddr>,
    /// The port that peers listen on.
    pub peer_port: u16,
    /// This host's certificate and key, and the fleet's authority.
    pub credentials: Credentials,
}

/// Who sent a message, proven by its certificate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// The addresses that the certificate names; never empty.
    pub addresses: Vec<IpAddr>,
}

impl Identity {
    /// May it speak for this address?
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }
}

/// A message from a peer.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Who sent it.
    pub from: Arc<Identity>,
    /// The address it came from.
    pub via: IpAddr,
    /// What it says; at most [`MAX_MESSAGE`] bytes.
    pub message: Vec<u8>,
}

/// A key; never shown.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// What the channel tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer said something.
    Message(Incoming),
    /// There is a connection to this address now.
    PeerUp(IpAddr),
    /// A connection's two ends have a key of their own, of which nobody else knows.
    Key {
        /// Who is at the other end.
        peer: Arc<Identity>,
        /// Where its packets come from.
        via: IpAddr,
        /// Names the key at both ends.
        id: u64,
        /// The key.
        key: Secret,
    },
    /// The connection of a key has ended.
    KeyGone(u64),
    /// The same, since the peer's certificate is revoked: nobody is to use the key.
    KeyRevoked(u64),
    /// There is none any more, or there could not be one; what was waiting for
    /// it has been dropped.
    PeerDown(IpAddr, DownReason),
}

/// A peer, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// The address.
    pub address: IpAddr,
    /// Is there a connection?
    pub up: bool,
    /// Its round trip.
    pub rtt: Option<Duration>,
}

/// Other credentials, ready to be used.
pub struct Renewal(Tls);

/// The channel. Cheap to clone; it closes when the last clone is dropped or
/// [`Control::shutdown`] is called.
#[derive(Clone)]
pub struct Control {
    open: Arc<Open>,
}

/// Closes the channel with the last handle. The tasks hold the registry too,
/// so that its own end would never come.
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

    /// Sends to the daemon at an address. Never blocks: a task of the peer's
    /// connects on demand, and drops what cannot be sent.
    pub fn send(&self, to: IpAddr, message: Vec<u8>) {
        Registry::send(&self.open.0, to.to_canonical(), message);
    }

    /// Connects to the daemon at an address, if there is no connection: what
    /// comes of it is told by [`Event::PeerUp`] or [`Event::PeerDown`].
    pub fn reach(&self, peer: IpAddr) {
        Registry::reach(&self.open.0, peer.to_canonical());
    }

    /// The peers that were heard of or sent to.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.open.0.peers()
    }

    /// What was counted so far.
    pub fn counters(&self) -> ControlCounters {
        self.open.0.stats.read()
    }

    /// The addresses listened on, with the ports that the system chose.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.open.0.local_addresses()
    }

    /// Gets other credentials ready to be used.
    ///
    /// # Errors
    /// If TLS cannot use them.
    pub fn prepare(credentials: &Credentials) -> Result<Renewal, ControlError> {
        Tls::new(credentials).map(Renewal)
    }

    /// Proves this host by other credentials from now on. Connections that there are go on,
    /// but for those of peers whose certificates are revoked by now.
    pub fn take_up(&self, renewal: Renewal) {
        self.open.0.take_up(renewal.0);
    }

    /// Closes all connections and waits until peers were told.
    pub async fn shutdown(&self) {
        self.open.0.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
