//! Services in sessions of this host's programs: they come in and leave while data flows.
//!
//! A handler process runs them. Putting services into a session has three steps: sockets are made
//! in the handler's namespace, the handler accepts them, and the data plane leads each direction
//! through them from a cutoff on (`common::detour`). Leaving has two: the services leave the
//! handler, which passes bytes on unchanged from then on, and the data plane leads each direction
//! past it.

mod abandoned;
mod choice;
pub(in crate::engine) mod done;
mod handler;
mod handler_reports;
mod hold;
mod judge_partial;
mod list;
mod obstacles;
mod orphans;
mod owners;
mod packets;
mod pair;
mod partial;
mod progress;
mod report;
mod request;
mod resting;
mod runs;
mod take_up;
pub(in crate::engine) mod words;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use dysco_agent::{DetourLink, Start};
use dysco_api::{ServiceSpec, SessionId};
use dysco_common::{FlowKey, Session};
use dysco_explain::{Cause, Explain};
use dysco_proto::pairs::PairId;

use super::Plane;
use crate::handlers::{Owner, Sockets};
use abandoned::Abandoned;
pub(crate) use choice::check_policy;
use done::Done;
use handler::Handler;
use hold::Held;
pub(in crate::engine) use hold::Wanted;
use pair::{Door, Paired};
use partial::Partial;
use request::{Job, Settling};
use resting::{Resting, Rests};

/// Sessions with services, and the handlers that run these.
#[derive(Default)]
pub(in crate::engine) struct Services {
    handlers: HashMap<Owner, Arc<Handler>>,
    /// Owners whose handlers are being started.
    starting: HashSet<Owner>,
    /// Sessions that wait for their handlers.
    waiting: Vec<u32>,
    /// Sessions whose handler has died, and which wait for one that passes their bytes on.
    orphans: Vec<u32>,
    sessions: HashMap<u32, Serviced>,
    /// Slots of the sessions with services at both ends. An entry may be out of date.
    pairs: HashMap<PairId, u32>,
    /// The place where other handlers connect.
    door: Option<Door>,
    jobs: HashMap<u64, Job>,
    settling: Vec<Settling>,
    next_job: u64,
    lists: Vec<list::Waiting>,
    calls: HashMap<u64, list::Calling>,
    /// Owners whose handlers an earlier process started, and the sessions that each is to have, by slot
    /// and start time. The next listing of each is for its take-up.
    taking_up: HashMap<Owner, HashMap<u32, u64>>,
    runs: runs::Runs,
    /// Services that have left by themselves, and come back, by the slots of their sessions.
    resting: HashMap<u32, Resting>,
    abandoned: Vec<Abandoned>,
}

/// A session that has services, or had some that added bytes.
struct Serviced {
    session: SessionId,
    key: FlowKey,
    created_ns: u64,
    services: Vec<ServiceSpec>,
    /// The one whose handler runs them.
    owner: Owner,
    stage: Stage,
    sockets: Option<Sockets>,
    /// Number of the attempt to make the sockets. Answers to an earlier one may still arrive.
    attempt: u64,
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
    /// The services have left before all data had entered: bytes that they had added by then.
    left: Option<[i64; 2]>,
    /// The handler of the services has died.
    lost: bool,
    /// The other half, if the services are at both ends.
    paired: Option<Paired>,
    /// A rule or a run has opened it, and this host holds it.
    held: Option<Held>,
    /// The ends have sent nothing yet, and cannot before the services are in.
    silent: bool,
    /// Repetition of the packet that opens the remote end's window.
    probe: Option<hold::Probe>,
    /// Some of the services come or leave, and the others stay.
    partial: Option<Partial>,
    rests: Rests,
}

impl Serviced {
    /// Describes a session that services are to enter.
    fn new(plane: &Plane, slot: u32, s: &Session, services: Vec<ServiceSpec>) -> Serviced {
        Serviced {
            session: plane.session_id(slot, s),
            key: s.key,
            created_ns: s.created_ns,
            services,
            owner: Owner::System,
            stage: Stage::Sockets,
            sockets: None,
            attempt: 0,
            opened_here: s.life.opened_here != 0,
            job: None,
            since: Instant::now(),
            ordered: Instant::now(),
            delta: [0; 2],
            left: None,
            lost: false,
            paired: None,
            held: None,
            silent: false,
            probe: None,
            partial: None,
            rests: Rests::default(),
        }
    }

