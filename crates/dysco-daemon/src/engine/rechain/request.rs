//! Other chains as operators ask for them: many sessions at once, a few changes at
//! a time, one report each.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dysco_common::chain::MAX_CHAIN;
use dysco_common::{Session, State};
use tokio::sync::mpsc;

use crate::api::{
    ChainChange, ChainOutcome, ChainReport, Failure, FailureCode, HostName, Reconfigure, Reply,
    SessionId, Which,
};
use crate::engine::chains::MANY;
use crate::engine::{Engine, measure};
use crate::protocol::{ChangeId, Margins, Order, Progress, Reason, Role, Subsession};

/// One session's change that is asked for.
pub(super) struct Task {
    batch: u64,
    session: SessionId,
    local: SocketAddr,
    remote: SocketAddr,
    order: Order,
    asked: Instant,
}

/// One that is under way.
pub(super) struct Running {
    task: Task,
    switched: Option<Duration>,
}

/// The changes of one request.
pub(super) struct Batch {
    /// One for each session, so no more than there are.
    reports: mpsc::UnboundedSender<ChainReport>,
    left: usize,
}

impl Task {
    fn report(&self, outcome: ChainOutcome, reason: Option<String>) -> ChainReport {
        ChainReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            before: self.order.before.clone(),
            after: self.order.after.clone(),
            request_to_switch_us: None,
            request_to_end_us: None,
        }
    }
}

fn failure(code: FailureCode, why: String, mend: &str) -> Failure {
    Failure {
        code,
        what: "give sessions another chain".into(),
        why,
        mend: mend.into(),
    }
}

impl Engine {
    pub(in crate::engine) fn reconfigure(
        &mut self,
        request: &Reconfigure,
        replies: &mpsc::Sender<Reply>,
    ) {
        let found = self
            .resolved(&request.chain)
            .and_then(|chain| Ok((self.chosen(request, &chain)?, chain)));
        let (slots, chain) = match found {
            Ok(found) => found,
            Err(failure) => {
                // The client's channel is fresh and has room, or the client has left.
                let _ = replies.try_send(Reply::Error(failure));
                return;
            }
        };
        let id = self.rechain.next_batch;
        self.rechain.next_batch += 1;
        let _ = replies.try_send(Reply::Accepted {
            sessions: slots.len(),
        });
        let batch = Batch {
            reports: to_client(replies.clone()),
            left: slots.len(),
        };
        self.rechain.batches.insert(id, batch);
        if slots.is_empty() {
            self.end_chain_batch(id);
        }
        for slot in slots {
            let (task, judged) = self.chain_task(id, slot, &chain, request.state);
            match judged {
                Err(why) => self.end_chain_task(id, task.report(ChainOutcome::Refused, Some(why))),
                Ok(()) if request.dry_run => {
                    self.end_chain_task(id, task.report(ChainOutcome::Changed, None));
                }
                Ok(()) => self.rechain.queue.push_back(task),
            }
        }
        self.start_chains_waiting();
    }

    /// The change with the addresses of its hosts.
    fn resolved(&self, chain: &ChainChange) -> Result<Resolved, Failure> {
        let own = || {
            let why = "this host is an end of the session".into();
            failure(
                FailureCode::BadRequest,
                why,
                "name the hosts between the two ends",
            )
        };
        let ip = |host: &HostName| self.resolve(host)?.ok_or_else(own);
        Ok(match chain {
            ChainChange::Become(hosts) => {
                Resolved::Become(hosts.iter().map(ip).collect::<Result<_, _>>()?)
            }
            ChainChange::Insert(host) => Resolved::Insert(ip(host)?),
            ChainChange::Replace { old, new } => Resolved::Replace(ip(old)?, ip(new)?),
            ChainChange::Remove(host) => Resolved::Remove(ip(host)?),
        })
    }

