//! Results of tasks that look at a proxy or watch it.

use dysco_api::{Remove, Reply};
use dysco_proxy::ProcessError;
use dysco_proxy::outside::{Found, ProxySockets};
use tokio::sync::mpsc;

use crate::engine::removal::task::Said;

/// Result of a task that looked at a proxy, and the client that asked.
pub(in crate::engine) struct Seen {
    pub(super) what: What,
    pub replies: mpsc::Sender<Reply>,
}

pub(super) enum What {
    /// Processes and sockets of the proxy.
    Looked(Result<ProxySockets, ProcessError>),
    /// Pairs of the proxy, for a removal.
    Watched {
        request: Remove,
        said: Said,
        found: Result<Found, ProcessError>,
    },
}
