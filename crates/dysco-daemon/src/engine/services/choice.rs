//! Choice of the sessions that a request concerns, and the reasons for which services cannot enter
//! or leave them.

use dysco_api::{Failure, FailureCode, ServiceAction, ServiceRequest, ServiceSpec, TuneOptions};
use dysco_common::detour::Detour;
use dysco_common::{Session, View};
use dysco_config::policy::Policy;
use dysco_explain::Cause;
use dysco_runner::{Ends, Needs, Registry, Spec};

use super::obstacles::obstacles;
use super::words::{self, has_others};
use super::{Services, Stage, packets};
use crate::engine::Plane;
use crate::engine::listing::{named, shows};

/// Judgement about one session.
pub(super) enum Judged {
    /// The action is possible.
    Possible,
    /// The session is as the request wants it.
    Unchanged,
    /// It is not possible, for these reasons.
    Refused(Vec<Cause>),
}

/// Returns the slots of the sessions that a request concerns.
pub(super) fn slots(
    plane: &Plane,
    services: &Services,
    request: &ServiceRequest,
) -> Result<Vec<u32>, Failure> {
    let comes = match &request.action {
        ServiceAction::Put { services, .. } => Some(services.as_slice()),
        ServiceAction::Replace { new, .. } => Some(std::slice::from_ref(new)),
        ServiceAction::Take | ServiceAction::Part { .. } => None,
    };
    if let Some(services) = comes {
        known(services).map_err(|cause| {
            Failure::new(
                FailureCode::BadRequest,
                cause.of("put services into sessions"),
            )
        })?;
    }
    let mut slots = match request.sessions.as_slice() {
        [] if request.all || !request.filter.is_empty() => {
            selected(plane, services, &request.action)
        }
        names => named(plane, names)?,
    };
    slots.retain(|slot| request.filter.is_empty() || shows(plane, *slot, &request.filter));
    slots.sort_unstable();
    slots.dedup();
    Ok(slots)
}

/// Checks the services of a policy's rules.
///
/// # Errors
/// If the sessions of a rule could not have its services.
pub(crate) fn check_policy(policy: &Policy) -> Result<(), Cause> {
    for (name, rule) in policy.names().zip(&policy.rules) {
        let services = &rule.chain.services;
        if services.is_empty() {
            continue;
        }
        let checked = known(services).and_then(|()| match rule.chain.hosts.as_slice() {
            [] => Ok(()),
            _ => beside_hosts(services),
        });
        checked.map_err(|cause| cause.after(format_args!("rule {name}")))?;
    }
    Ok(())
}

/// Checks that services can be in sessions that pass hosts.
///
/// # Errors
/// If they need both ends.
fn beside_hosts(services: &[ServiceSpec]) -> Result<(), Cause> {
    if packets::wanted(services)?.is_some() {
        return Ok(());
    }
    let needs = needs(services, &Session::default())?;
    if needs.ends == Ends::Pair {
        return Err(past_the_hosts("the chain has hosts")
            .hint("write a rule for each, with other destinations or ports"));
    }
    match needs.from_start {
        true => Err(words::too_late_beside_hosts()),
        false => Ok(()),
    }
}

fn past_the_hosts(why: &str) -> Cause {
    let why = format!("{why}, and the two handlers of these services would speak past them");
    Cause::new(why)
}

/// Checks that a plane has the services.
pub(super) fn known(services: &[ServiceSpec]) -> Result<(), Cause> {
    if services.is_empty() {
        return Err(Cause::new("the request names no service").hint("name one, such as +count"));
    }
    if packets::wanted(services)?.is_some() {
        return Ok(());
    }
    let registry = Registry::builtin();
    for service in services {
        registry.known(&spec(service)?)?;
    }
    Ok(())
}

/// Returns a service in the words of the handler.
pub(super) fn spec(service: &ServiceSpec) -> Result<Spec, Cause> {
    let parsed = service.to_string().parse::<Spec>();
    parsed.map_err(|error| Cause::from(&error))
}