    /// The slots that a request is about.
    fn chosen(&self, request: &Reconfigure, chain: &Resolved) -> Result<Vec<u32>, Failure> {
        let through = match &request.which {
            Which::Sessions(names) => return self.named(names),
            Which::Through(host) => self.resolve(host)?,
            Which::Filter(_) | Which::All => None,
        };
        let opened = |(_, s): &(u32, Session)| {
            s.life.opened_here != 0
                && s.two.part == dysco_common::session::part::CURRENT
                && (s.joined_to().is_none() || s.state == State::Relay as u32)
        };
        let all = self.agent.sessions().into_iter().filter(opened);
        Ok(all
            .filter(|(slot, s)| {
                let now = self.chain_now(*slot, s);
                match &request.which {
                    Which::Filter(filter) => filter.matches(&self.report_of(*slot, s)),
                    Which::Through(_) => through.is_some_and(|host| now.contains(&host)),
                    _ => chain.makes_sense(&now) && live(s),
                }
            })
            .map(|(slot, _)| slot)
            .collect())
    }

    /// The hosts that a session passes, where it was opened here.
    pub(super) fn chain_now(&self, slot: u32, s: &Session) -> Vec<IpAddr> {
        if s.two.chained == 0 {
            return Vec::new();
        }
        self.agent.chain_of(slot).unwrap_or_default()
    }

    /// Takes down what a session passes now between two hosts of its chain, or its ends.
    pub(in crate::engine) fn splice_chain(
        &mut self,
        session: &Subsession,
        between: (Option<IpAddr>, Option<IpAddr>),
        hosts: &[IpAddr],
    ) {
        let Some(slot) = self.find(session) else {
            return;
        };
        // It may be about to take another path, or the one before again.
        let mut paths = self.rechain.paths.values();
        let next = paths.find(|p| p.first.0 == slot).and_then(|p| p.second);
        let other = self.agent.session(slot).other_path().or(next);
        for slot in [Some(slot), other].into_iter().flatten() {
            let now = self.chain_now(slot, &self.agent.session(slot));
            let Some(chain) = spliced(&now, between, hosts) else {
                tracing::error!(%session, ?now, ?between, "a session's chain is not what was taken down");
                continue;
            };
            if let Err(error) = self.agent.set_chain(slot, &chain) {
                tracing::error!(%session, %error, "a session's chain is not taken down");
            }
        }
    }

    /// One session's part of a request, and what speaks against it.
    fn chain_task(
        &self,
        batch: u64,
        slot: u32,
        chain: &Resolved,
        state: bool,
    ) -> (Task, Result<(), String>) {
        let s = self.agent.session(slot);
        let before = self.chain_now(slot, &s);
        let after = chain.apply(&before);
        let order = Order {
            session: measure::opened(&s.name()),
            before: before.clone(),
            after: after.clone().unwrap_or_default(),
            margins: Margins::default(),
            state: Vec::new(),
        };
        let mut task = Task {
            batch,
            session: self.session_id(slot, &s),
            local: s.key.local(),
            remote: s.key.remote(),
            order,
            asked: Instant::now(),
        };
        let judged = after.and_then(|after| {
            self.fits(&s, &before, &after)?;
            if state {
                task.order.state = pairs(&before, &after)?;
            }
            if chain.is_about_one() && is_whole(&s) {
                task.order.margins = Margins::between(&before, &after);
            }
            Ok(())
        });
        (task, judged.map_err(|reason| reason.to_string()))
    }

    fn fits(&self, s: &Session, before: &[IpAddr], after: &[IpAddr]) -> Result<(), Reason> {
        let no = |why: String| Err(Reason::NoSuchChain(why));
        self.not_in_between(s)?;
        self.has_a_neighbour(s)?;
        if s.life.opened_here == 0 {
            let opener = s.name().remote.ip();
            return no(format!("this host has not opened it; ask on {opener}"));
        }
        let own = measure::opened(&s.key);
        if s.alias().is_some() && self.machine.is_changing(&own) {
            return no("its middlebox has not left it altogether; ask again in a moment".into());
        }
        if !live(s) {
            measure::facts(s, &own)?;
        }
        if before == after {
            return no("it has that chain; nothing is to be done".into());
        }
        if after.len() > MAX_CHAIN {
            return no(format!(
                "a chain has {MAX_CHAIN} hosts at most; leave some out"
            ));
        }
        let server = s.name().remote.ip();
        let mut seen = HashSet::new();
        for host in after {
            if host.is_ipv4() != server.is_ipv4() {
                return no(format!(
                    "{host} is of the other address family; name its other address"
                ));
            }
            if *host == server || self.config.host.addresses.contains(host) {
                return no(format!(
                    "{host} is an end of it; name the hosts between the two ends"
                ));
            }
            if !seen.insert(host) {
                return no(format!("{host} is in it twice; leave one out"));
            }
        }
        Ok(())
    }

