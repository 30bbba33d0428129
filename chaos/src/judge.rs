//! Judges a run: distinguishes the faults of Dysco from those of the network without Dysco.

mod trouble;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use trouble::{Trouble, troubles};

use crate::execute::{Run, SessionRun};
use crate::operators::{OperationRun, Reported};
use crate::plan::{Ask, Plan, SessionPlan, Victim};

/// Milliseconds before a command at which a session must be open, so that the command should have
/// seen it.
const SEEN_MS: u64 = 1_000;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// An end received a byte that the other end did not send at that place.
    WrongBytes,
    /// A command reported `removed` for a session that makes no progress or still passes its proxy.
    FalseRemoved,
    /// A session ended that would not have ended.
    Lost,
    /// A session stalls that would not have stalled.
    Stall,
    /// Something remains after the run.
    Leftover,
    /// Another invariant was broken.
    Broken,
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Kind of the fault.
    pub kind: Kind,
    /// Session with the fault.
    pub session: Option<u64>,
    /// Description of the fault.
    pub what: String,
}

/// Runs of the same plan without Dysco.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls {
    /// Runs with the kills of proxies.
    pub with_kills: Vec<Run>,
    /// Runs without these kills, for comparison with a session that its proxy has left.
    pub undisturbed: Vec<Run>,
}

/// True if the run has a fault that one more control might excuse.
pub(crate) fn needs_controls(plan: &Plan, run: &Run, controls: &Controls) -> bool {
    let by_session = |s: &SessionPlan| {
        let seen = run.session(s.id)?;
        Some(of_session(plan, s, seen, run, controls))
    };
    plan.sessions
        .iter()
        .filter_map(by_session)
        .any(|found| !found.is_empty())
}

/// Number of sessions with a fault that Dysco did not cause.
pub(crate) fn excused(plan: &Plan, run: &Run, controls: &Controls) -> u64 {
    let all = plan
        .sessions
        .iter()
        .filter_map(|s| Some((s, run.session(s.id)?)));
    let excused = all.filter(|(s, seen)| {
        !troubles(seen, run.asleep_ms).is_empty()
            && of_session(plan, s, seen, run, controls).is_empty()
    });
    excused.count() as u64
}

/// Returns all faults of a run, after comparison with its controls.
pub(crate) fn judge(plan: &Plan, run: &Run, controls: &Controls) -> Vec<Finding> {
    let mut findings = Vec::new();
    for session in &plan.sessions {
        let Some(seen) = run.session(session.id) else {
            continue;
        };
        findings.extend(of_session(plan, session, seen, run, controls));
    }
    for operation in &run.operations {
        findings.extend(of_operation(plan, operation, run));
    }
    let others = [
        (Kind::Broken, &run.broken),
        (Kind::Leftover, &run.leftovers),
    ];
    for (kind, all) in others {
        findings.extend(all.iter().map(|what| Finding {
            kind,
            session: None,
            what: what.clone(),
        }));
    }
    findings
}

/// Commands that changed a session, by the time at which they ended.
fn changes(run: &Run, local: SocketAddr) -> impl Iterator<Item = (&OperationRun, &str)> {
    run.operations.iter().flat_map(move |o| {
        let own = o
            .changed()
            .filter(move |t| t.local == local || t.remote == local);
        own.map(move |t| (o, t.outcome.as_str()))
    })
}

/// Time at which the session's proxy or its host was killed, if the session passed it then.
fn killed_in(plan: &SessionPlan, run: &Run, local: Option<SocketAddr>) -> Option<u64> {
    let hit = run.kills.iter().find(|k| {
        let of_it = match k.victim {
            Victim::Proxy { host } | Victim::Host { host } => Some(host) == plan.proxy,
            _ => false,
        };
        k.hit && of_it
    })?;
    let whole = matches!(hit.victim, Victim::Host { .. });
    (!local.is_some_and(|local| has_left(run, local, hit.at_ms, whole))).then_some(hit.at_ms)
}

/// True if a command took the proxy out of a session before this time. With `whole`, only removals
/// in mode `bypass` count: in the other modes, the kernel of the proxy's host relays the session.
fn has_left(run: &Run, local: SocketAddr, at_ms: u64, whole: bool) -> bool {
    let mut before = run.operations.iter().filter(|o| o.ended_ms < at_ms);
    before.any(|o| {
        let own = o
            .changed()
            .filter(|t| t.local == local || t.remote == local);
        let mut left = own.filter(|t| t.outcome == "removed");
        left.any(|t| !whole || t.mode.as_deref() == Some("bypass"))
    })
}

