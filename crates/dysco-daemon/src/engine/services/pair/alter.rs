//! Changes of some services at both ends, while the others stay. The host that has put the services in
//! asks the other one to be ready. The two handlers carry the change out, and the packets of the
//! session take the same route before and after.

use std::time::Instant;

use dysco_api::{ServiceOutcome, ServiceSpec};
use dysco_explain::Cause;
use dysco_proto::pairs::{Alteration, Content, Secret};
use dysco_runner::protocol::Request;

use super::super::choice::{self, busy};
use super::super::handler::mirror;
use super::super::judge_partial::{HALVES, first_half, is_half};
use super::super::partial::Partial;
use super::super::{Serviced, Services, Stage, words};
use super::{PATIENCE, Paired, REPEAT};
use crate::engine::Plane;

/// A change that this host has asked for.
pub(super) struct Asked {
    alteration: Alteration,
    since: Instant,
    /// Time of the next repetition.
    repeat: Instant,
}

/// A change that the other host has asked for.
pub(super) struct Expected {
    secret: Secret,
    /// Services that come in, and have not.
    enter: Vec<ServiceSpec>,
    /// Names of services that leave.
    leave: Vec<String>,
    /// The answer of this host; `None` until its handler has answered.
    answer: Option<Result<(), Cause>>,
}

impl Paired {
    /// Forgets the change that the other host was asked for.
    pub(in crate::engine::services) fn forget_request(&mut self) {
        self.asked = None;
    }
}

impl Services {
    /// Asks the other host to be ready for the change of services that this host is about to begin.
    pub(in crate::engine::services) fn ask_to_alter(&mut self, plane: &Plane, slot: u32) {
        let s = plane.agent.session(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let Some(paired) = &mut one.paired else {
            return;
        };
        let (mut enter, mut leave) = (Vec::new(), Vec::new());
        match &one.partial {
            Some(Partial::Coming(some, _)) => enter.extend(some.iter().map(ToString::to_string)),
            Some(Partial::Going(some)) => {
                // Others may be on this host alone.
                let halves = some.iter().filter(|one| is_half(one, &s));
                leave.extend(halves.map(|one| one.name.clone()));
            }
            Some(Partial::Replacing(..)) | None => return,
        }
        let secret = Secret(rand::random());
        paired.asked = Some(Asked {
            alteration: Alteration {
                secret,
                enter,
                leave,
            },
            since: Instant::now(),
            repeat: Instant::now() + REPEAT,
        });
        self.say_alter(plane, slot);
    }

    fn say_alter(&self, plane: &Plane, slot: u32) {
        let paired = self.sessions.get(&slot).and_then(|one| one.paired.as_ref());
        if let Some(asked) = paired.and_then(|paired| paired.asked.as_ref()) {
            self.say(plane, slot, Content::Alter(asked.alteration.clone()));
        }
    }

    /// Repeats a change that the other host has not answered, or gives it up.
    pub(super) fn wait_for_alteration(&mut self, plane: &Plane, slot: u32) {
        let one = self.sessions.get_mut(&slot);
        let paired = one.and_then(|one| one.paired.as_mut());
        let Some(asked) = paired.and_then(|paired| paired.asked.as_mut()) else {
            return;
        };
        if asked.since.elapsed() > PATIENCE {
            let cause = Cause::new("the host of its other end does not answer")
                .hint("look there whether dyscod runs, and is of this release");
            self.give_up(plane, slot, cause);
        } else if asked.repeat <= Instant::now() {
            asked.repeat = Instant::now() + REPEAT;
            self.say_alter(plane, slot);
        }
    }

    /// The other host is ready for a change of services, or refuses it.
    pub(super) fn altered(
        &mut self,
        plane: &mut Plane,
        slot: u32,
        secret: Secret,
        result: Result<(), Cause>,
    ) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let asked = one.paired.as_mut().and_then(|paired| {
            paired
                .asked
                .take_if(|asked| asked.alteration.secret == secret)
        });
        if asked.is_none() {
            return;
        }
        let request = result.and_then(|()| match one.stage {
            Stage::In => one.alteration(slot, secret),
            // The other host takes all services out meanwhile.
            _ => Err(busy()),
        });
        let begun = match &one.partial {
            Some(Partial::Going(_)) => ServiceOutcome::Leaving,
            _ => ServiceOutcome::Entering,
        };
        match request {
            Ok(request) => {
                plane.faults.reach("ServiceAlterHere");
                self.send(slot, request);
                self.begun(plane, slot, begun);
            }
            Err(cause) => self.give_up(plane, slot, cause),
        }
    }

    /// The other host asks this one to be ready for a change of services.
    pub(super) fn alter(&mut self, plane: &mut Plane, slot: u32, wanted: &Alteration) {
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        let Some(paired) = &one.paired else {
            return;
        };
        let known = paired.expected.as_ref();
        match known.filter(|expected| expected.secret == wanted.secret) {
            Some(expected) => {
                if let Some(answer) = expected.answer.clone() {
                    self.say(plane, slot, Content::Altered(wanted.secret, answer));
                }
                return;
            }
            // It comes again. This host may not have heard that all is in, or a service of the same
            // name may still leave here.
            None if one.stage == Stage::Entering || one.still_has(wanted) => return,
            None => {}
        }
        let request = self
            .judge_alteration(plane, one, slot, wanted)
            .and_then(|enter| {
                let leave = wanted.leave.clone();
                let request = join(slot, &enter, one.opened_here, wanted.secret, Some(leave))?;
                Ok((enter, request))
            });
        let (enter, answer) = match request {
            Ok((enter, request)) => {
                plane.faults.reach("ServiceAlterThere");
                self.send(slot, request);
                (enter, None)
            }
            Err(cause) => {
                let answer = Err(refused(cause));
                self.say(plane, slot, Content::Altered(wanted.secret, answer.clone()));
                (Vec::new(), Some(answer))
            }
        };
        if let Some(paired) = self
            .sessions
            .get_mut(&slot)
            .and_then(|one| one.paired.as_mut())
        {
            paired.expected = Some(Expected {
                secret: wanted.secret,
                enter,
                leave: wanted.leave.clone(),
                answer,
            });
        }
    }