    /// Another request may have changed it while this one waited for its turn.
    fn still_has_chain(&self, task: &Task) -> Result<(), Reason> {
        let now = self
            .find(&task.order.session)
            .map(|slot| self.chain_now(slot, &self.agent.session(slot)));
        match now {
            Some(now) if now != task.order.before => Err(Reason::NoSuchChain(
                "its chain was changed while this waited for its turn; ask again".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Begins what waits, as far as there is room. What has its new path makes
    /// room: it only waits for late packets of the path before.
    fn start_chains_waiting(&mut self) {
        let most = self.config.removal.concurrency;
        let on_their_way = |running: &HashMap<_, Running>| {
            let waits = |r: &&Running| r.switched.is_none();
            running.values().filter(waits).count()
        };
        while self.rechain.running.len() < most.max(MANY)
            && on_their_way(&self.rechain.running) < most
        {
            let Some(task) = self.rechain.queue.pop_front() else {
                return;
            };
            let now = self.now();
            let begun = self
                .still_has_chain(&task)
                .and_then(|()| self.machine.request_chain(now, task.order.clone()));
            match begun {
                Ok(change) => {
                    let running = Running {
                        task,
                        switched: None,
                    };
                    self.rechain.running.insert(change, running);
                }
                Err(reason) => {
                    let report = task.report(ChainOutcome::Refused, Some(reason.to_string()));
                    self.end_chain_task(task.batch, report);
                }
            }
        }
    }

    /// The machine tells how far a change has come.
    pub(in crate::engine) fn chain_progress(
        &mut self,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: Progress,
    ) {
        let progress = self.exactly(subsession, progress);
        if progress.is_end() {
            self.tell_chain(role, subsession, &progress);
        }
        let Some(running) = self.rechain.running.get_mut(&change) else {
            return;
        };
        let took = running.task.asked.elapsed();
        let (outcome, reason) = match progress {
            Progress::Switched => {
                running.switched = Some(took);
                return self.start_chains_waiting();
            }
            Progress::Removed => (ChainOutcome::Changed, None),
            Progress::RolledBack(why) => (ChainOutcome::RolledBack, Some(why.to_string())),
            Progress::Refused(why) => (ChainOutcome::Refused, Some(why.to_string())),
            _ => return,
        };
        let Some(running) = self.rechain.running.remove(&change) else {
            return;
        };
        let mut report = running.task.report(outcome, reason);
        report.session = self.rechain.name_now(report.session);
        let micros = |d: Duration| d.as_micros() as u64;
        if outcome == ChainOutcome::Changed {
            report.request_to_switch_us = running.switched.map(micros);
            report.request_to_end_us = Some(micros(took));
        }
        self.end_chain_task(running.task.batch, report);
        self.start_chains_waiting();
    }

    fn tell_chain(&mut self, role: Role, subsession: &Subsession, progress: &Progress) {
        let slot = self.find(subsession);
        let session = slot.map(|slot| self.session_id(slot, &self.agent.session(slot)));
        let (kind, what) = match progress {
            Progress::RolledBack(why) => ("rolled_back", format!("rolled back: {why}")),
            Progress::Refused(why) => ("refused", format!("refused: {why}")),
            _ => ("rechained", "it has another chain".to_owned()),
        };
        self.report(kind, session, format!("{subsession} ({role}): {what}"));
    }

    fn end_chain_task(&mut self, batch: u64, report: ChainReport) {
        let Some(b) = self.rechain.batches.get_mut(&batch) else {
            return;
        };
        // A client may read slowly, or have left.
        let _ = b.reports.send(report);
        b.left -= 1;
        if b.left == 0 {
            self.end_chain_batch(batch);
        }
    }

    /// The client is told once it has read what came before.
    fn end_chain_batch(&mut self, id: u64) {
        self.rechain.batches.remove(&id);
    }
}

/// Passes on what is sent here to a client, at the client's pace, and then the end.
fn to_client(replies: mpsc::Sender<Reply>) -> mpsc::UnboundedSender<ChainReport> {
    let (reports, mut waiting) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(report) = waiting.recv().await {
            if replies.send(Reply::Rechained(report)).await.is_err() {
                return;
            }
        }
        // The client may have left.
        let _ = replies.send(Reply::Done { summary: None }).await;
    });
    reports
}

/// Do the hosts of its chain know the session as its ends do? Then each of them may be
/// an anchor.
fn is_whole(s: &Session) -> bool {
    s.alias().is_none() && s.relay == 0 && s.state != State::Relay as u32
}

/// A chain with other hosts between two of it, or its ends; none if it has them not.
pub(super) fn spliced(
    now: &[IpAddr],
    (left, right): (Option<IpAddr>, Option<IpAddr>),
    hosts: &[IpAddr],
) -> Option<Vec<IpAddr>> {
    let place = |host: IpAddr| now.iter().position(|h| *h == host);
    let from = left.map_or(Some(0), |host| Some(place(host)? + 1))?;
    let to = right.map_or(Some(now.len()), place)?;
    let (before, behind) = (now.get(..from)?, now.get(to.max(from)..)?);
    Some([before, hosts, behind].concat())
}

/// Can it get another chain now?
fn live(s: &Session) -> bool {
    match State::from_word(s.state) {
        Some(State::Tracked | State::Relay) => !s.has_ended(),
        Some(State::NewPath | State::Switching) => {
            (s.two.chained > 1 || s.alias().is_some()) && !s.has_ended()
        }
        _ => false,
    }
}

/// A [`ChainChange`] with addresses.
enum Resolved {
    Become(Vec<IpAddr>),
    Insert(IpAddr),
    Replace(IpAddr, IpAddr),
    Remove(IpAddr),
}

impl Resolved {
    /// Is it about one host, and not about the chain as a whole?
    fn is_about_one(&self) -> bool {
        !matches!(self, Resolved::Become(_))
    }

    /// Is a session with this chain meant, where all are?
    fn makes_sense(&self, now: &[IpAddr]) -> bool {
        match self {
            Resolved::Become(hosts) => hosts != now,
            Resolved::Insert(host) => !now.contains(host),
            Resolved::Replace(old, _) | Resolved::Remove(old) => now.contains(old),
        }
    }

    fn apply(&self, now: &[IpAddr]) -> Result<Vec<IpAddr>, Reason> {
        let (old, new) = match self {
            Resolved::Become(hosts) => return Ok(hosts.clone()),
            Resolved::Insert(host) => {
                return Ok(now.iter().copied().chain([*host]).collect());
            }
            Resolved::Replace(old, new) => (old, Some(*new)),
            Resolved::Remove(old) => (old, None),
        };
        if !now.contains(old) {
            let why = format!("{old} is not in it; see 'dyscoctl sessions' for what is");
            return Err(Reason::NoSuchChain(why));
        }
        let place = |host: &IpAddr| match host == old {
            true => new,
            false => Some(*host),
        };
        Ok(now.iter().filter_map(place).collect())
    }
}

/// Whose state goes to whom: the first that leaves to the first that comes. Who
/// stays has it.
fn pairs(before: &[IpAddr], after: &[IpAddr]) -> Result<Vec<(IpAddr, IpAddr)>, Reason> {
    let not_in = |hosts: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
        let only = hosts.iter().filter(|host| !others.contains(host));
        only.copied().collect()
    };
    let (leave, come) = (not_in(before, after), not_in(after, before));
    if leave.len() != come.len() {
        return Err(Reason::NoSuchChain(format!(
            "state of {} hosts that leave cannot go to {} that come; leave --state out, or replace one host by one",
            leave.len(),
            come.len()
        )));
    }
    Ok(leave.into_iter().zip(come).collect())
}
