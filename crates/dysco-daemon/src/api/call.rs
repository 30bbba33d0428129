//! A request on its way from a client to the engine.

use dysco_api::{Reply, Request};
use tokio::sync::mpsc;

use super::caller::Caller;

/// Permitted request of a caller, for the engine to answer. Dropping `replies` before a final reply
/// reports an internal error to the client.
///
/// A client that does not read is closed after a while; use [`mpsc::Sender::try_send`] where the
/// engine must not wait for the client.
#[derive(Debug)]
pub struct Call {
    /// Request.
    pub request: Request,
    /// Process that sent the request.
    pub caller: Caller,
    /// Channel for the answer. Closed when the client has left.
    pub replies: mpsc::Sender<Reply>,
}
