//! Removals on request of operators: many sessions at once, a few changes at a time, one report for
//! each.

mod automatic;
mod candidates;
mod chained;
mod dry_run;
pub(super) mod found;
pub(super) mod leaving;
pub(super) mod left;
mod limits;
mod mode;
mod outcome;
mod progress;
mod report;
pub(super) mod task;
mod under_way;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use dysco_api::{ChangeRate, Failure, Mode, RemovalReport, Remove, Reply, SessionName};
use dysco_proto::{ChangeId, Reason};
use tokio::sync::mpsc;

use super::Answer;
use super::core::Core;
use super::paced::Pace;
use super::plane::{Plane, Terms};
use automatic::Automatic;
use candidates::candidates;
pub(super) use candidates::{sort, task_of};
use found::{Begun, Candidates};
use leaving::Leaving;
use left::left_of;
use task::{Said, Stage, Task};
use under_way::UnderWay;

/// Time for which the end of a removal is awaited after it was given up.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of removals that begin in one turn. Their messages share datagrams. Wake-ups for
/// messages are most of the cost of a removal.
const TOGETHER: usize = 8;
/// Time for which removals may join a turn: those before them end one after the other.
const JOIN: Duration = Duration::from_millis(1);
/// Time after which the removals of a turn no longer hold up the next turn, even if a new path is not
/// open. Removals in progress share the daemons' processors, and each takes longer accordingly.
/// Those of silent sessions take no turns, because nobody waits for one of them.
const TURN: Duration = Duration::from_millis(5);

/// All removals that were requested on this host.
pub(super) struct Removals {
    concurrency: usize,
    under_way: UnderWay,
    /// Time at which the pairs of removals were last kept.
    kept: Option<Instant>,
    /// Requesters of changes that no task of this host began.
    asked: HashMap<ChangeId, String>,
    batches: HashMap<u64, Batch>,
    next_batch: u64,
    automatic: Automatic,
    /// Beginning of the last turn, and the number of removals that have begun in it.
    turn: (Instant, usize),
    /// Sessions whose chains a host is to leave.
    leaving: VecDeque<Leaving>,
}

struct Running {
    task: Task,
    begun: Instant,
    /// True if its session was silent when the removal began.
    silent: bool,
    switched: Option<Duration>,
    cancelled: Option<Instant>,
    /// Reason that is more precise than the machine's.
    reason: Option<Reason>,
}

/// Removals of one request.
struct Batch {
    replies: Option<mpsc::Sender<Reply>>,
    reports: Vec<RemovalReport>,
    /// Reports that have not been sent as they came.
    unreported: Vec<RemovalReport>,
    left: usize,
    dry: bool,
    rate: Option<ChangeRate>,
    accepted: Instant,
}

impl Removals {
    /// Sets the maximum number of removals in progress.
    pub(crate) fn set_concurrency(&mut self, concurrency: usize) {
        self.concurrency = concurrency.max(1);
    }

    pub(super) fn new(concurrency: usize) -> Removals {
        Removals {
            concurrency: concurrency.max(1),
            under_way: UnderWay::default(),
            kept: None,
            asked: HashMap::new(),
            batches: HashMap::new(),
            next_batch: 0,
            automatic: Automatic::default(),
            turn: (Instant::now(), 0),
            leaving: VecDeque::new(),
        }
    }

    /// Returns the time at which the next waiting removal may begin, if one waits and there is
    /// room.
    pub(crate) fn next_turn(&self, plane: &Plane) -> Option<Instant> {
        self.next_among(plane, Instant::now())
    }

    /// Returns the time at which the next waiting removal may begin if it waits only for those that
    /// began before `since`.
    fn next_among(&self, plane: &Plane, since: Instant) -> Option<Instant> {
        let running = self.under_way.running();
        if running.len() >= self.concurrency {
            return None;
        }
        let now = Instant::now();
        let (next, not_before) = self.under_way.first_waiting(now)?;
        let silent = is_silent(plane, next);
        let opening = running.values().filter(|r| r.switched.is_none());
        let before = opening.filter(|r| r.begun < since && !(silent && r.silent));
        let begun = before.map(|r| r.begun).max();
        let turn = begun.map_or(now, |begun| begun + TURN);
        Some(not_before.map_or(turn, |at| at.max(turn)))
    }

    /// Returns true if a task of this host has begun the change.
    pub(crate) fn has_begun(&self, change: ChangeId) -> bool {
        self.under_way.running().contains_key(&change)
    }

    /// Removes and returns the next part of a removal that the chains of sessions carry out.
    pub(crate) fn next_leaving(&mut self) -> Option<Leaving> {
        self.leaving.pop_front()
    }

    /// Returns the time at which a decision is due even if the neighbours have not answered.
    pub(crate) fn next_decision(&self) -> Option<Instant> {
        self.under_way.next_decision()
    }
}

impl Removals {
    pub(super) fn remove(
        &mut self,
        core: &mut Core,
        request: Remove,
        said: Said,
        replies: mpsc::Sender<Reply>,
    ) {
        let here = matches!(core.host.plane.resolve(&request.host), Ok(None));
        let all = here && request.all;
        let begun = Begun {
            request,
            said,
            replies,
            held: Vec::new(),
        };
        if !all {
            return self.go_on_removing(core, begun);
        }
        // A request for all sessions also reports those that are no candidates.
        let (proxy, answers) = (
            core.host.plane.proxy.clone(),
            core.host.plane.answers.clone(),
        );
        tokio::spawn(async move {
            let held = proxy.held().await;
            let _ = answers.send(Answer::Held(Box::new(Begun { held, ..begun })));
        });
    }

