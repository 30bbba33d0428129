//! Choice of the sessions that a request concerns, and the reasons for which services cannot enter
//! or leave them.

use dysco_api::{Failure, FailureCode, ServiceAction, ServiceRequest, ServiceSpec, TuneOptions};
use dysco_common::Session;
use dysco_common::session::offer;
use dysco_common::view::{ChainState, Change, View};
use dysco_config::policy::Policy;
use dysco_explain::Cause;
use dysco_runner::{Ends, Needs, Registry, Spec};

use super::words::has_others;
use super::{Services, Stage, packets};
use crate::engine::Plane;
use crate::engine::listing::{named, shows};
use crate::engine::tuning::end::no_socket;

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
    if let ServiceAction::Put { services, .. } = &request.action {
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

/// Checks that services can enter sessions before their first byte.
///
/// # Errors
/// If one is unknown, or is only for sessions that are established.
pub(super) fn known_from_start(services: &[ServiceSpec]) -> Result<(), Cause> {
    known(services)?;
    match packets::wanted(services)? {
        None => Ok(()),
        Some(_) => Err(Cause::new(
            "services of the packet plane are only for established sessions",
        )
        .hint("leave plane=packet out")),
    }
}

/// Checks the services of a policy's rules.
///
/// # Errors
/// If the sessions of a rule could not have its services.
pub fn check_policy(policy: &Policy) -> Result<(), Cause> {
    for (name, rule) in policy.names().zip(&policy.rules) {
        let services = &rule.chain.services;
        if services.is_empty() {
            continue;
        }
        let checked = known_from_start(services).and_then(|()| match rule.chain.hosts.as_slice() {
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
    match check(services, &Session::default())? {
        Ends::Pair => Err(past_the_hosts("the chain has hosts")
            .hint("write a rule for each, with other destinations or ports")),
        _ => Ok(()),
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
                || packets::of(plane, s).is_some()
        };
        lives && (*action != ServiceAction::Take || has())
    };
    let all = plane.agent.sessions().into_iter();
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
    if let Some(record) = packets::of(plane, &s) {
        let wanted = match action {
            ServiceAction::Put { services, .. } => packets::wanted(services),
            ServiceAction::Take => return Judged::Possible,
        };
        let has = packets::Wanted::of(&record, s.life.opened_here != 0);
        return match wanted {
            Ok(Some(wanted)) if wanted == has => Judged::Unchanged,
            _ => Judged::Refused(vec![has_others()]),
        };
    }
    match (action, had) {
        (ServiceAction::Take, None) => Judged::Unchanged,
        (ServiceAction::Take, Some(one)) => match one.stage {
            Stage::In => Judged::Possible,
            _ => Judged::Refused(vec![busy()]),
        },
        (ServiceAction::Put { services, .. }, Some(one)) if one.services == *services => {
            match one.stage {
                Stage::In => Judged::Unchanged,
                _ => Judged::Refused(vec![busy()]),
            }
        }
        (
            ServiceAction::Put {
                services: wanted,
                beside_hosts: beside,
            },
            _,
        ) => {
            let mut reasons = refusals(plane, services, slot, wanted);
            reasons.extend(beside.then(|| beside_hosts(wanted).err()).flatten());
            match reasons.is_empty() {
                true => Judged::Possible,
                false => Judged::Refused(reasons),
            }
        }
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
    match needs(wanted, &s) {
        Ok(needs) => {
            if needs.ends == Ends::Pair {
                reasons.extend(no_peer(plane, services, slot, &s));
            }
            reasons.extend(needs.congestion.and_then(|name| no_congestion(&name)));
        }
        Err(cause) => reasons.push(cause),
    }
    reasons
}

/// Returns the reason for which services cannot be at both ends of a session.
fn no_peer(plane: &Plane, services: &Services, slot: u32, s: &Session) -> Option<Cause> {
    let delta = services.sessions.get(&slot).map(|one| one.delta);
    if delta.is_some_and(|delta| delta != [0; 2]) {
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
        return Some(past_the_hosts("there may be hosts on its path"));
    }
    let tunnel = |port| addresses.iter().any(|address| address.port() == port);
    (tunnel(s.key.local().port()) || tunnel(s.key.remote().port()))
        .then(|| "it is a connection between two handlers".into())
}

/// Returns the reason for which no socket can have a congestion control.
fn no_congestion(name: &str) -> Option<Cause> {
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

fn busy() -> Cause {
    Cause::new("its services are entering or leaving it at this moment")
        .hint("ask again in a moment")
}

fn changes() -> Cause {
    Cause::new("its chain is being changed").hint("ask again in a moment")
}

/// Returns all reasons for which no service can enter a session, the decisive one first.
fn obstacles(plane: &Plane, slot: u32, s: &Session) -> Vec<Cause> {
    let mut all: Vec<Cause> = no_socket(s).into_iter().collect();
    all.extend(elsewhere(plane, slot, s));
    if offer::are_foreign(s.local.flags, s.remote.flags) {
        all.push("it uses an option that binds it to its two ends: TCP-MD5, TCP-AO, MPTCP".into());
    }
    if !plane.config.host.addresses.contains(&s.key.local().ip()) {
        all.push(
            Cause::new("its end is not on this host").hint("ask on the host of one of its ends"),
        );
    }
    if plane.config.host.addresses.contains(&s.key.remote().ip()) {
        all.push("both of its ends are on this host, so that its packets take no interface".into());
    }
    all
}

/// Returns the reason for which the session's packets do not pass here unchanged.
fn elsewhere(plane: &Plane, slot: u32, s: &Session) -> Option<Cause> {
    if s.has_ended() {
        return None;
    }
    match s.view() {
        View::Tracked | View::NewPath(_) if plane.holds_chain_of(slot) => Some(changes()),
        View::Tracked | View::Adopted if s.is_chained() => Some(changes()),
        View::Tracked | View::Held => None,
        View::Adopted => Some(
            Cause::new("no packet of it has been seen since dyscod adopted it")
                .hint("ask again once it has moved"),
        ),
        View::Detoured if plane.agent.may_enter_detour(slot) => None,
        View::Opening => Some(Cause::new("it is not open yet").hint("ask again once it is open")),
        View::NewPath(_) if s.is_adopted() => Some(
            "it takes a path of its own, and dyscod has not seen the numbers it began with".into(),
        ),
        View::NewPath(route) if route.chain == ChainState::Opening => {
            Some(Cause::new("it is not open yet").hint("ask again once it is open"))
        }
        View::NewPath(route) if route.relay.is_some() || route.joined.is_some() => Some(
            Cause::new("this host passes it on, and has no end of it")
                .hint("ask on the host of one of its ends"),
        ),
        View::NewPath(_) if plane.agent.may_enter_detour(slot) => None,
        View::NewPath(_) if s.detours_before_path() => Some(busy()),
        View::NewPath(_)
        | View::Changing(Change::Joining | Change::Switching(_) | Change::Passing(_)) => {
            Some(changes())
        }
        View::Changing(Change::TwoPaths(_) | Change::RelayTwoPaths(_)) => {
            Some(Cause::new("a proxy is leaving it").hint("ask again in a moment"))
        }
        View::Returned => Some("a proxy has left it, and its replies take another path".into()),
        View::Detoured => Some(busy()),
        View::Free | View::Closed | View::Relayed(_) | View::Left(_) => None,
    }
}
