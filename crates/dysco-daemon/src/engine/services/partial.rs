//! Changes of some of a session's services, while the others stay. The handler alone carries them
//! out: the session's packets take the same route before and after.

use std::time::Instant;

use dysco_api::{ServiceOutcome, ServiceSpec};
use dysco_common::Session;
use dysco_explain::Cause;
use dysco_runner::protocol::{End, Request};

use super::choice::{self, busy};
use super::handler::mirror;
use super::judge_partial::{first_half, is_half};
use super::{Serviced, Services, Stage, words};
use crate::engine::Plane;

/// A change that the handler has been asked for.
pub(super) enum Partial {
    /// These services come in. The one of this name leaves then.
    Coming(Vec<ServiceSpec>, Option<String>),
    /// These services leave.
    Going(Vec<ServiceSpec>),
    /// This service has come in, and the one of this name leaves.
    Replacing(ServiceSpec, String),
}

impl Serviced {
    /// Returns true if the services are in the session, and none comes or leaves.
    pub(super) fn is_settled(&self) -> bool {
        self.stage == Stage::In && self.partial.is_none()
    }

    /// Returns true if all services can be taken out. A service that was asked to leave may take its
    /// time, and so may one that comes in at both ends.
    pub(super) fn may_be_taken(&self) -> bool {
        let comes = !self.coming().is_empty() && self.paired.is_none();
        self.stage == Stage::In && !comes || self.rests.goes
    }

    /// Returns true if services leave.
    pub(super) fn is_leaving(&self) -> bool {
        let going = matches!(self.partial, Some(Partial::Going(_)));
        going || matches!(self.stage, Stage::Asked | Stage::Leaving)
    }

    /// Returns the services that the present change is about.
    pub(super) fn concerned(&self) -> Vec<ServiceSpec> {
        match &self.partial {
            Some(Partial::Coming(some, _) | Partial::Going(some)) => some.clone(),
            Some(Partial::Replacing(new, _)) => vec![new.clone()],
            None => self.services.clone(),
        }
    }

    /// Returns the services that the handler was asked to put in beside others.
    pub(super) fn coming(&self) -> &[ServiceSpec] {
        match &self.partial {
            Some(Partial::Coming(some, _)) => some,
            _ => &[],
        }
    }

    /// Returns true if the handler was asked to let services of this name leave.
    fn is_going(&self, name: &str) -> bool {
        match &self.partial {
            Some(Partial::Going(some)) => some.iter().any(|one| one.name == name),
            Some(Partial::Replacing(_, old)) => old == name,
            Some(Partial::Coming(..)) | None => false,
        }
    }
}

/// Returns true if one of these services needs a congestion control of the socket towards the network.
fn needs_congestion(plane: &Plane, slot: u32, services: &[ServiceSpec]) -> bool {
    let needs = choice::needs(services, &plane.agent.session(slot));
    needs.is_ok_and(|needs| needs.congestion.is_some())
}

impl Services {
    /// Returns true if a session has services that a handler runs.
    pub(super) fn has(&self, plane: &Plane, slot: u32) -> bool {
        let created_ns = plane.agent.session(slot).created_ns;
        let one = self.sessions.get(&slot);
        one.is_some_and(|one| one.created_ns == created_ns && one.stage != Stage::Direct)
    }

    /// Returns the number of a session's services that a handler runs.
    pub(super) fn number(&self, slot: u32) -> usize {
        self.sessions.get(&slot).map_or(0, |one| one.services.len())
    }

    /// Begins to put more services into a session, in the place of another one if it is named.
    pub(super) fn add(
        &mut self,
        plane: &mut Plane,
        job: u64,
        slot: u32,
        services: Vec<ServiceSpec>,
        old: Option<&str>,
    ) {
        let s = plane.agent.session(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.job = Some(job);
        one.since = Instant::now();
        let at_both = services.iter().any(|service| is_half(service, &s));
        let request = asked(slot, one, &services, old, &s);
        one.partial = Some(Partial::Coming(services, old.map(String::from)));
        if at_both {
            return self.ask_to_alter(plane, slot);
        }
        match request {
            Ok(request) => {
                plane.faults.reach("ServiceAdd");
                self.send(slot, request);
                self.begun(plane, slot, ServiceOutcome::Entering);
            }
            Err(cause) => self.give_up(plane, slot, cause),
        }
    }

    /// Begins to take some services out of a session.
    pub(super) fn part(
        &mut self,
        plane: &mut Plane,
        job: u64,
        slot: u32,
        services: Vec<ServiceSpec>,
    ) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.job = Some(job);
        one.since = Instant::now();
        let s = plane.agent.session(slot);
        let at_both = one.paired.is_some() && services.iter().any(|service| is_half(service, &s));
        let names = services
            .iter()
            .map(|service| service.name.clone())
            .collect();
        one.partial = Some(Partial::Going(services));
        if at_both {
            return self.ask_to_alter(plane, slot);
        }
        plane.faults.reach("ServicePart");
        let request = Request::Part {
            session: u64::from(slot),
            services: names,
        };
        self.send(slot, request);
        self.begun(plane, slot, ServiceOutcome::Leaving);
    }

