//! Removals as operators ask for them: many sessions at once, a few changes at
//! a time, one report each.

mod candidates;
mod report;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Engine;
use crate::api::{Outcome, RemovalReport, Remove, Reply, SessionId, Summary};
use crate::protocol::{ChangeId, Phase, Progress, Reason, Report, Role, Subsession};
use crate::proxy::PairEvent;
use report::{kind_of, words};

/// How long after a removal was given up its end is waited for.
const GRACE: Duration = Duration::from_secs(2);
/// Removals under way together share the daemons' processors, and each takes
/// as much longer: they begin one by one, and one that takes longer than this
/// no longer holds up the next.
const TURN: Duration = Duration::from_millis(5);

/// All removals that were asked for on this host.
pub(super) struct Removals {
    concurrency: usize,
    waiting: VecDeque<Task>,
    running: HashMap<ChangeId, Running>,
    batches: HashMap<u64, Batch>,
    next_batch: u64,
}

/// One session's removal, to be begun.
#[derive(Clone)]
struct Task {
    batch: u64,
    session: SessionId,
    /// This host's side of the session.
    local: std::net::SocketAddr,
    remote: std::net::SocketAddr,
    subsession: Subsession,
    /// The host to ask, unless it is this one.
    ask: Option<IpAddr>,
    timeout: Duration,
}

struct Running {
    task: Task,
    begun: Instant,
    switched: Option<Duration>,
    cancelled: Option<Instant>,
    /// A better reason than the machine's.
    reason: Option<Reason>,
}

/// The removals of one request.
struct Batch {
    replies: Option<mpsc::Sender<Reply>>,
    reports: Vec<RemovalReport>,
    left: usize,
}

impl Removals {
    pub fn new(concurrency: usize) -> Removals {
        Removals {
            concurrency: concurrency.max(1),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            batches: HashMap::new(),
            next_batch: 0,
        }
    }

    /// When the next one that waits may begin, if one waits and there is room.
    pub fn next_turn(&self) -> Option<Instant> {
        if self.waiting.is_empty() || self.running.len() >= self.concurrency {
            return None;
        }
        let begun = self.running.values().map(|r| r.begun).max();
        Some(begun.map_or_else(Instant::now, |begun| begun + TURN))
    }

    fn knows(&self, subsession: &Subsession) -> bool {
        self.waiting.iter().any(|t| t.subsession == *subsession)
            || self
                .running
                .values()
                .any(|r| r.task.subsession == *subsession)
    }
}

impl Engine {
    pub(super) fn remove(&mut self, request: &Remove, replies: &mpsc::Sender<Reply>) {
        match self.candidates(request) {
            Ok((tasks, refused)) if request.dry_run => self.dry_run(&tasks, refused, replies),
            Ok((tasks, refused)) => self.begin_batch(tasks, refused, replies),
            Err(failure) => {
                let _ = replies.try_send(Reply::Error(failure));
            }
        }
    }

    fn begin_batch(
        &mut self,
        tasks: Vec<Task>,
        refused: Vec<RemovalReport>,
        replies: &mpsc::Sender<Reply>,
    ) {
        let id = self.removals.next_batch;
        self.removals.next_batch += 1;
        let left = tasks.len() + refused.len();
        let _ = replies.try_send(Reply::Accepted { sessions: left });
        let batch = Batch {
            replies: Some(replies.clone()),
            reports: Vec::new(),
            left,
        };
        self.removals.batches.insert(id, batch);
        for report in refused {
            self.finish(id, report);
        }
        if left == 0 {
            self.end_batch(id);
        }
        self.removals
            .waiting
            .extend(tasks.into_iter().map(|t| Task { batch: id, ..t }));
        self.start_waiting();
    }

    /// Begins the next of those that wait, if its turn has come.
    pub(super) fn start_waiting(&mut self) {
        let its_turn = |r: &Removals| r.next_turn().is_some_and(|at| at <= Instant::now());
        while its_turn(&self.removals) {
            let Some(task) = self.removals.waiting.pop_front() else {
                break;
            };
            let now = self.now();
            let begun = match task.ask {
                None => self.machine.request_leave(now, task.subsession),
                Some(host) => self.machine.request_ask(now, host, task.subsession),
            };
            match begun {
                Ok(change) => {
                    let running = Running {
                        task,
                        begun: Instant::now(),
                        switched: None,
                        cancelled: None,
                        reason: None,
                    };
                    self.removals.running.insert(change, running);
                }
                Err(reason) => {
                    let report =
                        task.report(Outcome::Refused, Some(reason.to_string()), None, None);
                    self.finish(task.batch, report);
                }
            }
        }
    }

    fn finish(&mut self, batch: u64, report: RemovalReport) {
        let kind = match report.outcome {
            Outcome::Removed => "removed",
            Outcome::Refused => "refused",
            Outcome::RolledBack => "rolled_back",
            Outcome::Pending => "pending",
        };
        let reason = report
            .reason
            .as_deref()
            .map_or(String::new(), |r| format!(": {r}"));
        let text = format!("{} > {} {kind}{reason}", report.local, report.remote);
        self.report(kind, Some(report.session), text);
        let Some(b) = self.removals.batches.get_mut(&batch) else {
            return;
        };
        if let Some(replies) = &b.replies {
            let _ = replies.try_send(Reply::Removal(report.clone()));
        }
        b.reports.push(report);
        b.left -= 1;
        if b.left == 0 {
            self.end_batch(batch);
        }
    }

