//! Changes of chains on request of operators: many sessions at once, a few changes at a time, one
//! report for each.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dysco_api::{
    ChainChange, ChainOutcome, ChainReport, Failure, FailureCode, HostName, Reconfigure, Reply,
    SessionId, Which,
};
use dysco_common::{Session, View};
use dysco_proto::KindName;
use dysco_proto::asks::{Answer, AskId, ChainWish};
use dysco_proto::{ChangeId, Margins, Order, Progress, Reason, Role, Subsession};
use tokio::sync::mpsc;

use super::chain_of::{is_whole, live, pairs};
use crate::engine::removal::as_removal;
use crate::engine::{Engine, measure};
use crate::metrics::ChangeKind;

/// Origin of a change.
#[derive(Clone, Copy)]
pub(super) enum Whose {
    /// Request on this host, by its batch.
    Batch(u64),
    /// Removal on this host, by its batch.
    Removal(u64),
    /// Request of another host.
    Ask(AskId),
}

/// Requested change of one session.
pub(super) struct Task {
    pub whose: Whose,
    session: SessionId,
    local: SocketAddr,
    remote: SocketAddr,
    pub order: Order,
    /// Wish from which the order was made.
    pub(super) wish: ChainWish,
    /// True if the hosts of its chain know the session as its ends do.
    pub(super) whole: bool,
    /// Kinds of state that move.
    pub(super) kinds: Vec<KindName>,
    /// True if only the plan is reported.
    pub dry: bool,
    pub(super) asked: Instant,
}

/// Change in progress.
pub(super) struct Running {
    pub(super) task: Task,
    pub(super) switched: Option<Duration>,
}

/// Changes of one request.
pub(super) struct Batch {
    /// Channel for reports: one for each session, so their number is bounded.
    reports: mpsc::UnboundedSender<ChainReport>,
    left: usize,
}

impl Task {
    pub fn report(&self, outcome: ChainOutcome, reason: Option<String>) -> ChainReport {
        ChainReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            timed_out: false,
            before: self.order.before.clone(),
            after: self.order.after.clone(),
            request_to_switch_us: None,
            request_to_end_us: None,
            change_id: None,
        }
    }
}

