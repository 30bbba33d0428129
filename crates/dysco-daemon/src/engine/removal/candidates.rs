//! Choice of the sessions that a request for a removal concerns, and of those that can be changed.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_api::{Failure, FailureCode, HostName, Mode, Remove, Way};
use dysco_common::Session;
use dysco_common::view::{Leaver, View};
use dysco_proto::{Reason, Subsession};

use super::chained::{in_chain, opens_through};
use super::found::Candidates;
use super::task::{Accepted, Said, Stage, Task};
use crate::engine::listing::{named, shows};
use crate::engine::{Plane, measure};

/// Returns the sessions that a request concerns, with those that cannot be changed.
pub(super) fn candidates(
    here: &Plane,
    request: &Remove,
    said: &Said,
) -> Result<Candidates, Failure> {
    let host = here.resolve(&request.host)?;
    let timeout = request
        .timeout_ms
        .map_or(here.config.removal.timeout, Duration::from_millis);
    let mode = request.mode.unwrap_or(here.config.removal.mode);
    if let (Some(host), Some(_)) = (host, request.mode) {
        return Err(Failure {
            code: FailureCode::BadRequest,
            what: format!("choose how the middlebox of {host} leaves"),
            why: "only its own host chooses the mode".into(),
            hint: "ask there with --mode, or set mode under [removal] there".into(),
        });
    }
    // A mode concerns only proxies.
    let by_chain = |slot: &u32| match request.mode {
        None => Some((*slot, in_chain(here, *slot, host)?)),
        Some(_) => None,
    };
    let mut all = if request.all {
        sessions_through(here, host, request.mode)
    } else {
        named(here, &request.sessions)?
    };
    if !request.filter.is_empty() {
        all.retain(|slot| shows(here, *slot, &request.filter));
    }
    let mut found = Candidates {
        chained: all.iter().filter_map(by_chain).collect(),
        ..Candidates::default()
    };
    for session in all.into_iter().filter(|slot| by_chain(slot).is_none()) {
        let task = Task {
            dry: request.dry_run,
            by_name: request.mode.is_some(),
            ..task_of(here, session, host, timeout, mode, said)
        };
        match host {
            None => sort(here, task, &mut found),
            Some(_) => found.tasks.push(task),
        }
    }
    Ok(found)
}

/// Sorts a session among the tasks if nothing keeps the proxy in it, and among the refused
/// otherwise.
pub(in crate::engine) fn sort(here: &Plane, task: Task, found: &mut Candidates) {
    let over = over_here(&here.agent.session(task.session.slot()));
    let all = match (task.relayed, task.mode) {
        _ if over.is_some() => over.into_iter().collect(),
        // Nothing is left to be proven.
        (true, Mode::Auto | Mode::Bypass | Mode::Return) => (here.relay_of(&task.subsession))
            .and_then(|slots| here.has_none_beside(slots).err())
            .into_iter()
            .collect(),
        (true, Mode::Local) => vec![Reason::AlreadyOut],
        (false, _) => here.objections(&task.subsession, task.said.word),
    };
    let causes = || all.iter().map(Reason::cause).collect();
    let asks = matches!(task.mode, Mode::Bypass | Mode::Return);
    match all.first() {
        // A session that is not heard is asked for a packet.
        None | Some(Reason::NotHeard(_)) => found.tasks.push(task),
        // The hosts beside it may be an obstacle, too.
        Some(_) if task.dry && asks && task.neighbours.is_some() => {
            let objections = causes();
            found.tasks.push(Task { objections, ..task });
        }
        Some(reason) => {
            let report = task.refused_for(causes());
            found.refused.push((report, reason.clone()));
        }
    }
}

/// Returns the slots of the sessions that a host's middlebox is in, as seen from here. Sessions
/// that pass this host by a chain count only if no mode is requested, since a mode concerns
/// proxies.
fn sessions_through(here: &Plane, host: Option<IpAddr>, asked: Option<Mode>) -> Vec<u32> {
    let mode = asked.unwrap_or(here.config.removal.mode);
    match host {
        None => {
            let pairs = here.proxy.pairs();
            let held = pairs.iter().filter_map(|p| here.agent.find(&p.a.key));
            let mut slots: Vec<u32> = held.collect();
            // This host is in the path of sessions that it relays.
            if matches!(mode, Mode::Bypass | Mode::Return) {
                slots.extend(here.relayed_slots(mode));
            }
            if asked.is_none() {
                slots.extend(here.passing_here());
            }
            slots.sort_unstable();
            slots.dedup();
            // An ended session needs no removal.
            slots.retain(|slot| !here.agent.session(*slot).has_ended());
            slots
        }
        Some(ip) => {
            let through =
                |s: &Session| s.key.remote.ip() == ip && s.view().is_unchanged() && !s.has_ended();
            let all = here.agent.sessions_in(0..here.agent.capacity());
            let meant = |(slot, s): &(u32, _)| through(s) || opens_through(here, *slot, s, ip);
            all.filter(meant).map(|(slot, _)| slot).collect()
        }
    }
}

