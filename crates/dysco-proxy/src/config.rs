//! Configuration of the proxy's side.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::WatchRules;

/// Configuration of the proxy's side.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Path of the socket that shims send their reports to.
    pub shim_socket: PathBuf,
    /// Another name of the abstract socket, for shims that do not reach the path.
    pub shim_name: Option<PathBuf>,
    /// Addresses of listeners whose sessions the operator declares transparent from their first
    /// byte after the set-up. An unspecified address (`0.0.0.0`, `::`) stands for every address
    /// of its port.
    pub transparent_listeners: Vec<SocketAddr>,
    /// HAProxy runtime sockets that are queried for the mode of each frontend.
    pub haproxy: Vec<HaproxySocket>,
    /// Maximum number of known pairs, over all processes.
    pub max_pairs: usize,
    /// Time limit for finding a still moment in a measurement.
    pub still_limit: Duration,
    /// Rules for watching processes without the shim.
    pub watch: WatchRules,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            shim_socket: PathBuf::from("/run/dysco/shim.sock"),
            shim_name: None,
            transparent_listeners: Vec::new(),
            haproxy: Vec::new(),
            max_pairs: 65_536,
            still_limit: Duration::from_secs(2),
            watch: WatchRules::default(),
        }
    }
}

/// A HAProxy runtime socket (`stats socket`).
#[derive(Clone, Debug)]
pub struct HaproxySocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Frontend names and their listening addresses, for a HAProxy whose statistics contain no
    /// addresses (no `option socket-stats`).
    pub frontends: Vec<(String, SocketAddr)>,
}