    fn end_batch(&mut self, id: u64) {
        let Some(batch) = self.removals.batches.remove(&id) else {
            return;
        };
        let summary = Some(Summary::of(&batch.reports));
        if let Some(replies) = batch.replies {
            tokio::spawn(async move {
                let _ = replies.send(Reply::Done { summary }).await;
            });
        }
    }

    /// The machine tells how far a change has come.
    pub(super) fn take_report(&mut self, report: Report) {
        match report {
            Report::Progress {
                change,
                role,
                subsession,
                progress,
            } => {
                self.progress(change, role, &subsession, progress);
            }
            Report::Violation {
                from,
                message,
                violation,
                ..
            } => {
                let from = from.map_or("an unknown host".to_owned(), |f| f.to_string());
                self.report(
                    "violation",
                    None,
                    format!("{message} from {from} was ignored: {violation}"),
                );
            }
            Report::Trouble { change, reason } => {
                self.report("trouble", None, format!("change {change}: {reason}"));
            }
        }
    }

    fn progress(
        &mut self,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: Progress,
    ) {
        let slot = self.find(subsession);
        let session = slot.map(|slot| self.session_id(slot, &self.agent.session(slot)));
        if role != Role::Middle && role != Role::Asker {
            if progress.is_end() {
                self.report(
                    kind_of(&progress),
                    session,
                    format!("{subsession} ({role}): {}", words(&progress)),
                );
                self.held.remove(&change);
            }
            return;
        }
        if progress.is_end() {
            self.held.remove(&change);
        }
        let Some(running) = self.removals.running.get_mut(&change) else {
            return;
        };
        if progress == Progress::Switched {
            running.switched = Some(running.begun.elapsed());
        }
        if !progress.is_end() {
            return;
        }
        let Some(running) = self.removals.running.remove(&change) else {
            return;
        };
        self.held.remove(&change);
        let report = running.end(progress);
        self.finish(running.task.batch, report);
        self.start_waiting();
    }

    /// Gives up what has taken too long.
    pub(super) fn removals_due(&mut self) {
        let now = Instant::now();
        let mut cancel = Vec::new();
        let mut pending = Vec::new();
        for (change, r) in &mut self.removals.running {
            match r.cancelled {
                None if now > r.begun + r.task.timeout => {
                    r.cancelled = Some(now);
                    cancel.push(*change);
                }
                Some(at) if now > at + GRACE => pending.push(*change),
                _ => {}
            }
        }
        let time = self.now();
        for change in cancel {
            self.machine.cancel(time, change);
        }
        for change in pending {
            if let Some(r) = self.removals.running.remove(&change) {
                let why = match r.task.ask {
                    None => {
                        "past the point of no return and not drained in time; it goes on by itself"
                            .to_owned()
                    }
                    Some(host) => format!(
                        "{host} has begun it and not told its end in time; see 'dyscoctl sessions' there"
                    ),
                };
                let report = r.task.report(Outcome::Pending, Some(why), r.switched, None);
                self.finish(r.task.batch, report);
            }
        }
        self.start_waiting();
    }

    /// A peer cannot be reached: changes that need it to begin are over.
    pub(super) fn removals_without(&mut self, peer: IpAddr) {
        let early = |p: Phase| matches!(p, Phase::Leaving | Phase::Locking);
        let affected: Vec<ChangeId> = self
            .machine
            .changes()
            .filter(|c| c.role == Role::Middle && early(c.phase))
            .filter(|c| {
                self.held
                    .get(&c.change)
                    .and_then(|h| h.pair)
                    .is_some_and(|pair| {
                        let waits_for = if c.phase == Phase::Leaving {
                            pair.a
                        } else {
                            pair.b
                        };
                        waits_for.key.remote.ip() == peer
                    })
            })
            .map(|c| c.change)
            .collect();
        let asked = self.removals.running.iter();
        let asked = asked
            .filter(|(_, r)| r.task.ask == Some(peer))
            .map(|(change, _)| *change);
        let affected: Vec<ChangeId> = affected.into_iter().chain(asked).collect();
        let now = self.now();
        for change in affected {
            if let Some(r) = self.removals.running.get_mut(&change)
                && r.task.ask.is_none()
            {
                r.reason = Some(Reason::NoAgent(peer));
            }
            self.machine.cancel(now, change);
        }
    }

    /// Begins a removal by itself, where the configuration says so.
    pub(super) fn take_pair(&mut self, event: &PairEvent) {
        let (PairEvent::New(pair) | PairEvent::Changed(pair)) = event else {
            return;
        };
        if !self.config.removal.automatic || self.proxy.transparent(pair).is_err() {
            return;
        }
        let Some(slot) = self.agent.find(&pair.a.key) else {
            return;
        };
        let Ok(task) = self.task_of(slot, None, self.config.removal.timeout) else {
            return;
        };
        if !self.removals.knows(&task.subsession) {
            self.removals.waiting.push_back(Task {
                batch: u64::MAX,
                ..task
            });
            self.start_waiting();
        }
    }
}