    /// The handler has put more services into a session, or has refused.
    pub(super) fn added(&mut self, plane: &mut Plane, slot: u32, result: Result<(), Cause>) {
        plane.faults.reach("ServiceAdded");
        if self.awaits_handler(slot) {
            return self.ready_here(plane, slot, result);
        }
        let by = self.by(slot);
        let s = plane.agent.session(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let coming = one.coming().to_vec();
        match result {
            // An earlier process has asked for them.
            Ok(()) if coming.is_empty() => return,
            Err(cause) => return self.give_up(plane, slot, cause),
            // The other host takes all services out meanwhile.
            Ok(()) if one.stage != Stage::In => return self.give_up(plane, slot, busy()),
            Ok(()) => {}
        }
        let old = match &one.partial {
            Some(Partial::Coming(_, old)) => old.clone(),
            _ => None,
        };
        let place = |old: &String| one.services.iter().position(|has| has.name == *old);
        let at = match (old.as_ref().and_then(place), &one.paired) {
            (Some(at), _) => at,
            (None, Some(_)) if coming.iter().any(|new| is_half(new, &s)) => {
                first_half(&one.services, &s)
            }
            // Those for one end are next to the program.
            (None, Some(_)) => 0,
            (None, None) => one.services.len(),
        };
        let text = words::of(&coming);
        plane.report_by(by, "services-put", Some(one.session), text);
        one.services.splice(at..at, coming.iter().cloned());
        let new = coming.into_iter().next();
        if let (Some(old), Some(new)) = (old, new) {
            one.partial = Some(Partial::Replacing(new, old.clone()));
            let session = u64::from(slot);
            let services = vec![old];
            return self.send(slot, Request::Part { session, services });
        }
        self.settle(plane, slot, ServiceOutcome::Put, None);
        self.end_partial(slot);
    }

    /// A service has left a session that has others.
    pub(super) fn parted(&mut self, plane: &mut Plane, slot: u32, service: &str) {
        plane.faults.reach("ServiceParted");
        let by = self.by(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        // All leave, and are reported together.
        if !matches!(one.stage, Stage::In | Stage::Entering) {
            return;
        }
        let asked = one.is_going(service);
        let by = by.filter(|_| asked);
        let text = format!("+{service}");
        plane.report_by(by, "services-taken", Some(one.session), text);
        let mut all = one.services.iter();
        if let Some(at) = all.position(|known| known.name == service) {
            let gone = one.services.remove(at);
            if needs_congestion(plane, slot, &[gone])
                && let Some(sockets) = &one.sockets
            {
                sockets.reset_congestion();
            }
        }
        if asked && !one.services.iter().any(|has| one.is_going(&has.name)) {
            let outcome = match one.partial {
                Some(Partial::Going(_)) => ServiceOutcome::Taken,
                _ => ServiceOutcome::Put,
            };
            self.settle(plane, slot, outcome, None);
            self.end_partial(slot);
        }
    }

    /// Reports that a change of some services does not come to an end.
    pub(super) fn give_up(&mut self, plane: &Plane, slot: u32, cause: Cause) {
        if let Some(one) = self.sessions.get(&slot)
            && needs_congestion(plane, slot, one.coming())
            && let Some(sockets) = &one.sockets
        {
            sockets.reset_congestion();
        }
        self.settle_refused(plane, slot, cause);
        self.end_partial(slot);
    }

    fn end_partial(&mut self, slot: u32) {
        if let Some(one) = self.sessions.get_mut(&slot) {
            one.partial = None;
            if let Some(paired) = &mut one.paired {
                paired.forget_request();
            }
        }
    }
}

/// Prepares a session for more services. Returns the request to its handler.
fn asked(
    slot: u32,
    one: &Serviced,
    services: &[ServiceSpec],
    old: Option<&str>,
    s: &Session,
) -> Result<Request, Cause> {
    if let Some(name) = choice::needs(services, s)?.congestion {
        let sockets = one.sockets.as_ref();
        sockets
            .ok_or_else(words::of_earlier)?
            .set_congestion(&name)?;
    }
    let paired = one.paired.is_some();
    let mut services = services.to_vec();
    mirror(&mut services, paired, one.opened_here);
    let services = services.iter().map(choice::spec);
    Ok(Request::Add {
        session: u64::from(slot),
        // Next to the program if others are at both ends, and else behind those that are there.
        next_to: match paired && one.opened_here {
            true => End::Opener,
            false => End::Other,
        },
        behind: old.map(String::from),
        services: services.collect::<Result<_, _>>()?,
    })
}
