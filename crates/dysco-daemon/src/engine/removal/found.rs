//! Sessions of a request for removals, and what tasks find out about them.

use dysco_api::{ChangeRate, LeftReport, RemovalReport, Remove, Reply};
use dysco_common::Element;
use dysco_proto::Reason;
use dysco_proxy::elsewhere::Held;
use dysco_proxy::{Pair, Sending};
use tokio::sync::mpsc;

use super::task::{Said, Task};

/// Sessions of a request.
#[derive(Default)]
pub(in crate::engine) struct Candidates {
    /// Sessions that a proxy may leave.
    pub tasks: Vec<Task>,
    /// Sessions that a proxy may not leave, with reasons.
    pub refused: Vec<(RemovalReport, Reason)>,
    /// Slots of sessions that pass the middlebox by their chain, and its address there.
    pub chained: Vec<(u32, Element)>,
    /// Sessions that cannot even be tried.
    pub left: Vec<LeftReport>,
    /// Requester of what concerns chains, in the words of a session's history.
    pub by: String,
    /// Rate at which the sessions begin to change, if it is limited.
    pub rate: Option<ChangeRate>,
}

/// Request that waits for the list of sockets that processes hold.
pub(in crate::engine) struct Begun {
    pub(super) request: Remove,
    pub(super) said: Said,
    pub(super) replies: mpsc::Sender<Reply>,
    pub(super) held: Vec<Held>,
}

/// Sessions of a dry run, and the sending state of their proxy's sockets.
pub(in crate::engine) struct Windows {
    pub(super) found: Candidates,
    pub(super) replies: mpsc::Sender<Reply>,
    pub(super) read: Vec<Read>,
}

/// One session of a dry run.
pub(super) struct Read {
    /// Index in [`Candidates::tasks`].
    pub task: usize,
    pub pair: Pair,
    /// Sending state of the sockets of side A and side B; `None` if they are gone.
    pub sending: Option<[Sending; 2]>,
}
