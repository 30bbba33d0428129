//! Progress of the services of a session, step by step.

use std::time::{Duration, Instant};

use dysco_api::ServiceOutcome;
use dysco_common::detour::{Detour, phase};
use dysco_explain::Cause;
use dysco_runner::protocol::{Reason, Request};

use super::done::Made;
use super::handler::{in_order, offer};
use super::pair::Paired;
use super::{Serviced, Services, Stage, words};
use crate::engine::Plane;
use crate::handlers::Owner;

/// Time after which a direction in which no packet has come gets its cutoff from here. Programs
/// that ran when the change was ordered have ended long before.
const STILL: Duration = Duration::from_millis(20);

impl Services {
    /// Sockets were made for a session, or could not be: the handler is to accept them.
    pub(super) fn made(
        &mut self,
        plane: &mut Plane,
        slot: u32,
        attempt: u64,
        made: Result<Made, Cause>,
    ) {
        let awaited = |one: &&mut Serviced| one.stage == Stage::Sockets && one.attempt == attempt;
        let Some(one) = self.sessions.get_mut(&slot).filter(awaited) else {
            return;
        };
        let offered = made.and_then(|mut made| {
            if let Some(tunnel) = one.paired.as_mut().and_then(Paired::take_tunnel) {
                made.sockets.connect(tunnel);
            }
            let needs = super::choice::needs(&one.services, &plane.agent.session(slot))?;
            if let Some(name) = needs.congestion {
                made.sockets.set_congestion(&name)?;
            }
            plane.faults.reach("ServiceOffer");
            let request = offer(slot, one)?;
            let handler = self.handlers.get(&one.owner);
            let handler = handler.ok_or_else(|| Cause::new("the handler has ended"))?;
            let fds = in_order(&made.sockets, one.opened_here)?;
            handler
                .send(request, &fds)
                .map_err(|error| Cause::new(format!("the handler takes no session: {error}")))?;
            Ok(made)
        });
        match offered {
            Ok(made) => {
                one.stage = Stage::Offered(made.start, made.link);
                one.sockets = Some(made.sockets);
            }
            Err(cause) => {
                self.abort(plane, slot, &cause.why);
                self.refuse(plane, slot, cause);
            }
        }
    }

    /// The handler has accepted a session: its data is led there from now on.
    pub(super) fn accepted(&mut self, plane: &mut Plane, slot: u32) {
        plane.faults.reach("ServiceAccepted");
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        if one.paired.is_some() {
            return self.accepted_here(plane, slot);
        }
        let Stage::Offered(start, link) = one.stage else {
            return;
        };
        match one.enter(plane, slot, &start, &link) {
            Ok(()) => {
                self.begun(plane, slot, ServiceOutcome::Entering);
                self.step(plane, slot);
            }
            Err(cause) => {
                self.release(slot);
                self.refuse(plane, slot, cause);
            }
        }
    }

    /// Begins to take the services out of a session.
    pub(super) fn take_out(&mut self, plane: &mut Plane, job: u64, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        if one.partial.is_some() {
            // Services that were asked to leave, and have not left.
            self.give_up(plane, slot, "all its services are taken out".into());
        }
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.job = Some(job);
        one.since = Instant::now();
        if std::mem::take(&mut one.rests.goes) {
            // They leave to rest, and now for good.
            return self.begun(plane, slot, ServiceOutcome::Leaving);
        }
        if one.paired.is_some() {
            return self.leave_both(plane, slot);
        }
        one.stage = Stage::Asked;
        self.send(
            slot,
            Request::Take {
                session: u64::from(slot),
            },
        );
        self.begun(plane, slot, ServiceOutcome::Leaving);
    }