fn failure(code: FailureCode, why: String, hint: &str) -> Failure {
    Failure {
        code,
        what: "give sessions another chain".into(),
        why,
        hint: hint.into(),
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
            .and_then(|wish| Ok((self.chosen(request, &wish)?, wish)));
        let (slots, wish) = match found {
            Ok(found) => found,
            Err(failure) => {
                // The client's channel is fresh and has room, or the client has left.
                let _ = replies.try_send(Reply::Error(failure));
                return;
            }
        };
        let id = self.host.rechain.next_batch;
        self.host.rechain.next_batch += 1;
        let _ = replies.try_send(Reply::Accepted {
            left: Vec::new(),
            sessions: slots.len(),
        });
        let batch = Batch {
            reports: to_client(replies.clone()),
            left: slots.len(),
        };
        self.host.rechain.batches.insert(id, batch);
        if slots.is_empty() {
            self.end_chain_batch(id);
        }
        let state: Vec<_> = request.state.iter().map(|kind| (*kind).into()).collect();
        for slot in slots {
            self.take_slot(Whose::Batch(id), slot, &wish, &state, request.dry_run);
        }
        self.start_chains_waiting();
    }

    /// Removes a host from the chains of these sessions, as a removal requests.
    pub(in crate::engine) fn leave_chains(
        &mut self,
        removal: u64,
        chained: &[(u32, IpAddr)],
        dry_run: bool,
    ) {
        for (slot, host) in chained {
            let wish = ChainWish::Remove(*host);
            self.take_slot(Whose::Removal(removal), *slot, &wish, &[], dry_run);
        }
        self.start_chains_waiting();
    }

    /// Begins one session's part of a request: the host that opened the session judges it.
    fn take_slot(
        &mut self,
        whose: Whose,
        slot: u32,
        wish: &ChainWish,
        state: &[KindName],
        dry_run: bool,
    ) {
        let s = self.host.agent.session(slot);
        if let Some(session) = self.opened_elsewhere(&s) {
            let mut task = self.task_of_chain(whose, slot, session, wish);
            task.dry = dry_run;
            return self.ask_opener(task, &s, wish, state);
        }
        let (mut task, judged) = self.chain_task(whose, slot, wish, state);
        task.dry = dry_run;
        self.take_task(task, judged);
    }

    /// Queues a change that was judged, or ends it.
    pub(super) fn take_task(&mut self, task: Task, judged: Result<(), Reason>) {
        match judged {
            Err(why) => self.refuse_task(&task, &why),
            Ok(()) if task.dry => {
                let report = task.report(ChainOutcome::Changed, None);
                self.end_chain_task(&task, report, None);
            }
            Ok(()) => self.host.rechain.queue.push_back(task),
        }
    }

    pub(super) fn refuse_task(&mut self, task: &Task, why: &Reason) {
        let report = task.report(ChainOutcome::Refused, Some(why.to_string()));
        self.end_chain_task(task, report, Some(why));
    }

    /// Returns the change with the addresses of its hosts; this host may have any of its own
    /// addresses.
    fn resolved(&self, chain: &ChainChange) -> Result<ChainWish, Failure> {
        let own = || {
            let why = "this host has no address".into();
            failure(
                FailureCode::BadRequest,
                why,
                "name hosts by their addresses",
            )
        };
        let first = self.host.config.host.addresses.first().copied();
        let ip = |host: &HostName| match host {
            HostName::Address(ip) => Ok(*ip),
            _ => self.host.resolve(host)?.or(first).ok_or_else(own),
        };
        Ok(match chain {
            ChainChange::Become(hosts) => {
                ChainWish::Become(hosts.iter().map(ip).collect::<Result<_, _>>()?)
            }
            ChainChange::Insert(host) => ChainWish::Insert(ip(host)?),
            ChainChange::Replace { old, new } => ChainWish::Replace(ip(old)?, ip(new)?),
            ChainChange::Remove(host) => ChainWish::Remove(ip(host)?),
        })
    }

    /// Returns the slots that a request concerns.
    fn chosen(&self, request: &Reconfigure, wish: &ChainWish) -> Result<Vec<u32>, Failure> {
        let through = match &request.which {
            Which::Sessions(names) => return self.named(names),
            Which::Through(host) => match self.host.resolve(host)? {
                Some(host) => Some(host),
                None => return Ok(self.passing_here()),
            },
            Which::Filter(_) | Which::All => None,
        };
        let mut all = self.host.agent.sessions();
        all.retain(|(_, s)| opens(s));
        // If a host is to leave chains, the sessions are those that pass it, whichever host opened
        // them.
        let leaves = |host: IpAddr| self.host.config.host.addresses.contains(&host);
        let leaves_here = wish.leaves().is_some_and(leaves);
        if leaves_here {
            let passing = self.passing_here().into_iter();
            let passing = passing.map(|slot| (slot, self.host.agent.session(slot)));
            match &request.which {
                Which::All => return Ok(passing.map(|(slot, _)| slot).collect()),
                Which::Filter(_) => all = passing.collect(),
                Which::Through(_) | Which::Sessions(_) => {}
            }
        }
        Ok(all
            .into_iter()
            .filter(|(slot, s)| {
                let now = self.host.chain_now(*slot, s);
                let meant = leaves_here || wish.makes_sense(&now);
                match &request.which {
                    Which::Filter(filter) => {
                        meant && filter.matches(&self.host.report_of(*slot, s))
                    }
                    Which::Through(_) => through.is_some_and(|host| now.contains(&host)),
                    // A session that is opening does not yet count. A session that was adopted and
                    // not heard since counts, and is refused for that reason.
                    _ => meant && (live(s) || s.view() == View::Adopted),
                }
            })
            .map(|(slot, _)| slot)
            .collect())
    }

    /// Returns one session's part of a request, and the objection to it.
    pub(super) fn chain_task(
        &self,
        whose: Whose,
        slot: u32,
        wish: &ChainWish,
        state: &[KindName],
    ) -> (Task, Result<(), Reason>) {
        let s = self.host.agent.session(slot);
        let before = self.host.chain_now(slot, &s);
        let after = wish.apply(&before);
        let mut task = self.task_of_chain(whose, slot, measure::opened(&s.name()), wish);
        task.order.before = before.clone();
        task.order.after = after.clone().unwrap_or_default();
        let judged = after.and_then(|after| {
            self.fits(&s, &before, &after)?;
            if !state.is_empty() {
                task.kinds = state.to_vec();
                task.order.state = pairs(&before, &after)?;
            }
            if wish.is_about_one() && is_whole(&s) {
                task.order.margins = Margins::between(&before, &after);
            }
            Ok(())
        });
        (task, judged)
    }

    /// Returns a change whose result is not known yet.
    fn task_of_chain(
        &self,
        whose: Whose,
        slot: u32,
        session: Subsession,
        wish: &ChainWish,
    ) -> Task {
        let s = self.host.agent.session(slot);
        let order = Order {
            session,
            before: Vec::new(),
            after: Vec::new(),
            margins: Margins::default(),
            state: Vec::new(),
            paths: Vec::new(),
            number: 0,
        };
        Task {
            whose,
            session: self.host.session_id(slot, &s),
            local: s.key.local(),
            remote: s.key.remote(),
            order,
            wish: wish.clone(),
            whole: is_whole(&s),
            kinds: Vec::new(),
            dry: false,
            asked: Instant::now(),
        }
    }

    /// Handles the machine's report on how far a change is.
    pub(in crate::engine) fn chain_progress(
        &mut self,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: Progress,
        at: Instant,
    ) {
        let progress = self.host.exactly(subsession, progress);
        if progress.is_end() {
            self.tell_chain(change, role, subsession, &progress);
            self.wake_chains();
        }
        let Some(running) = self.host.rechain.running.get_mut(&change) else {
            return;
        };
        let took = at.saturating_duration_since(running.task.asked);
        let (outcome, why) = match progress {
            Progress::Switched => {
                running.switched = Some(took);
                return self.start_chains_waiting();
            }
            Progress::Removed => (ChainOutcome::Changed, None),
            Progress::RolledBack(why) => (ChainOutcome::RolledBack, Some(why)),
            Progress::Refused(why) => (ChainOutcome::Refused, Some(why)),
            _ => return,
        };
        let Some(running) = self.host.rechain.running.remove(&change) else {
            return;
        };
        self.host.terms.remove(&change);
        let Some(running) = self.unless_it_waits(running, why.as_ref()) else {
            return self.start_chains_waiting();
        };
        let reason = why.as_ref().map(Reason::to_string);
        let mut report = running.task.report(outcome, reason);
        report.timed_out = why.as_ref().is_some_and(Reason::is_of_time);
        report.change_id = Some(change.to_string());
        report.session = self.host.rechain.name_now(report.session);
        let micros = |d: Duration| d.as_micros() as u64;
        if outcome == ChainOutcome::Changed {
            report.request_to_switch_us = running.switched.map(micros);
            report.request_to_end_us = Some(micros(took));
        }
        self.end_chain_task(&running.task, report, why.as_ref());
        self.start_chains_waiting();
    }

    fn tell_chain(
        &mut self,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: &Progress,
    ) {
        let slot = self.host.find_for(change, subsession);
        let session = slot.map(|slot| self.host.session_id(slot, &self.host.agent.session(slot)));
        let (kind, what) = match progress {
            Progress::RolledBack(why) => ("rolled_back", format!("rolled back: {why}")),
            Progress::Refused(why) => ("refused", format!("refused: {why}")),
            _ => ("rechained", "it has another chain".to_owned()),
        };
        let text = format!("{subsession} ({role}): {what}");
        self.host
            .report_part(Some(change.to_string()), kind, session, text);
    }

    /// Ends one session's part of a request; `why` is the reason if it was not done.
    pub(super) fn end_chain_task(
        &mut self,
        task: &Task,
        report: ChainReport,
        why: Option<&Reason>,
    ) {
        // A removal counts its own changes.
        if !task.dry && !matches!(task.whose, Whose::Removal(_)) {
            let outcome = as_removal(report.outcome);
            self.tally.told(ChangeKind::Chain, outcome, why);
            let (switch, end) = (report.request_to_switch_us, report.request_to_end_us);
            self.tally.took(ChangeKind::Chain, switch, end);
        }
        let batch = match task.whose {
            Whose::Batch(batch) => batch,
            Whose::Removal(batch) => return self.left_chain(batch, report, why),
            Whose::Ask(ask) => {
                let answer = Answer {
                    outcome: report.outcome.into(),
                    reason: report.reason,
                    before: report.before,
                    after: report.after,
                    timed_out: report.timed_out,
                };
                return self.answer_ask(ask, answer);
            }
        };
        let Some(b) = self.host.rechain.batches.get_mut(&batch) else {
            return;
        };
        // A client may read slowly, or have left.
        let _ = b.reports.send(report);
        b.left -= 1;
        if b.left == 0 {
            self.end_chain_batch(batch);
        }
    }

    /// Ends a batch. The client is notified once it has read the reports before that.
    fn end_chain_batch(&mut self, id: u64) {
        self.host.rechain.batches.remove(&id);
    }
}

/// Returns true if this is a live session's only entry, on the host that opened it.
pub(in crate::engine) fn opens(s: &Session) -> bool {
    has_opened(s) && !s.has_ended()
}

/// Returns true if this is a session's only entry, on the host that opened it, even if it has
/// ended.
pub(in crate::engine) fn has_opened(s: &Session) -> bool {
    s.life.opened_here != 0 && s.is_current() && (s.joined_to().is_none() || s.view().is_relayed())
}

/// Forwards reports to a client at the client's pace, and then the end.
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