    /// Continues once it is known what processes hold, or if that was not asked for.
    pub(super) fn go_on_removing(&mut self, core: &mut Core, begun: Begun) {
        let Begun {
            request,
            said,
            replies,
            held,
        } = begun;
        let found = candidates(&core.host.plane, &request, &said).map(|found| Candidates {
            left: left_of(&core.host.plane, &request, &held),
            by: said.by.clone(),
            ..found
        });
        self.remove_found(core, found, &request, &replies);
    }

    /// Continues with the sessions that were found for a request.
    pub(super) fn remove_found(
        &mut self,
        core: &mut Core,
        found: Result<Candidates, Failure>,
        request: &Remove,
        replies: &mpsc::Sender<Reply>,
    ) {
        let rate = request.rate;
        match found.map(|found| Candidates { rate, ..found }) {
            Ok(found) if request.dry_run => self.read_windows(core, found, replies),
            Ok(found) => self.begin_batch(core, found, false, replies),
            Err(failure) => {
                let _ = replies.try_send(Reply::Error(failure));
            }
        }
    }

    fn begin_batch(
        &mut self,
        core: &mut Core,
        found: Candidates,
        dry: bool,
        replies: &mpsc::Sender<Reply>,
    ) {
        let id = self.next_batch;
        self.next_batch += 1;
        let left = found.tasks.len() + found.refused.len() + found.chained.len();
        let _ = replies.try_send(Reply::Accepted {
            sessions: left,
            left: found.left,
        });
        let requested = Instant::now();
        let batch = Batch {
            replies: Some(replies.clone()),
            reports: Vec::new(),
            unreported: Vec::new(),
            left,
            dry,
            rate: found.rate,
            accepted: requested,
        };
        self.batches.insert(id, batch);
        let pace = found.rate.map(Pace::new);
        if let Some(pace) = &pace {
            self.under_way.limit(id, pace.clone());
        }
        for (report, why) in found.refused {
            self.finish(core, id, report, Some(&why));
        }
        if left == 0 {
            self.end_batch(id);
        }
        for task in found.tasks {
            let task = Task {
                batch: id,
                requested,
                ..task
            };
            self.take_on(core, task);
        }
        self.start_waiting(core);
        self.leaving.push_back(Leaving {
            removal: id,
            chained: found.chained,
            dry_run: dry,
            by: found.by,
            pace,
        });
    }

    /// Begins the next waiting removals whose turn has come.
    pub(super) fn start_waiting(&mut self, core: &mut Core) {
        if self.turn.0.elapsed() > JOIN {
            self.turn = (Instant::now(), 0);
        }
        loop {
            let since = match self.turn.1 < TOGETHER {
                true => self.turn.0,
                false => Instant::now(),
            };
            let next = self.next_among(&core.host.plane, since);
            if next.is_none_or(|at| at > Instant::now()) {
                break;
            }
            let start = Instant::now();
            let Some(mut task) = self.under_way.next_waiting(start) else {
                break;
            };
            self.turn.1 += 1;
            // A younger session may have the addresses and ports of one that has waited for long.
            let named = SessionName::Id(task.session);
            if core.host.plane.slot_named(&named).is_none() {
                let report = task.refused(Reason::Closing.cause());
                self.finish(core, task.batch, report, Some(&Reason::Closing));
                continue;
            }
            let former = task.begun;
            task.begun.get_or_insert(start);
            let silent = is_silent(&core.host.plane, &task);
            match request_of(core, &task) {
                Ok(change) => {
                    let terms = Terms {
                        vouched: task.said.word,
                        kinds: Vec::new(),
                    };
                    core.host.plane.terms.insert(change, terms);
                    let running = Running {
                        begun: task.since.unwrap_or_else(Instant::now),
                        switched: task.switched,
                        silent,
                        task,
                        cancelled: None,
                        reason: None,
                    };
                    self.under_way.begin(change, running);
                }
                Err(reason) => {
                    task.begun = former;
                    let report = task.refused(reason.cause());
                    self.finish(core, task.batch, report, Some(&reason));
                }
            }
        }
    }
}

/// Asks the machine for the change of a task's stage.
fn request_of(core: &mut Core, task: &Task) -> Result<ChangeId, Reason> {
    let now = core.host.plane.now();
    let sub = task.subsession;
    match (task.ask, task.way, task.stage) {
        (Some(host), ..) => core.machine().request_ask(now, host, sub),
        (None, Some(Mode::Local), _) | (None, Some(Mode::Return), Stage::Leave) => {
            core.machine().request_local(now, sub)
        }
        (None, Some(Mode::Return), Stage::Prove | Stage::Return) => {
            core.machine().request_return(now, sub)
        }
        (None, Some(Mode::Auto | Mode::Bypass) | None, _) => core.machine().request_leave(now, sub),
    }
}

/// Returns true if neither end of a task's session has sent anything since it was accepted.
fn is_silent(plane: &Plane, task: &Task) -> bool {
    let now = plane.agent.session(task.session.slot());
    task.accepted.is_silent(&now)
}