/// A filter selects no session that is over, and only those with services if these are to leave.
fn selected(plane: &Plane, services: &Services, action: &ServiceAction) -> Vec<u32> {
    let wanted = |(slot, s): &(u32, Session)| {
        let lives = s.is_current() && !s.has_ended() && !s.view().is_over();
        let has = || {
            services
                .sessions
                .get(slot)
                .is_some_and(|one| one.stage != Stage::Direct)
                || plane.agent.packet_services(s).is_some()
                || services.rests_in(*slot, s).is_some()
        };
        lives && (matches!(action, ServiceAction::Put { .. }) || has())
    };
    let all = plane.agent.sessions_in(0..plane.agent.capacity());
    all.filter(wanted).map(|(slot, _)| slot).collect()
}

/// Judges whether the action is possible for a session.
pub(super) fn judge(
    plane: &Plane,
    services: &Services,
    slot: u32,
    action: &ServiceAction,
) -> Judged {
    let s = plane.agent.session(slot);
    let had = services
        .sessions
        .get(&slot)
        .filter(|one| one.created_ns == s.created_ns);
    let had = had.filter(|one| one.stage != Stage::Direct);
    if let Some(record) = plane.agent.packet_services(&s) {
        let has = packets::Wanted::of(&record, s.life.opened_here != 0);
        return judge_packets(plane, &s, &has, action);
    }
    if let Some(rests) = services.rests_in(slot, &s) {
        match action {
            ServiceAction::Take => return Judged::Possible,
            ServiceAction::Part { services } => return rests.judge_part(services),
            ServiceAction::Replace { .. } => return Judged::Refused(vec![words::all_rest()]),
            ServiceAction::Put { services, .. } if *services == rests.services => {
                return Judged::Unchanged;
            }
            // Others take their place.
            ServiceAction::Put { .. } => {}
        }
    }
    match (action, had) {
        (
            ServiceAction::Take | ServiceAction::Part { .. } | ServiceAction::Replace { .. },
            None,
        ) => Judged::Unchanged,
        // Its handler has not told the services yet.
        (_, Some(one)) if services.is_taking_up(one.owner) => Judged::Refused(vec![busy()]),
        (ServiceAction::Replace { old, new }, Some(one)) => {
            services.judge_replace(one, old, new, &s)
        }
        (ServiceAction::Take, Some(one)) => match one.may_be_taken() {
            true => Judged::Possible,
            false => Judged::Refused(vec![busy()]),
        },
        (ServiceAction::Part { services: names }, Some(one)) => services.judge_part(one, names, &s),
        (ServiceAction::Put { services: all, .. }, Some(one)) if one.services == *all => {
            match one.is_settled() {
                true => Judged::Unchanged,
                false => Judged::Refused(vec![busy()]),
            }
        }
        (ServiceAction::Put { services: more, .. }, Some(one)) => {
            judged(services.against_more(one, more, &s))
        }
        (
            ServiceAction::Put {
                services: wanted,
                beside_hosts: beside,
            },
            None,
        ) => {
            let held = s.view() == View::Held;
            let mut reasons: Vec<Cause> = held.then(words::has_its_own).into_iter().collect();
            reasons.extend(refusals(plane, services, slot, wanted));
            reasons.extend(beside.then(|| beside_hosts(wanted).err()).flatten());
            judged(reasons)
        }
    }
}

/// Judges whether the action is possible for a session with services of the packet plane.
fn judge_packets(
    plane: &Plane,
    s: &Session,
    has: &packets::Wanted,
    action: &ServiceAction,
) -> Judged {
    let services = match action {
        ServiceAction::Take => return Judged::Possible,
        ServiceAction::Part { services } if has.without(services) == *has => {
            return Judged::Unchanged;
        }
        ServiceAction::Part { .. } => return Judged::Possible,
        ServiceAction::Replace { old, new } => {
            let left = has.without(std::slice::from_ref(old));
            return match left == *has {
                true => Judged::Unchanged,
                false => judge_more_packets(plane, s, &left, std::slice::from_ref(new)),
            };
        }
        ServiceAction::Put { services, .. } => services,
    };
    match packets::wanted(services) {
        Ok(Some(wanted)) if wanted == *has => Judged::Unchanged,
        _ => judge_more_packets(plane, s, has, services),
    }
}

/// Judges whether a session with these services of the packet plane can have more.
fn judge_more_packets(
    plane: &Plane,
    s: &Session,
    has: &packets::Wanted,
    more: &[ServiceSpec],
) -> Judged {
    match packets::wanted(more) {
        Ok(Some(wanted)) => match has.and(&wanted) {
            Ok(all) => judged(packets::obstacles(plane, s, &all)),
            Err(cause) => Judged::Refused(vec![cause]),
        },
        _ => Judged::Refused(vec![has_others()]),
    }
}