/// Times of kills of processes that may have run services of a session, or have put them in. The
/// session ends if such a process had bytes of it, or if a daemon died between the orders of both
/// hosts.
fn handler_deaths(plan: &SessionPlan, run: &Run) -> impl Iterator<Item = u64> {
    let hosts = [Some(plan.client), plan.proxy, Some(plan.server)];
    let has_services = move |at: u64| {
        let mut operations = run.operations.iter();
        operations.any(|o| {
            let put = matches!(o.operation.ask, Ask::Put { .. });
            put && o.began_ms <= at && hosts.contains(&Some(o.operation.host))
        })
    };
    run.kills.iter().filter_map(move |k| {
        let (host, at) = match &k.victim {
            Victim::Handlers { host } => (host, k.at_ms),
            // The time of the death is not known.
            Victim::DaemonAt { host, step, .. } if step.starts_with("die:Service") => {
                (host, u64::MAX)
            }
            _ => return None,
        };
        (k.hit && hosts.contains(&Some(*host)) && has_services(at)).then_some(at)
    })
}

/// True if a trouble may be a consequence of the death of a process that ran services. Both ends of
/// a connection are reset, and a proxy may end its other connection in any way.
fn may_follow(
    trouble: &Trouble,
    plan: &SessionPlan,
    seen: &SessionRun,
    run: &Run,
    at: u64,
) -> bool {
    let has_left = seen
        .local
        .is_some_and(|local| has_left(run, local, at, false));
    let proxied = plan.proxy.is_some() && !has_left;
    !trouble.is_no_end() || proxied && matches!(trouble, Trouble::Truncated(..))
}

fn of_session(
    plan: &Plan,
    session: &SessionPlan,
    seen: &SessionRun,
    run: &Run,
    controls: &Controls,
) -> Vec<Finding> {
    let killed = killed_in(session, run, seen.local);
    let of_controls = |controls: &[Run]| -> Vec<Trouble> {
        let all = controls
            .iter()
            .filter_map(|c| Some((c, c.session(session.id)?)));
        all.flat_map(|(c, seen)| troubles(seen, c.asleep_ms))
            .collect()
    };
    let undisturbed = of_controls(&controls.undisturbed);
    let with_kills = of_controls(&controls.with_kills);
    let follows = |trouble: &Trouble| {
        handler_deaths(session, run).any(|at| may_follow(trouble, session, seen, run, at))
    };
    let counts = |trouble: &Trouble| match killed {
        // The death of a process causes no wrong byte.
        _ if matches!(trouble, Trouble::Wrong(..)) => {
            let mut all = undisturbed.iter().chain(&with_kills);
            !all.any(|t| t.excuses(trouble))
        }
        _ if follows(trouble) => false,
        // The session ends with its proxy, as it would have. A change must not make that end worse.
        Some(at) => {
            // A session that its control did not open before the kill has no counterpart for
            // comparison.
            let same = |t: &Trouble| t.excuses(trouble) || matches!(t, Trouble::NotOpened(_));
            trouble.is_no_end() && was_asked(session, seen, run, at) && !with_kills.iter().any(same)
        }
        None => !undisturbed.iter().any(|t| t.excuses(trouble)),
    };
    let own = troubles(seen, run.asleep_ms);
    let mut findings: Vec<_> = own
        .iter()
        .filter(|t| counts(t))
        .map(|trouble| Finding {
            kind: trouble.kind(),
            session: Some(session.id),
            what: format!("{} {}", describe(plan, session, seen), trouble.said()),
        })
        .collect();
    if !findings.is_empty() {
        findings.extend(false_removed(plan, session, seen, run));
    }
    findings
}

/// True if a command on a host of the session had begun to change it at this time. A command that
/// was killed may have.
fn was_asked(plan: &SessionPlan, seen: &SessionRun, run: &Run, at_ms: u64) -> bool {
    let hosts = [Some(plan.client), plan.proxy, Some(plan.server)];
    let mut all = run.operations.iter();
    all.any(|o| {
        let on_it = hosts.contains(&Some(o.operation.host)) && o.began_ms <= at_ms;
        on_it && (o.code.is_none() || takes_up(o, seen.local))
    })
}