    /// Returns the values of both directions in the order of the data plane: the direction in which the
    /// local end sends comes first. In `both`, that in which the opener sends comes first.
    fn oriented<T>(&self, mut both: [T; 2]) -> [T; 2] {
        if !self.opened_here {
            both.reverse();
        }
        both
    }

    /// Leads the session to the handler from its next packet on, if it still can be.
    fn enter(
        &mut self,
        plane: &Plane,
        slot: u32,
        start: &Start,
        link: &DetourLink,
    ) -> Result<(), Cause> {
        let s = plane.agent.session(slot);
        let lives = s.created_ns == self.created_ns && plane.agent.may_enter_detour(slot);
        if !lives || plane.holds_chain_of(slot) {
            return Err("it has ended or was changed meanwhile".into());
        }
        let acked = match s.view().new_path() {
            Some(_) => Some(handler::acknowledged(&s)?),
            None => None,
        };
        let start = &Start { acked, ..*start };
        let (paired, silent) = (self.paired.is_some(), self.silent);
        plane.faults.reach("ServiceEnter");
        let entered = plane.agent.enter_detour(slot, start, link, paired, silent);
        entered.map_err(|error| error.explain().cause())?;
        self.stage = Stage::Entering;
        self.ordered = Instant::now();
        if let Some(sockets) = self.sockets.as_ref().filter(|_| silent) {
            sockets.open_windows();
            self.probe = (!paired).then(hold::Probe::first);
        }
        Ok(())
    }
}

/// Progress of a session's services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The other host is asked to take part, or is awaited.
    Invited,
    /// Their sockets are being made.
    Sockets,
    /// The handler has not accepted them yet.
    Offered(Start, DetourLink),
    /// The handler has accepted them. The other host's has not yet.
    Accepted(Start, DetourLink),
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
    /// Their handler has died, and had no bytes in hand. The next one is to pass bytes on unchanged.
    Orphaned(Routes),
}

impl Stage {
    /// True if what a handler reports of the slot can be about these services. Until the handler has
    /// accepted them, and once it was told to forget them, a report is about earlier services of
    /// the slot: reports and requests pass each other.
    fn is_with_handler(self) -> bool {
        match self {
            Stage::Invited | Stage::Sockets | Stage::Offered(..) | Stage::Direct => false,
            Stage::Accepted(..)
            | Stage::Entering
            | Stage::In
            | Stage::Asked
            | Stage::Leaving
            | Stage::Orphaned(_) => true,
        }
    }
}

/// Routes of a session whose handler has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Routes {
    /// The session was being led through the handler.
    Enter,
    /// All bytes passed the handler.
    Through,
    /// The session was being led past the handler.
    Leave,
}

impl Services {
    /// Takes the answer of a task.
    pub(super) fn take(&mut self, plane: &mut Plane, done: Done) {
        match done {
            Done::Wanted => self.prepare(plane, Owner::System),
            Done::Started(owner, started) => self.started(plane, owner, started),
            Done::Made(slot, attempt, made) => self.made(plane, slot, attempt, made),
            Done::Came(came) => self.came(plane, came),
            Done::Report(owner, pid, report) => {
                let runs = |handler: &Arc<Handler>| handler.pid() == pid;
                match report {
                    // It was ended, and another one may run.
                    _ if !self.handlers.get(&owner).is_some_and(runs) => {}
                    Some(report) => self.reported(plane, owner, report),
                    None => self.handler_ended(plane, owner),
                }
            }
        }
    }

    /// Follows the sessions with services of the packet plane, and their interfaces.
    pub(super) fn sweep_packets(&self, plane: &Plane) {
        packets::sweep(plane);
    }

    /// True while a session's routes change.
    pub(super) fn is_busy(&self) -> bool {
        let changes = |stage| matches!(stage, Stage::Entering | Stage::Leaving);
        let waits =
            |one: &Serviced| changes(one.stage) || one.waits_for_peer() || one.probe.is_some();
        !self.jobs.is_empty() || !self.abandoned.is_empty() || self.sessions.values().any(waits)
    }
}
