//! Removals as operators ask for them: many sessions at once, a few changes at
//! a time, one report each.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{Engine, commands};
use crate::api::{
    Failure, FailureCode, HostName, Outcome, RemovalReport, Remove, Reply, SessionId, SessionName,
    Summary,
};
use crate::protocol::{ChangeId, Phase, Progress, Reason, Report, Role, Subsession};
use crate::proxy::PairEvent;

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

    /// The sessions that a request is about, and those of them that cannot be.
    fn candidates(&self, request: &Remove) -> Result<(Vec<Task>, Vec<RemovalReport>), Failure> {
        let host = self.resolve(&request.host)?;
        let timeout = request
            .timeout_ms
            .map_or(self.config.removal.timeout, Duration::from_millis);
        let mut tasks = Vec::new();
        let mut refused = Vec::new();
        let all = if request.all {
            self.sessions_through(host)
        } else {
            self.named(&request.sessions)?
        };
        for session in all {
            let task = self.task_of(session, host, timeout)?;
            let judged = match host {
                None => self.measurable(&task.subsession).map(|_| ()),
                Some(_) => Ok(()),
            };
            match judged {
                Ok(()) => tasks.push(task),
                Err(reason) => refused.push(task.report(
                    Outcome::Refused,
                    Some(reason.to_string()),
                    None,
                    None,
                )),
            }
        }
        Ok((tasks, refused))
    }

    /// `None` for this host.
    fn resolve(&self, host: &HostName) -> Result<Option<IpAddr>, Failure> {
        let ip = match host {
            HostName::This => return Ok(None),
            HostName::Address(ip) => *ip,
            HostName::Name(name) if *name == self.config.host.name => return Ok(None),
            HostName::Name(name) => std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), 0))
                .ok()
                .and_then(|mut found| found.next())
                .map(|a| a.ip())
                .ok_or_else(|| Failure {
                    code: FailureCode::NotFound,
                    what: format!("find the host '{name}'"),
                    why: "its name does not resolve".into(),
                    mend: "name it by its address".into(),
                })?,
        };
        Ok((!self.config.host.addresses.contains(&ip)).then_some(ip))
    }

    /// Slots of the sessions that a host's middlebox is in, as seen from here.
    fn sessions_through(&self, host: Option<IpAddr>) -> Vec<u32> {
        match host {
            None => self
                .proxy
                .pairs()
                .iter()
                .filter_map(|p| self.agent.find(&p.a.key))
                .collect(),
            Some(ip) => {
                let through = |s: &dysco_common::Session| {
                    s.key.remote.ip() == ip && s.state == dysco_common::State::Tracked as u32
                };
                let all = self.agent.sessions().into_iter();
                all.filter(|(_, s)| through(s))
                    .map(|(slot, _)| slot)
                    .collect()
            }
        }
    }

    fn named(&self, names: &[SessionName]) -> Result<Vec<u32>, Failure> {
        names
            .iter()
            .map(|name| {
                self.slot_named(name).ok_or_else(|| Failure {
                    code: FailureCode::NotFound,
                    what: format!("find the session '{name}'"),
                    why: "this host has no such session".into(),
                    mend: "see 'dyscoctl sessions' for those it has".into(),
                })
            })
            .collect()
    }

    fn task_of(&self, slot: u32, host: Option<IpAddr>, timeout: Duration) -> Result<Task, Failure> {
        let s = self.agent.session(slot);
        let opened = s.life.opened_here != 0;
        let subsession = if opened {
            commands::opened(&s.key)
        } else {
            commands::accepted(&s.key)
        };
        Ok(Task {
            batch: 0,
            session: self.session_id(slot, &s),
            local: s.key.local(),
            remote: s.key.remote(),
            subsession,
            ask: host,
            timeout,
        })
    }

    fn dry_run(&self, tasks: &[Task], refused: Vec<RemovalReport>, replies: &mpsc::Sender<Reply>) {
        let could = tasks
            .iter()
            .map(|t| t.report(Outcome::Removed, None, None, None));
        let reports: Vec<_> = could.chain(refused).collect();
        let summary = Some(Summary::of(&reports));
        let _ = replies.try_send(Reply::Accepted {
            sessions: reports.len(),
        });
        let replies = replies.clone();
        // A client may read slowly; the engine does not wait for it.
        tokio::spawn(async move {
            for report in reports {
                if replies.send(Reply::Removal(report)).await.is_err() {
                    return;
                }
            }
            let _ = replies.send(Reply::Done { summary }).await;
        });
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

impl Task {
    fn report(
        &self,
        outcome: Outcome,
        reason: Option<String>,
        switched: Option<Duration>,
        closed: Option<Duration>,
    ) -> RemovalReport {
        RemovalReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            request_to_switch_us: switched.map(|d| d.as_micros() as u64),
            request_to_close_us: closed.map(|d| d.as_micros() as u64),
        }
    }
}

impl Running {
    fn end(&self, progress: Progress) -> RemovalReport {
        let because = |reason: Reason| match (&self.reason, &self.cancelled) {
            (Some(better), _) => better.to_string(),
            (None, Some(_)) if reason == Reason::Cancelled => format!(
                "it took longer than {} ms and was taken back",
                self.task.timeout.as_millis()
            ),
            (None, _) => reason.to_string(),
        };
        match progress {
            Progress::RolledBack(reason) => {
                self.task
                    .report(Outcome::RolledBack, Some(because(reason)), None, None)
            }
            Progress::Refused(reason) => {
                self.task
                    .report(Outcome::Refused, Some(because(reason)), None, None)
            }
            _ => self.task.report(
                Outcome::Removed,
                None,
                self.switched,
                Some(self.begun.elapsed()),
            ),
        }
    }
}

fn kind_of(progress: &Progress) -> &'static str {
    match progress {
        Progress::RolledBack(_) => "rolled_back",
        Progress::Refused(_) => "refused",
        _ => "removed",
    }
}

fn words(progress: &Progress) -> String {
    match progress {
        Progress::RolledBack(reason) => format!("rolled back: {reason}"),
        Progress::Refused(reason) => format!("refused: {reason}"),
        _ => "the middlebox has left".to_owned(),
    }
}