/// Returns a finding if a session has not moved since a command reported its change as successful.
fn false_removed(
    plan: &Plan,
    session: &SessionPlan,
    seen: &SessionRun,
    run: &Run,
) -> Option<Finding> {
    let mut called = changes(run, seen.local?);
    let (operation, outcome) = called.find(|(o, _)| !moved_after(seen, o.ended_ms))?;
    Some(Finding {
        kind: Kind::FalseRemoved,
        session: Some(session.id),
        what: format!(
            "{} has not moved since it was called {outcome} at {} ms",
            describe(plan, session, seen),
            operation.ended_ms
        ),
    })
}

/// True if a command has begun anything with a session. An address translator on the path may have
/// changed the session's address.
fn takes_up(operation: &OperationRun, local: Option<SocketAddr>) -> bool {
    let Some(port) = local.map(|local| local.port()) else {
        return false;
    };
    let names = |t: &&Reported| t.local.port() == port || t.remote.port() == port;
    let reported = operation.reported.iter().filter(names);
    reported.into_iter().any(|t| t.outcome != "refused")
}

/// True if any byte arrived after this time, or no byte was in flight.
fn moved_after(seen: &SessionRun, ms: u64) -> bool {
    let Some(mark) = seen.watched.marks.iter().find(|m| m.ms >= ms) else {
        return true;
    };
    let received: u64 = mark.received.iter().sum();
    let last: u64 = seen.ends.iter().map(|e| e.received).sum();
    let sent: u64 = seen.ends.iter().map(|e| e.sent).sum();
    last > received || sent == last
}

fn describe(plan: &Plan, session: &SessionPlan, seen: &SessionRun) -> String {
    let proxy = session.proxy.and_then(|host| plan.proxy(host));
    let through = proxy.map_or_else(String::new, |p| {
        format!(" through {:?} on h{}", p.kind, p.host)
    });
    let from = seen
        .local
        .map_or_else(|| format!("h{}", session.client), |l| l.to_string());
    format!(
        "session {} ({:?}) from {from}{through} to h{}:",
        session.id, session.kind, session.server
    )
}

/// False statements of a command.
fn of_operation(plan: &Plan, operation: &OperationRun, run: &Run) -> Vec<Finding> {
    let mut findings = Vec::new();
    let asked = format!(
        "{:?} on h{}",
        operation.operation.ask, operation.operation.host
    );
    findings.extend(operation.wrong.iter().map(|wrong| Finding {
        kind: Kind::Broken,
        session: None,
        what: format!("{asked}: {wrong}"),
    }));
    let by_local = |local: SocketAddr| run.sessions.iter().find(|s| s.local == Some(local));
    let false_removed = |session: &SessionRun, what: &str| Finding {
        kind: Kind::FalseRemoved,
        session: Some(session.id),
        what: format!("{asked}: session {} {what}", session.id),
    };
    let removes = match operation.operation.ask {
        Ask::Remove { dry_run, .. } => !dry_run,
        Ask::Drain => true,
        _ => false,
    };
    if !removes {
        return findings;
    }
    for reported in operation.changed() {
        let ends = [reported.local, reported.remote].into_iter();
        let still = ends
            .filter(|end| operation.held.contains(end))
            .find_map(by_local);
        findings
            .extend(still.map(|s| false_removed(s, "is called removed and still at its proxy")));
    }
    // The command covered all sessions of the proxy: exit code 0 means that none is left.
    if operation.code == Some(0) {
        let meant = |s: &&SessionRun| {
            let plan = plan.sessions.iter().find(|p| p.id == s.id);
            // A lost SYN opens a session later than planned.
            let opened = s.watched.marks.first().map_or(0, |mark| mark.ms);
            plan.is_some_and(|p| {
                p.proxy == Some(operation.operation.host)
                    && p.start_ms.max(opened) + SEEN_MS < operation.began_ms
            })
        };
        let left = operation.held.iter().filter_map(|end| by_local(*end));
        let left: Vec<_> = left.filter(meant).map(|s| s.id.to_string()).collect();
        findings.extend((!left.is_empty()).then(|| Finding {
            kind: Kind::FalseRemoved,
            session: None,
            what: format!(
                "{asked}: it exits 0 and leaves at its proxy session {}",
                left.join(", ")
            ),
        }));
    }
    findings
}

#[cfg(test)]
mod tests;