    /// All services have left the handler: the session is led past it from now on.
    pub(super) fn left(&mut self, plane: &mut Plane, slot: u32, delta: [i64; 2]) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        if one.stage == Stage::Entering {
            // A retransmission of a packet that is lost on the old route would have no route.
            one.left = Some(delta);
            return;
        }
        if one.stage != Stage::Asked {
            // They have left by themselves.
            one.since = Instant::now();
        }
        plane.faults.reach("ServiceLeft");
        let [forward, back] = delta;
        one.delta = [one.delta[0] + forward, one.delta[1] + back];
        let added = one.oriented(delta);
        plane.agent.settle_detour(slot, false);
        plane.agent.leave_detour(slot, added);
        one.stage = Stage::Leaving;
        one.ordered = Instant::now();
        self.step(plane, slot);
    }

    /// A direction of a session has completed its change, as a program reports.
    pub(in crate::engine) fn rerouted(&mut self, plane: &mut Plane, slot: u32) {
        self.step(plane, slot);
    }

    /// Looks at all sessions whose routes change, and at requests whose time is over.
    pub(in crate::engine) fn sweep(&mut self, plane: &mut Plane) {
        let changes = |one: &Serviced| matches!(one.stage, Stage::Entering | Stage::Leaving);
        let wants = |one: &Serviced| changes(one) || one.waits_for_peer();
        let slots = self.sessions.iter().filter(|(_, one)| wants(one));
        let slots: Vec<u32> = slots.map(|(slot, _)| *slot).collect();
        for slot in slots {
            self.step(plane, slot);
            self.wait_for_peer(plane, slot);
        }
        self.probe_again(plane);
        self.settle_paths(plane);
        self.follow_abandoned(plane);
        let now = Instant::now();
        let over = |id: &u64| {
            self.jobs
                .get(id)
                .is_some_and(|job| job.until.is_some_and(|at| at < now))
        };
        let late = self
            .sessions
            .iter()
            .filter(|(_, one)| one.job.as_ref().is_some_and(over));
        let late: Vec<u32> = late.map(|(slot, _)| *slot).collect();
        for slot in late {
            let leaves = self.sessions.get(&slot).is_some_and(Serviced::is_leaving);
            let outcome = match leaves {
                true => ServiceOutcome::Leaving,
                false => ServiceOutcome::Entering,
            };
            self.settle(plane, slot, outcome, None);
        }
    }

    /// True if a session is led past its services.
    pub(super) fn is_leaving(&self, slot: u32) -> bool {
        let one = self.sessions.get(&slot);
        one.is_some_and(|one| one.stage == Stage::Leaving)
    }

    /// True if the services of a session are at both ends.
    pub(super) fn is_paired(&self, slot: u32) -> bool {
        let one = self.sessions.get(&slot);
        one.is_some_and(|one| one.paired.is_some())
    }

    /// Takes a session as far as its routes have changed.
    pub(super) fn step(&mut self, plane: &mut Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let (still, owner) = (one.ordered.elapsed() >= STILL, one.owner);
        let unknown = one.paired.is_none() && self.is_taking_up(owner);
        if unknown && plane.agent.detour(slot).is_some_and(|d| d.paired != 0) {
            // Its handler has not told the pair yet, and the other host has to hear of each step.
            return;
        }
        let Some(d) = plane.agent.settle_detour(slot, still) else {
            return;
        };
        self.tell_peer(plane, slot, &d);
        let one = self.sessions.get(&slot);
        let stage = one.map(|one| one.stage);
        let leaves = one.filter(|one| one.stage == Stage::Leaving);
        if let Some(sockets) = leaves.and_then(|one| one.sockets.as_ref()) {
            sockets.acknowledge();
        }
        match stage {
            Some(Stage::Entering) if are(&d, phase::THROUGH) => self.all_in(plane, slot),
            Some(Stage::Leaving) if are(&d, phase::DIRECT) && self.may_forget(slot) => {
                self.out(plane, slot);
            }
            _ => {}
        }
    }

    /// All bytes of the session pass the handler.
    fn all_in(&mut self, plane: &mut Plane, slot: u32) {
        plane.faults.reach("ServiceIn");
        if let Some(one) = self.sessions.get_mut(&slot) {
            one.stage = Stage::In;
        }
        let by = self.by(slot);
        if let Some(one) = self.sessions.get(&slot).filter(|one| !one.lost) {
            let text = words::of(&one.services);
            plane.report_by(by, "services-put", Some(one.session), text);
        }
        self.settle(plane, slot, ServiceOutcome::Put, None);
        let left = self.sessions.get_mut(&slot).and_then(|one| one.left.take());
        if let Some(delta) = left {
            self.left(plane, slot, delta);
        }
    }

    /// The session is led past the handler, which forgets it.
    pub(super) fn out(&mut self, plane: &mut Plane, slot: u32) {
        plane.faults.reach("ServiceForget");
        self.release(slot);
        let as_before = plane.agent.end_detour(slot);
        let by = self.by(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.stage = Stage::Direct;
        let why = if one.rests.goes {
            "; it gains nothing by them, and they come back later"
        } else {
            ""
        };
        let text = format!("{}{why}", words::of(&one.services));
        plane.report_by(by, "services-taken", Some(one.session), text);
        let delta = one.delta;
        match one.coming().is_empty() {
            true => self.settle(plane, slot, ServiceOutcome::Taken, Some(delta)),
            // The handler's answer is about a session that it no longer has.
            false => self.settle_refused(plane, slot, "its other services have left".into()),
        }
        if let Some(one) = self.sessions.get_mut(&slot) {
            one.partial = None;
        }
        self.begin_rest(plane, slot);
        if as_before {
            self.sessions.remove(&slot);
        }
    }

    /// The session has ended in its handler.
    pub(super) fn ended(&mut self, plane: &mut Plane, slot: u32, reason: &Reason) {
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        match one.stage {
            // The other handler was faster to forget it.
            Stage::Leaving if self.is_out(plane, slot) => {
                return self.out(plane, slot);
            }
            Stage::Accepted(..) => {
                self.abort(plane, slot, "its handler has ended it");
                let cause = "the handler of the other host has given it up".into();
                return self.refuse(plane, slot, cause);
            }
            _ => {}
        }
        if let Reason::Failed { service, why } = reason {
            let text = format!("{service} has ended the session: {why}");
            plane.report("service-failed", Some(one.session), text);
        }
        self.settle_refused(plane, slot, "it has ended".into());
        if !matches!(reason, Reason::Fin) {
            self.abandon(slot);
        }
        self.sessions.remove(&slot);
    }

    /// Gives up before the session has changed.
    pub(super) fn refuse(&mut self, plane: &mut Plane, slot: u32, cause: Cause) {
        self.unheld(plane, slot, &cause);
        self.settle_refused(plane, slot, cause);
        self.rest_again(plane, slot);
        let delta = self.sessions.get(&slot).map(|one| one.delta);
        match delta {
            // Earlier services have added bytes.
            Some(delta) if delta != [0; 2] => {
                if let Some(one) = self.sessions.get_mut(&slot) {
                    one.stage = Stage::Direct;
                    one.sockets = None;
                }
            }
            _ => drop(self.sessions.remove(&slot)),
        }
    }

    /// Closes the session's sockets without a packet.
    pub(super) fn release(&mut self, slot: u32) {
        let one = self.sessions.get_mut(&slot);
        let sockets = one.and_then(|one| one.sockets.take());
        if let Some(sockets) = &sockets {
            sockets.hush();
        }
        let request = Request::Release {
            session: u64::from(slot),
            reset: sockets.is_none(),
        };
        self.send(slot, request);
    }

    /// Sends a request about a session to its handler.
    pub(super) fn send(&self, slot: u32, request: Request) {
        if let Some(one) = self.sessions.get(&slot) {
            self.tell(one.owner, request);
        }
    }

    /// Sends a request to the handler of an owner, if it runs.
    pub(super) fn tell(&self, owner: Owner, request: Request) {
        if let Some(handler) = self.handlers.get(&owner)
            && let Err(error) = handler.send(request, &[])
        {
            tracing::error!(user = owner.uid(), %error, "the handler takes no request");
        }
    }

    /// Forgets a session whose entry was collected. It may have ended before it came to the handler.
    pub(in crate::engine) fn collected(&mut self, plane: &Plane, slot: u32) {
        self.resting.remove(&slot);
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        if one.stage != Stage::Direct {
            self.release(slot);
        }
        self.settle_refused(plane, slot, "it has ended".into());
        self.sessions.remove(&slot);
    }

    /// Lets the handlers forget the sessions that have ended: they outlive this process.
    pub(in crate::engine) fn stop(&self, plane: &Plane) {
        for (slot, one) in &self.sessions {
            let s = plane.agent.session(*slot);
            let has_ended = s.created_ns != one.created_ns || s.has_ended();
            if let Some(handler) = self.handlers.get(&one.owner).filter(|_| has_ended) {
                // An error means that the handler has ended.
                let _ = handler.send_now(&Request::Release {
                    session: u64::from(*slot),
                    reset: true,
                });
            }
        }
    }
}

pub(super) fn are(d: &Detour, phase: u32) -> bool {
    d.out.phase == phase && d.back.phase == phase
}