/// Returns the hosts on both sides of a session whose proxy is, or was, on this host.
pub(super) fn hosts_beside(here: &Plane, subsession: &Subsession) -> Option<[IpAddr; 2]> {
    beside(here, here.relay_of(subsession), subsession)
}

/// Returns the same, given the slots of a session that this host relays.
fn beside(here: &Plane, relay: Option<[u32; 2]>, subsession: &Subsession) -> Option<[IpAddr; 2]> {
    if let Some(slots) = relay {
        return Some(slots.map(|o| here.agent.session(o).key.remote().ip()));
    }
    let pair = here.pair_of_session(subsession)?;
    Some([pair.a, pair.b].map(|side| side.key.remote().ip()))
}

pub(in crate::engine) fn task_of(
    here: &Plane,
    slot: u32,
    host: Option<IpAddr>,
    timeout: Duration,
    mode: Mode,
    said: &Said,
) -> Task {
    let s = here.agent.session(slot);
    let opened = s.life.opened_here != 0;
    let subsession = if opened {
        measure::opened(&s.key)
    } else {
        measure::accepted(&s.key)
    };
    let relay = match host {
        None => here.relay_at(slot),
        Some(_) => None,
    };
    let returns = |[a, _]: [u32; 2]| here.agent.session(a).two.returns != 0;
    let from = match relay {
        None => Way::Middlebox,
        Some(slots) if returns(slots) => Way::Return,
        Some(_) => Way::Local,
    };
    let neighbours = match host {
        None => beside(here, relay, &subsession),
        Some(_) => None,
    };
    Task {
        batch: 0,
        session: here.session_id(slot, &s),
        local: s.key.local(),
        remote: s.key.remote(),
        subsession,
        ask: host,
        timeout,
        mode,
        by_name: false,
        way: None,
        why: None,
        neighbours,
        dry: false,
        objections: Vec::new(),
        said: said.clone(),
        relayed: relay.is_some(),
        from,
        stage: match relay {
            Some(_) => Stage::Return,
            None => Stage::Prove,
        },
        since: None,
        switched: None,
        accepted: Accepted::new(&s),
        requested: Instant::now(),
        begun: None,
    }
}

impl Plane {
    /// Returns the address of a host; `None` for this host.
    pub(in crate::engine) fn resolve(&self, host: &HostName) -> Result<Option<IpAddr>, Failure> {
        let ip = match host {
            HostName::This => return Ok(None),
            HostName::Address(ip) => *ip,
            HostName::Name(name) if *name == self.config.host.name => return Ok(None),
            // Not resolved here: that would block the engine.
            HostName::Name(name) => {
                return Err(Failure {
                    code: FailureCode::NotFound,
                    what: format!("find the host '{name}'"),
                    why: "its name does not resolve".into(),
                    hint: "name it by its address".into(),
                });
            }
        };
        Ok((!self.config.host.addresses.contains(&ip)).then_some(ip))
    }
}

/// Returns the reason for which nothing can leave a session that this host has given up.
fn over_here(s: &Session) -> Option<Reason> {
    match s.view() {
        View::Left(Leaver::Chain) => Some(Reason::Closing),
        View::Left(Leaver::Proxy) => Some(Reason::AlreadyOut),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;

    #[test]
    fn a_proxy_that_has_left_is_not_said_to_be_unproven() {
        let entry = |state: State, chained| {
            let mut s = Session::default();
            (s.state, s.two.chained) = (state as u32, chained);
            s
        };
        assert_eq!(over_here(&entry(State::Tracked, 0)), None);
        let left = over_here(&entry(State::Tombstone, 0));
        assert_eq!(left, Some(Reason::AlreadyOut));
        assert!(
            Reason::AlreadyOut
                .to_string()
                .contains("has left this session already")
        );
        // This host was one of the session's chain, and no proxy.
        let passed = over_here(&entry(State::Tombstone, 2));
        assert_eq!(passed, Some(Reason::Closing));
    }
}
