//! Changes of chains on request of operators: many sessions at once, a few changes at a time, one
//! report for each.

use std::time::{Duration, Instant};

use dysco_api::{ChainOutcome, ChainReport, Reconfigure, Reply};
use dysco_common::Element;
use dysco_proto::KindName;
use dysco_proto::asks::{Answer, ChainWish};
use dysco_proto::{ChangeId, Progress, Reason, Role, Subsession};
use tokio::sync::mpsc;

use super::choice::{chain_task, chosen, resolved, task_of_chain};
use super::task::{Task, Whose};
use super::turn::Turn;
use super::{ChainRequests, EndedForRemoval};
use crate::api::Caller;
use crate::engine::Plane;
use crate::engine::core::Core;
use crate::engine::history::Origin;
use crate::engine::paced::Pace;
use crate::engine::removal::leaving::{Leaving, as_removal};
use crate::metrics::ChangeKind;

/// Changes of one request.
pub(super) struct Batch {
    /// Channel for reports: one for each session, so their number is bounded.
    reports: mpsc::UnboundedSender<ChainReport>,
    left: usize,
}

impl ChainRequests {
    pub(in crate::engine) fn reconfigure(
        &mut self,
        core: &mut Core,
        request: &Reconfigure,
        caller: &Caller,
        replies: &mpsc::Sender<Reply>,
    ) {
        let found = resolved(&core.host.plane, &request.chain)
            .and_then(|wish| Ok((chosen(&core.host.plane, request, &wish)?, wish)));
        let (slots, wish) = match found {
            Ok(found) => found,
            Err(failure) => {
                // The client's channel is fresh and has room, or the client has left.
                let _ = replies.try_send(Reply::Error(failure));
                return;
            }
        };
        let id = self.next_batch;
        self.next_batch += 1;
        let _ = replies.try_send(Reply::Accepted {
            left: Vec::new(),
            sessions: slots.len(),
        });
        let batch = Batch {
            reports: to_client(replies.clone()),
            left: slots.len(),
        };
        self.batches.insert(id, batch);
        if slots.is_empty() {
            self.end_chain_batch(id);
        }
        let state: Vec<_> = request.state.iter().map(|kind| (*kind).into()).collect();
        let pace = request.rate.filter(|_| !request.dry_run).map(Pace::new);
        let (whose, dry_run) = (Whose::Batch(id), request.dry_run);
        self.limit(whose, pace.as_ref());
        self.requesters.add(whose, caller.words(), slots.len());
        for slot in slots {
            self.take_or_wait(core, whose, slot, &wish, &state, dry_run);
        }
        self.start_chains_waiting(core);
    }

    /// Limits the rate at which the changes of a request begin.
    fn limit(&mut self, whose: Whose, pace: Option<&Pace>) {
        if let Some(pace) = pace {
            self.paced.limit(whose, pace.clone());
        }
    }

    /// Begins one session's part of a request, or lets it wait for its turn.
    fn take_or_wait(
        &mut self,
        core: &mut Core,
        whose: Whose,
        slot: u32,
        wish: &ChainWish,
        state: &[KindName],
        dry_run: bool,
    ) {
        let turn = Turn::of(&core.host.plane, whose, slot, wish, state);
        // A request without a limit takes no turns.
        if self.paced.push(whose, turn).is_err() {
            self.take_slot(core, whose, slot, wish, state, dry_run);
        }
    }

    /// Removes a host from the chains of these sessions, as a removal requests.
    pub(in crate::engine) fn leave_chains(&mut self, core: &mut Core, leaving: &Leaving) {
        let whose = Whose::Removal(leaving.removal);
        let pace = leaving.pace.as_ref().filter(|_| !leaving.dry_run);
        self.limit(whose, pace);
        let (by, changes) = (leaving.by.clone(), leaving.chained.len());
        self.requesters.add(whose, by, changes);
        for (slot, host) in &leaving.chained {
            let wish = ChainWish::Remove(*host);
            self.take_or_wait(core, whose, *slot, &wish, &[], leaving.dry_run);
        }
        self.start_chains_waiting(core);
    }

