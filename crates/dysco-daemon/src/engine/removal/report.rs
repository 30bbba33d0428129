//! Reports of removals, in an operator's words.

use std::time::Duration;

use dysco_api::{Mode, Outcome, RemovalReport, Way, WayChange};
use dysco_explain::Cause;
use dysco_proto::{ChangeId, Progress, Reason, Role, Subsession};

use super::task::{Stage, Task};
use super::{Removals, Running};
use crate::engine::Plane;
use crate::engine::core::Core;

impl Task {
    /// Returns the report that nothing was changed, for this reason.
    pub(in crate::engine) fn refused(&self, reason: Cause) -> RemovalReport {
        self.report(Outcome::Refused, Some(reason), None, None)
    }

    /// Returns the report that nothing was changed, for all of these reasons, of which the first
    /// counts.
    pub(in crate::engine) fn refused_for(&self, reasons: Vec<Cause>) -> RemovalReport {
        RemovalReport {
            reasons: reasons.clone(),
            ..self.refused(reasons.into_iter().next().unwrap_or_default())
        }
    }

    pub(super) fn report(
        &self,
        outcome: Outcome,
        reason: Option<Cause>,
        switched: Option<Duration>,
        closed: Option<Duration>,
    ) -> RemovalReport {
        RemovalReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            reasons: Vec::new(),
            timed_out: false,
            mode: self.way,
            why_mode: self.why.clone(),
            accepted_to_begin_us: self.begun_after().map(|d| d.as_micros() as u64),
            request_to_switch_us: switched.map(|d| d.as_micros() as u64),
            request_to_close_us: closed.map(|d| d.as_micros() as u64),
            change_id: None,
        }
    }
}

impl Running {
    /// Returns true if this removal has made the proxy leave, although it may have further steps.
    fn has_left(&self) -> bool {
        let task = &self.task;
        task.way == Some(Mode::Return) && task.stage == Stage::Return && !task.relayed
    }

    /// Returns the report of its end, and the reason if it was not done.
    pub(super) fn end(&self, progress: Progress) -> (RemovalReport, Option<Reason>) {
        let why = match &progress {
            Progress::RolledBack(reason) | Progress::Lost(reason) | Progress::Refused(reason) => {
                Some(self.reason.as_ref().unwrap_or(reason).clone())
            }
            _ => None,
        };
        let timed_out = match &why {
            Some(Reason::Cancelled) => self.cancelled.is_some(),
            Some(why) => why.is_of_time(),
            None => false,
        };
        let report = RemovalReport {
            timed_out,
            ..self.report(progress)
        };
        (report, why)
    }

    fn report(&self, progress: Progress) -> RemovalReport {
        let because = |reason: Reason| {
            match (&self.reason, &self.cancelled) {
            (Some(better), _) => better.cause(),
            (None, Some(_)) if reason == Reason::Cancelled => Cause::new(format!(
                "it took longer than {} ms and was taken back",
                self.task.timeout.as_millis()
            ))
            .hint("ask again with more time (--timeout, or timeout_ms under [removal]), and see 'dyscoctl status' for a peer that does not answer"),
            (None, _) => reason.cause(),
        }
        };
        match progress {
            Progress::RolledBack(reason) => {
                self.task
                    .report(Outcome::RolledBack, Some(because(reason)), None, None)
            }
            Progress::Lost(reason) => {
                let why = Some(reason.cause());
                self.task.report(Outcome::Lost, why, None, None)
            }
            // All steps but the last are done.
            Progress::Refused(reason) if self.has_left() => {
                let why = format!("replies still pass this host: {}", because(reason));
                let task = Task {
                    way: Some(Mode::Local),
                    why: Some(why),
                    ..self.task.clone()
                };
                let closed = Some(self.begun.elapsed());
                task.report(Outcome::Removed, None, self.switched, closed)
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

impl Removals {
    /// Handles the progress of a change that another host requested, or that a former process
    /// began.
    pub(super) fn asked_for(
        &mut self,
        core: &mut Core,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: &Progress,
    ) {
        // An anchor may have requested the change itself.
        let own = self.under_way.running().get(&change);
        let own = own.map(|running| running.task.said.by.clone());
        let by = match role {
            Role::Asker | Role::Head | Role::Tail | Role::Lead | Role::Member => return,
            Role::Left => Some(subsession.right.ip()),
            Role::Right | Role::Dsr => Some(subsession.left.ip()),
            Role::Middle | Role::Local | Role::Proof => {
                let mut changes = core.machine.changes();
                changes.find(|c| c.change == change).and_then(|c| c.asker)
            }
        };
        let by = own.or_else(|| by.map(|by| format!("the host {by}")));
        if let Some(by) = by {
            self.asked.insert(change, by);
        }
        if !progress.is_end() {
            return;
        }
        let by = self.asked.remove(&change);
        let plane = &core.host.plane;
        let slot = plane.find_for(change, subsession);
        let session = slot.map(|slot| plane.session_id(slot, &plane.agent.session(slot)));
        let text = format!("{subsession} ({role}): {}", words(progress));
        let id = change.to_string();
        core.host
            .plane
            .report_part(Some(id.clone()), kind_of(progress), session, text);
        let (Some(session), Progress::Removed) = (session, progress) else {
            return;
        };
        let (from, to) = match role {
            Role::Local => (Way::Middlebox, Way::Local),
            Role::Dsr | Role::Proof => (Way::Local, Way::Return),
            Role::Left | Role::Middle | Role::Right => (Way::Middlebox, Way::Bypass),
            Role::Asker | Role::Head | Role::Tail | Role::Lead | Role::Member => return,
        };
        let change = WayChange {
            from,
            to,
            by: by.unwrap_or_else(|| "a former process of dyscod".into()),
        };
        core.host.plane.history.changed(session, change, Some(id));
    }
}

/// Records that a session has taken the path of its task.
pub(super) fn keep_history(here: &mut Plane, change: ChangeId, task: &Task) {
    let (from, to) = match (task.way, task.stage) {
        // Nothing has changed yet.
        (Some(Mode::Return), Stage::Prove) => return,
        (Some(Mode::Return), Stage::Return) => (Way::Local, Way::Return),
        (Some(Mode::Local), _) | (Some(Mode::Return), Stage::Leave) => (task.from, Way::Local),
        (Some(Mode::Bypass | Mode::Auto) | None, _) => (task.from, Way::Bypass),
    };
    let by = task.said.by.clone();
    if task.ask.is_none() {
        let way = WayChange { from, to, by };
        let change = Some(change.to_string());
        here.history.changed(task.session, way, change);
    }
}

pub(super) fn kind_of(progress: &Progress) -> &'static str {
    match progress {
        Progress::RolledBack(_) => "rolled_back",
        Progress::Lost(_) => "lost",
        Progress::Refused(_) => "refused",
        _ => "removed",
    }
}

pub(super) fn words(progress: &Progress) -> String {
    match progress {
        Progress::RolledBack(reason) => format!("rolled back: {reason}"),
        Progress::Lost(reason) => format!("lost: {reason}"),
        Progress::Refused(reason) => format!("refused: {reason}"),
        _ => "the middlebox has left".to_owned(),
    }
}
