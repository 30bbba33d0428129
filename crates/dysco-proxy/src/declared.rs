//! The operator's declarations about proxies, and the queries of HAProxy.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::outside::WatchRules;
use tracing::warn;

use super::{HaproxySocket, ProxyConfig, labels, listener, lock};

/// Interval between queries of HAProxy for its modes.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The operator's declarations about proxies, which may change.
pub(super) struct Declarations {
    pub(super) listeners: Vec<SocketAddr>,
    pub(super) haproxy: Vec<HaproxySocket>,
    pub(super) watch: WatchRules,
    /// Tasks that query HAProxy for the modes of its frontends.
    pub(super) asking: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Declarations {
    fn drop(&mut self) {
        for task in &self.asking {
            task.abort();
        }
    }
}

/// Queries HAProxy for the labels of its sessions. Without an answer the sessions have none.
pub(super) async fn label_sessions(socket: &HaproxySocket, labels: &Mutex<labels::Labels>) {
    if let Ok((pid, found)) = labels::ask(socket).await {
        lock(labels).put(pid, found);
    }
}

pub(super) fn declarations(
    config: &ProxyConfig,
    modes: &Arc<Mutex<listener::Modes>>,
    labels: &Arc<Mutex<labels::Labels>>,
) -> Declarations {
    let ask = |socket: &HaproxySocket| {
        let (modes, labels) = (Arc::clone(modes), Arc::clone(labels));
        tokio::spawn(keep_asking(socket.clone(), modes, labels))
    };
    Declarations {
        listeners: config.transparent_listeners.clone(),
        haproxy: config.haproxy.clone(),
        watch: config.watch,
        asking: config.haproxy.iter().map(ask).collect(),
    }
}

async fn keep_asking(
    socket: HaproxySocket,
    modes: Arc<Mutex<listener::Modes>>,
    labels: Arc<Mutex<labels::Labels>>,
) {
    let mut complained = false;
    loop {
        if lock(&labels).wanted() {
            label_sessions(&socket, &labels).await;
        }
        match listener::ask(&socket).await {
            Ok((pid, found)) => {
                lock(&modes).put(pid, found);
                complained = false;
            }
            Err(e) if !complained => {
                warn!(path = %socket.path.display(), error = %e,
                    "cannot ask HAProxy for the modes of its frontends: is `stats socket` set, with level operator?");
                complained = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