    /// Returns the services that come in.
    fn judge_alteration(
        &self,
        plane: &Plane,
        one: &Serviced,
        slot: u32,
        wanted: &Alteration,
    ) -> Result<Vec<ServiceSpec>, Cause> {
        if one.paired.as_ref().is_some_and(Paired::asks) {
            return Err(words::by_other_host());
        }
        if !one.is_settled() {
            return Err(busy());
        }
        if let Some(cause) = self.too_old(one.owner, HALVES) {
            return Err(cause);
        }
        let enter = wanted.enter.iter();
        let enter = enter.map(|text| text.parse::<ServiceSpec>().map_err(Cause::new));
        let enter = enter.collect::<Result<Vec<_>, _>>()?;
        let has = |name: &str| one.services.iter().any(|has| has.name == name);
        if let Some(twice) = enter.iter().find(|new| has(&new.name)) {
            return Err(words::is_in(&twice.name));
        }
        if let Some(unknown) = wanted.leave.iter().find(|name| !has(name)) {
            return Err(Cause::new(format!("{unknown} is not in it")));
        }
        if !enter.is_empty() {
            choice::needs(&enter, &plane.agent.session(slot))?;
        }
        Ok(enter)
    }

    /// Returns true if the handler was asked to be ready for a change of the other host.
    pub(in crate::engine::services) fn awaits_handler(&self, slot: u32) -> bool {
        let paired = self.sessions.get(&slot).and_then(|one| one.paired.as_ref());
        let expected = paired.and_then(|paired| paired.expected.as_ref());
        expected.is_some_and(|expected| expected.answer.is_none())
    }

    /// This host's handler is ready for a change of the other host, or refuses it.
    pub(in crate::engine::services) fn ready_here(
        &mut self,
        plane: &Plane,
        slot: u32,
        result: Result<(), Cause>,
    ) {
        let paired = self
            .sessions
            .get_mut(&slot)
            .and_then(|one| one.paired.as_mut());
        if let Some(expected) = paired.and_then(|paired| paired.expected.as_mut()) {
            let (secret, result) = (expected.secret, result.map_err(refused));
            expected.answer = Some(result.clone());
            self.say(plane, slot, Content::Altered(secret, result));
        }
    }

    /// A service has come in, as the other host's handler has told this one.
    pub(in crate::engine::services) fn joined(
        &mut self,
        plane: &mut Plane,
        slot: u32,
        service: &str,
    ) {
        let s = plane.agent.session(slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let expected = one
            .paired
            .as_mut()
            .and_then(|paired| paired.expected.as_mut());
        let announced = expected.and_then(|expected| {
            let at = expected.enter.iter().position(|new| new.name == service)?;
            Some(expected.enter.remove(at))
        });
        // The arguments of a service that an earlier process was told of are not known.
        let spec = announced.or_else(|| service.parse().ok());
        if let Some(spec) = spec.filter(|spec| one.services.iter().all(|has| has.name != spec.name))
        {
            let at = first_half(&one.services, &s);
            one.services.insert(at, spec);
            plane.report("services-put", Some(one.session), format!("+{service}"));
        }
    }
}

impl Serviced {
    /// Returns true if a service that is to come in is in the session, and leaves.
    fn still_has(&self, wanted: &Alteration) -> bool {
        let expected = self
            .paired
            .as_ref()
            .and_then(|paired| paired.expected.as_ref());
        let leaves = |name: &String| expected.is_some_and(|expected| expected.leave.contains(name));
        let comes = |name: &str| {
            let new = wanted
                .enter
                .iter()
                .filter_map(|text| text.parse::<ServiceSpec>().ok());
            new.into_iter().any(|new| new.name == name)
        };
        let mut services = self.services.iter();
        services.any(|has| leaves(&has.name) && comes(&has.name))
    }

    /// Returns the request to the handler for the change that the other host is ready for.
    fn alteration(&self, slot: u32, secret: Secret) -> Result<Request, Cause> {
        match &self.partial {
            Some(Partial::Coming(some, _)) => join(slot, some, self.opened_here, secret, None),
            Some(Partial::Going(some)) => Ok(Request::Part {
                session: u64::from(slot),
                services: some.iter().map(|one| one.name.clone()).collect(),
            }),
            Some(Partial::Replacing(..)) | None => Err(busy()),
        }
    }
}

/// Returns the reason of a refusal for the operator of the other host.
fn refused(cause: Cause) -> Cause {
    let why = format!("the host of its other end refuses: {}", cause.why);
    Cause { why, ..cause }
}

/// Returns the request to the handler to put halves of services in. Where the other host begins, it asks
/// to be ready for them, and for the leave of services with these names.
fn join(
    slot: u32,
    services: &[ServiceSpec],
    opened_here: bool,
    secret: Secret,
    leaves: Option<Vec<String>>,
) -> Result<Request, Cause> {
    let mut services = services.to_vec();
    mirror(&mut services, true, opened_here);
    let services = services.iter().map(choice::spec);
    Ok(Request::Join {
        session: u64::from(slot),
        secret: secret.0,
        begins: leaves.is_none(),
        services: services.collect::<Result<_, _>>()?,
        leaves: leaves.unwrap_or_default(),
    })
}