/// Returns the judgement that follows from these reasons against an action.
pub(super) fn judged(reasons: Vec<Cause>) -> Judged {
    match reasons.is_empty() {
        true => Judged::Possible,
        false => Judged::Refused(reasons),
    }
}

/// Returns the reasons for which these services cannot enter a session that does not have them.
pub(super) fn refusals(
    plane: &Plane,
    services: &Services,
    slot: u32,
    wanted: &[ServiceSpec],
) -> Vec<Cause> {
    let s = plane.agent.session(slot);
    let had = services.sessions.get(&slot);
    if had.is_some_and(|one| one.created_ns == s.created_ns && one.stage != Stage::Direct) {
        return vec![has_others()];
    }
    match packets::wanted(wanted) {
        Ok(Some(wanted)) => return packets::obstacles(plane, &s, &wanted),
        Ok(None) => {}
        Err(cause) => return vec![cause],
    }
    let mut reasons = obstacles(plane, slot, &s);
    reasons.extend(plane.agent.packet_services(&s).map(|_| has_others()));
    match needs(wanted, &s) {
        Ok(needs) => {
            if needs.ends == Ends::Pair {
                reasons.extend(no_peer(plane, slot, &s));
            }
            let late = needs.from_start && s.view() != View::Held;
            reasons.extend(late.then(words::too_late));
            reasons.extend(needs.congestion.and_then(|name| no_congestion(&name)));
        }
        Err(cause) => reasons.push(cause),
    }
    reasons
}

/// Returns the reason for which services cannot be at both ends of a session.
fn no_peer(plane: &Plane, slot: u32, s: &Session) -> Option<Cause> {
    let shifts = |d: Detour| d.out.shift | d.back.shift != 0;
    if plane.agent.detour(slot).is_some_and(shifts) {
        return Some("earlier services have added bytes to it".into());
    }
    let addresses = plane.control.local_addresses();
    if addresses.is_empty() {
        let cause = Cause::new(
            "these services need dyscod at both ends, and this host has no control channel",
        );
        return Some(cause.hint("configure control.listen and certificates"));
    }
    if s.view().new_path().is_some() {
        let cause = past_the_hosts("its packets take a path that may pass hosts of a chain");
        return Some(cause.hint("put in services that run at one end, or open a new session"));
    }
    let tunnel = |port| addresses.iter().any(|address| address.port() == port);
    (tunnel(s.key.local().port()) || tunnel(s.key.remote().port()))
        .then(|| "it is a connection between two handlers".into())
}

/// Returns the reason for which no socket can have a congestion control.
pub(super) fn no_congestion(name: &str) -> Option<Cause> {
    let options = name.parse().map(|name| TuneOptions {
        congestion: Some(name),
        ..TuneOptions::default()
    });
    let options = match options {
        Ok(options) => options,
        Err(cause) => return Some(cause),
    };
    let refused = dysco_proxy::tuning::check(&options).err()?;
    Some(refused.cause())
}

/// Returns the ends at which services have to be in a session.
///
/// # Errors
/// The reason for which they cannot work in it.
pub(super) fn check(services: &[ServiceSpec], s: &Session) -> Result<Ends, Cause> {
    needs(services, s).map(|needs| needs.ends)
}

/// Returns what services need in a session.
///
/// # Errors
/// The reason for which they cannot work in it.
pub(super) fn needs(services: &[ServiceSpec], s: &Session) -> Result<Needs, Cause> {
    let specs: Vec<Spec> = services.iter().map(spec).collect::<Result<_, _>>()?;
    let (local, remote) = (s.key.local(), s.key.remote());
    let (opener, other) = match s.life.opened_here {
        0 => (remote, local),
        _ => (local, remote),
    };
    let session = dysco_runner::Session {
        opener,
        other,
        // The other host is asked if they need it.
        both_ends: true,
    };
    Registry::builtin().check(&specs, &session)
}

pub(super) fn busy() -> Cause {
    Cause::new("its services are entering or leaving it at this moment")
        .hint("ask again in a moment")
}
