//! Services in sessions of this host's programs: they come in and leave while data flows.
//!
//! A handler process runs them. Putting services into a session has three steps: sockets are made
//! in the handler's namespace, the handler accepts them, and the data plane leads each direction
//! through them from a cutoff on (`common::detour`). Leaving has two: the services leave the
//! handler, which passes bytes on unchanged from then on, and the data plane leads each direction
//! past it.

mod choice;
mod handler;
mod list;
mod progress;
mod request;
mod take_up;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use dysco_agent::{DetourLink, Start};
use dysco_api::{ServiceSpec, SessionId};
use dysco_common::FlowKey;
use dysco_explain::Cause;
use dysco_runner::protocol::Report;

use super::Plane;
use crate::handlers::{Failed, Sockets, Started};
pub(in crate::engine) use choice::in_the_way;
use handler::Handler;
use request::Job;

/// Sessions with services, and the handler that runs these.
#[derive(Default)]
pub(in crate::engine) struct Services {
    handler: Option<Arc<Handler>>,
    /// A handler is being started.
    starting: bool,
    /// Sessions that wait for it.
    waiting: Vec<u32>,
    sessions: HashMap<u32, Serviced>,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    lists: Vec<list::Waiting>,
    calls: HashMap<u64, list::Calling>,
    /// The next listing is of a handler that an earlier process started.
    taking_up: bool,
}

/// A session that has services, or had some that added bytes.
struct Serviced {
    session: SessionId,
    key: FlowKey,
    created_ns: u64,
    services: Vec<ServiceSpec>,
    stage: Stage,
    sockets: Option<Sockets>,
    /// The local end opened the session.
    opened_here: bool,
    /// Request that waits for the change.
    job: Option<u64>,
    /// Beginning of the change.
    since: Instant,
    /// Time at which the data plane was last told to change the session's routes.
    ordered: Instant,
    /// Bytes that services which have left have added: to the server, and to the client.
    delta: [i64; 2],
}

/// Progress of a session's services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Their sockets are being made.
    Sockets,
    /// The handler has not accepted them yet.
    Offered(Start, DetourLink),
    /// The session is led through them.
    Entering,
    /// All bytes pass them.
    In,
    /// The handler was asked to take them out.
    Asked,
    /// The session is led past them.
    Leaving,
    /// They have left, and had added bytes.
    Direct,
}

/// Answer of a task.
pub(in crate::engine) enum Done {
    /// A handler was started, or could not be.
    Started(Result<Started, Failed>),
    /// Sockets were made for the session of a slot, or could not be.
    Made(u32, Result<Made, Cause>),
    /// A report of the handler; nothing if it has ended.
    Report(Option<Report>),
}

/// Sockets for a session.
pub(in crate::engine) struct Made {
    sockets: Sockets,
    start: Start,
    link: DetourLink,
}

impl Services {
    /// Takes the answer of a task.
    pub fn take(&mut self, plane: &mut Plane, done: Done) {
        match done {
            Done::Started(started) => self.started(plane, started),
            Done::Made(slot, made) => self.made(plane, slot, made),
            Done::Report(Some(report)) => self.reported(plane, report),
            Done::Report(None) => self.handler_ended(plane),
        }
    }

    /// True while a session's routes change.
    pub fn is_busy(&self) -> bool {
        let changes = |stage| matches!(stage, Stage::Entering | Stage::Leaving);
        !self.jobs.is_empty() || self.sessions.values().any(|one| changes(one.stage))
    }
}
