//! Services at both ends that leave by themselves, since a session gains nothing by them, and come
//! back to see whether that has changed.
//!
//! The host that asked for them decides, and remembers them. This is not written down: the next
//! `dyscod` does not bring them back.

use std::time::{Duration, Instant};

use dysco_api::{
    ServiceAction, ServiceOutcome, ServiceReport, ServiceRow, ServiceSpec, ServiceState, SessionId,
};
use dysco_common::Session;

use super::choice::{Judged, refusals};
use super::pair::Paired;
use super::report::report;
use super::{Serviced, Services, request, words};
use crate::engine::Plane;
use crate::handlers::Owner;

/// First time that services stay away. Each further one is twice as long as the one before.
const FIRST: Duration = Duration::from_secs(5);
/// Longest time that they stay away.
const LONGEST: Duration = Duration::from_secs(3600);
/// Services that were in a session for so long were worth it.
const WORTH: Duration = Duration::from_secs(60);
/// Number of bytes of both directions that a session has to move before services come back to it.
const ENOUGH: u64 = 512 * 1024;

/// Rests of services that are in a session.
#[derive(Default)]
pub(super) struct Rests {
    /// All of the services are idle, as their handler has reported.
    idle: bool,
    /// The services leave to rest.
    pub goes: bool,
    /// Time of the last rest, if there was one.
    last: Option<Duration>,
}

/// Services that are not in their session at the moment.
pub(super) struct Resting {
    session: SessionId,
    created_ns: u64,
    pub services: Vec<ServiceSpec>,
    owner: Owner,
    /// Time for which they stay away.
    pause: Duration,
    until: Instant,
    /// Bytes of the session when they left.
    moved: u64,
}

impl Resting {
    /// Describes the session in a listing.
    pub(super) fn row(&self, plane: &Plane, slot: u32, s: &Session) -> ServiceRow {
        ServiceRow {
            session: plane.session_id(slot, s),
            local: s.key.local(),
            remote: s.key.remote(),
            services: self.services.clone(),
            state: ServiceState::Resting,
            handler: None,
            peer: Some(s.key.remote().ip()),
            read: [0; 2],
            written: [0; 2],
            delta: [0; 2],
        }
    }

    /// Judges whether the services with these names can leave for good.
    pub(super) fn judge_part(&self, names: &[String]) -> Judged {
        let named = request::named(self.services.clone(), names).len();
        match named {
            0 => Judged::Unchanged,
            all if all == self.services.len() => Judged::Possible,
            _ => Judged::Refused(vec![words::all_rest()]),
        }
    }

    /// Begins another rest, twice as long.
    fn again(&mut self, moved: u64) {
        self.pause = longer(self.pause);
        self.until = Instant::now() + self.pause;
        self.moved = moved;
    }
}

impl Services {
    /// Returns the services of a session that rest.
    pub(super) fn rests_in(&self, slot: u32, s: &Session) -> Option<&Resting> {
        let found = self.resting.get(&slot);
        found.filter(|rests| rests.created_ns == s.created_ns && !s.has_ended())
    }

    /// All services of a session have become idle, or no longer are, as its handler reports.
    pub(super) fn idle(&mut self, plane: &Plane, slot: u32, idle: bool) {
        if let Some(one) = self.sessions.get_mut(&slot) {
            one.rests.idle = idle;
            self.send_to_rest(plane, slot);
        }
    }

    /// Takes services out that are idle, unless they still enter.
    fn send_to_rest(&mut self, plane: &Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let asked = one.paired.as_ref().is_some_and(Paired::asks);
        if one.rests.idle && one.is_settled() && asked && one.job.is_none() {
            one.rests.goes = true;
            if one.since.elapsed() >= WORTH {
                one.rests.last = None;
            }
            self.leave_both(plane, slot);
        }
    }

    /// The services of a session have left. Remembers them, if they are to come back.
    pub(super) fn begin_rest(&mut self, plane: &Plane, slot: u32) {
        let Some(one) = self.sessions.get(&slot).filter(|one| one.rests.goes) else {
            return;
        };
        let pause = one.rests.last.map_or(FIRST, longer);
        self.rest(plane, slot, pause);
    }

    /// Services that wanted to come back could not. They try again later.
    pub(super) fn rest_again(&mut self, plane: &Plane, slot: u32) {
        let one = self.sessions.get(&slot);
        if let Some(last) = one.and_then(|one| one.rests.last) {
            self.rest(plane, slot, longer(last));
        }
    }

    fn rest(&mut self, plane: &Plane, slot: u32, pause: Duration) {
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        let resting = Resting {
            session: one.session,
            created_ns: one.created_ns,
            services: one.services.clone(),
            owner: one.owner,
            pause,
            until: Instant::now() + pause,
            moved: moved(&plane.agent.session(slot)),
        };
        self.resting.insert(slot, resting);
    }

    /// Ends the rest of a session's services for good, since they are taken out, or others come in.
    /// Returns the report if that is all there is to do.
    pub(super) fn end_rest(
        &mut self,
        plane: &Plane,
        slot: u32,
        action: &ServiceAction,
    ) -> Option<ServiceReport> {
        self.rests_in(slot, &plane.agent.session(slot))?;
        let Resting { services, .. } = self.resting.remove(&slot)?;
        if matches!(action, ServiceAction::Put { .. }) {
            return None;
        }
        Some(ServiceReport {
            services,
            delta: Some([0; 2]),
            millis: Some(0),
            ..report(plane, slot, ServiceOutcome::Taken, Vec::new())
        })
    }

    /// Brings services back whose rest is over, to sessions that have moved bytes meanwhile. Takes
    /// those out that became idle while they entered.
    pub(in crate::engine) fn wake_resting(&mut self, plane: &mut Plane) {
        let idle = self.sessions.iter().filter(|(_, one)| one.rests.idle);
        let idle: Vec<u32> = idle.map(|(slot, _)| *slot).collect();
        for slot in idle {
            self.send_to_rest(plane, slot);
        }
        let now = Instant::now();
        let due = self.resting.iter().filter(|(_, rests)| rests.until <= now);
        let due: Vec<u32> = due.map(|(slot, _)| *slot).collect();
        for slot in due {
            self.wake(plane, slot);
        }
    }

    fn wake(&mut self, plane: &mut Plane, slot: u32) {
        let s = plane.agent.session(slot);
        let Some(rests) = self.resting.get_mut(&slot) else {
            return;
        };
        if rests.created_ns != s.created_ns || s.has_ended() {
            self.resting.remove(&slot);
            return;
        }
        let so_far = moved(&s);
        if so_far.saturating_sub(rests.moved) < ENOUGH {
            rests.until = Instant::now() + rests.pause;
            return;
        }
        let services = rests.services.clone();
        if !refusals(plane, self, slot, &services).is_empty() {
            if let Some(rests) = self.resting.get_mut(&slot) {
                rests.again(so_far);
            }
            return;
        }
        if let Some(rests) = self.resting.remove(&slot) {
            let mut one = Serviced::new(plane, slot, &s, services);
            one.owner = rests.owner;
            one.rests.last = Some(rests.pause);
            tracing::debug!(session = %rests.session, "services come back");
            self.invite(plane, slot, one);
        }
    }
}

/// Returns the time that follows this one, for services that gain nothing again.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST)
}

/// Returns the number of bytes that a session has moved.
fn moved(s: &Session) -> u64 {
    s.bytes_in.wrapping_add(s.bytes_out)
}
