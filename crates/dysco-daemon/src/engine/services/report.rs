//! Results of changes of sessions, for the clients that wait for them.

use dysco_api::{ServiceOutcome, ServiceReport};
use dysco_explain::Cause;

use super::{Services, Stage};
use crate::engine::Plane;

impl Services {
    /// Reports that a change has begun, to a client that does not wait for its end.
    pub(super) fn begun(&mut self, plane: &Plane, slot: u32, outcome: ServiceOutcome) {
        let job = self.sessions.get(&slot).and_then(|one| one.job);
        let waits = job
            .and_then(|id| self.jobs.get(&id))
            .is_some_and(|job| job.until.is_some());
        if !waits {
            self.settle(plane, slot, outcome, None);
        }
    }

    /// Reports the result of a session's change to the client that waits for it.
    pub(super) fn settle(
        &mut self,
        plane: &Plane,
        slot: u32,
        outcome: ServiceOutcome,
        delta: Option<[i64; 2]>,
    ) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let Some(job) = one.job.take() else {
            return;
        };
        let report = ServiceReport {
            services: one.concerned(),
            delta,
            millis: Some(one.since.elapsed().as_millis() as u64),
            ..report(plane, slot, outcome, Vec::new())
        };
        self.settle_job(job, report);
    }

    pub(super) fn settle_refused(&mut self, plane: &Plane, slot: u32, cause: Cause) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let Some(job) = one.job.take() else {
            return;
        };
        let report = ServiceReport {
            services: one.concerned(),
            ..report(plane, slot, ServiceOutcome::Refused, vec![cause])
        };
        self.settle_job(job, report);
    }

    /// Returns the requester of a session's change, in the words of a session's history.
    pub(super) fn by(&self, slot: u32) -> Option<String> {
        let one = self.sessions.get(&slot)?;
        let job = one.job.and_then(|job| self.jobs.get(&job));
        let held = one.held.as_ref().filter(|_| one.stage == Stage::In);
        let by = job.map(|job| &job.by).or(held.map(|held| &held.by));
        by.cloned()
    }
}

/// Returns the report of a session with these reasons.
pub(super) fn report(
    plane: &Plane,
    slot: u32,
    outcome: ServiceOutcome,
    reasons: Vec<Cause>,
) -> ServiceReport {
    let s = plane.agent.session(slot);
    let several = reasons.len() > 1 || outcome == ServiceOutcome::Refused;
    ServiceReport {
        session: plane.session_id(slot, &s),
        local: s.key.local(),
        remote: s.key.remote(),
        outcome,
        services: Vec::new(),
        process: None,
        reason: reasons.first().cloned(),
        reasons: if several { reasons } else { Vec::new() },
        delta: None,
        millis: None,
    }
}