    /// Begins one session's part of a request: the host that opened the session judges it.
    pub(super) fn take_slot(
        &mut self,
        core: &mut Core,
        whose: Whose,
        slot: u32,
        wish: &ChainWish,
        state: &[KindName],
        dry_run: bool,
    ) {
        let s = core.host.plane.agent.session(slot);
        if let Some(session) = core.host.plane.opened_elsewhere(&s) {
            let mut task = task_of_chain(&core.host.plane, whose, slot, session, wish);
            task.dry = dry_run;
            return self.ask_opener(core, task, &s, wish, state);
        }
        let (mut task, judged) = chain_task(core, whose, slot, wish, state);
        task.dry = dry_run;
        self.take_task(core, task, judged);
    }

    /// Queues a change that was judged, or ends it.
    pub(super) fn take_task(&mut self, core: &mut Core, task: Task, judged: Result<(), Reason>) {
        match judged {
            Err(why) => self.refuse_task(core, &task, &why),
            Ok(()) if task.dry => {
                let report = task.report(ChainOutcome::Changed, None);
                self.end_chain_task(core, &task, report, None);
            }
            Ok(()) => self.queue.push_back(task),
        }
    }

    pub(super) fn refuse_task(&mut self, core: &mut Core, task: &Task, why: &Reason) {
        let report = task.report(ChainOutcome::Refused, Some(why.cause()));
        self.end_chain_task(core, task, report, Some(why));
    }

    /// Handles the machine's report on how far a change is.
    pub(in crate::engine) fn chain_progress(
        &mut self,
        core: &mut Core,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: Progress,
        at: Instant,
    ) {
        let progress = core.host.plane.exactly(subsession, progress);
        if progress.is_end() {
            let task = self.running.get(&change).map(|running| &running.task);
            let by = match task {
                Some(task) => self.requesters.of(task.whose),
                None => decider(role, subsession),
            };
            let told = Told {
                chain: task.map(|task| task.order.after.as_slice()),
                origin: Origin {
                    by,
                    change_id: Some(change.to_string()),
                },
            };
            tell_chain(
                &mut core.host.plane,
                (change, role),
                subsession,
                &progress,
                told,
            );
            self.wake_chains(core);
        }
        let Some(running) = self.running.get_mut(&change) else {
            return;
        };
        let took = at.saturating_duration_since(running.task.asked);
        let (outcome, why) = match progress {
            Progress::Switched => {
                running.switched = Some(took);
                return self.start_chains_waiting(core);
            }
            Progress::Removed => (ChainOutcome::Changed, None),
            Progress::RolledBack(why) => (ChainOutcome::RolledBack, Some(why)),
            Progress::Refused(why) => (ChainOutcome::Refused, Some(why)),
            _ => return,
        };
        let Some(running) = self.running.remove(&change) else {
            return;
        };
        core.host.plane.terms.remove(&change);
        let Some(running) = self.unless_it_waits(running, why.as_ref()) else {
            return self.start_chains_waiting(core);
        };
        let reason = why.as_ref().map(Reason::cause);
        let mut report = running.task.report(outcome, reason);
        report.timed_out = why.as_ref().is_some_and(Reason::is_of_time);
        report.change_id = Some(change.to_string());
        report.session = core.host.plane.names.now(report.session);
        let micros = |d: Duration| d.as_micros() as u64;
        if outcome == ChainOutcome::Changed {
            report.request_to_switch_us = running.switched.map(micros);
            report.request_to_end_us = Some(micros(took));
        }
        self.end_chain_task(core, &running.task, report, why.as_ref());
        self.start_chains_waiting(core);
    }

    /// Ends one session's part of a request; `why` is the reason if it was not done.
    pub(super) fn end_chain_task(
        &mut self,
        core: &mut Core,
        task: &Task,
        report: ChainReport,
        why: Option<&Reason>,
    ) {
        self.requesters.ended(task.whose);
        // A removal counts its own changes.
        if !task.dry && !matches!(task.whose, Whose::Removal(_)) {
            let outcome = as_removal(report.outcome);
            core.tally.reported(ChangeKind::Chain, outcome, why);
            let (switch, end) = (report.request_to_switch_us, report.request_to_end_us);
            core.tally.took(ChangeKind::Chain, switch, end);
        }
        let batch = match task.whose {
            Whose::Batch(batch) => batch,
            Whose::Removal(batch) => {
                self.ended.push_back(EndedForRemoval {
                    removal: batch,
                    report,
                    begun: task.begun,
                    why: why.cloned(),
                });
                return;
            }
            Whose::Ask(ask) => {
                let answer = Answer {
                    outcome: report.outcome.into(),
                    reason: report.reason,
                    before: report.before,
                    after: report.after,
                    timed_out: report.timed_out,
                };
                return self.answer_ask(core, ask, answer);
            }
        };
        let Some(b) = self.batches.get_mut(&batch) else {
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
        self.batches.remove(&id);
    }
}

/// Facts of a change for the history of its session.
struct Told<'a> {
    /// The new chain, as far as a request on this host knows it.
    chain: Option<&'a [Element]>,
    origin: Origin,
}

/// Returns the host that decides on a change that no request on this host has begun: the one that opened
/// the session.
fn decider(role: Role, subsession: &Subsession) -> Option<String> {
    match role {
        Role::Head => Some("a former process of dyscod".into()),
        // The left end of its subsession may be another host of the chain.
        Role::Member => None,
        _ => Some(format!("the host {}", subsession.left.ip())),
    }
}

/// Returns the words for a chain that a session has now.
fn words(chain: Option<&[Element]>) -> String {
    match chain {
        None => "it has another chain".into(),
        Some([]) => "it passes no host of a chain any more".into(),
        Some(chain) => {
            let hosts: Vec<String> = chain.iter().map(Element::to_string).collect();
            format!("it has another chain: {}", hosts.join(", "))
        }
    }
}

fn tell_chain(
    here: &mut Plane,
    (change, role): (ChangeId, Role),
    subsession: &Subsession,
    progress: &Progress,
    told: Told<'_>,
) {
    let slot = here.find_for(change, subsession);
    let session = slot.map(|slot| here.session_id(slot, &here.agent.session(slot)));
    let (kind, what) = match progress {
        Progress::RolledBack(why) => ("rolled_back", format!("rolled back: {why}")),
        Progress::Refused(why) => ("refused", format!("refused: {why}")),
        _ => ("chain_updated", words(told.chain)),
    };
    let text = format!("{subsession} ({role}): {what}");
    here.report_of_origin(told.origin, kind, session, text);
}

/// Forwards reports to a client at the client's pace, and then the end.
fn to_client(replies: mpsc::Sender<Reply>) -> mpsc::UnboundedSender<ChainReport> {
    let (reports, mut waiting) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(report) = waiting.recv().await {
            if replies.send(Reply::ChainUpdated(report)).await.is_err() {
                return;
            }
        }
        // The client may have left.
        let _ = replies.send(Reply::Done { summary: None }).await;
    });
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_names_the_chain() {
        let host = |last| Element::Host([10, 0, 0, last].into());
        assert_eq!(
            words(Some(&[host(1), host(2)])),
            "it has another chain: 10.0.0.1, 10.0.0.2"
        );
        assert_eq!(words(Some(&[])), "it passes no host of a chain any more");
        assert_eq!(words(None), "it has another chain");
    }

    #[test]
    fn who_has_decided_is_the_host_that_opened_the_session() {
        let subsession = Subsession {
            left: "10.0.0.1:1000".parse().unwrap(),
            right: "10.0.0.2:80".parse().unwrap(),
        };
        let by = |role| decider(role, &subsession);
        assert_eq!(by(Role::Tail).as_deref(), Some("the host 10.0.0.1"));
        assert_eq!(by(Role::Member), None);
    }
}
