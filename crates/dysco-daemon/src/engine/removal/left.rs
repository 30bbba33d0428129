//! Sessions that a request concerns and for which no removal can begin: dyscod does not see them,
//! does not track them, or has no reason to trust their proxy. They are reported, so that the
//! operator does not take them for removed.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use dysco_api::{LeftReport, Remove};
use dysco_common::FlowKey;
use dysco_common::rule::wanted;
use dysco_explain::Cause;
use dysco_proto::Reason;
use dysco_proxy::elsewhere::{Elsewhere, Held, Shim};

use crate::engine::Plane;
use crate::engine::listing::shows;
use crate::engine::measure::{accepted, facts};

/// Returns the sessions held by proxies, and by processes that may be proxies, that are not
/// among the candidates of a request for every session.
pub(in crate::engine) fn left_of(here: &Plane, request: &Remove, held: &[Held]) -> Vec<LeftReport> {
    let mut left = BTreeMap::new();
    let mut seen = HashSet::new();
    for held in held {
        if held.elsewhere {
            let accepted = held.connections.iter().filter(|(_, accepted)| *accepted);
            // It is not known whether they match a filter.
            let count = accepted.count() as u64;
            if request.filter.is_empty() && count > 0 {
                *left.entry(held.process.cause()).or_default() += count;
            }
            continue;
        }
        for (key, accepted) in &held.connections {
            if seen.insert(*key)
                && let Some(why) = why_left(here, request, held, key, *accepted)
            {
                *left.entry(why).or_default() += 1;
            }
        }
    }
    reports(left)
}

/// Returns the sessions of a named process that are not tracked, or that no proxy can leave as
/// they are.
pub(in crate::engine) fn left_untracked(here: &Plane, untracked: &[FlowKey]) -> Vec<LeftReport> {
    let mut left = BTreeMap::new();
    for key in untracked {
        let why = match here.agent.find(key).map(|slot| here.agent.session(slot)) {
            None => Some(unknown(here, key)),
            Some(s) if s.life.opened_here != 0 || s.has_ended() => None,
            Some(s) => facts(&s, &accepted(key)).err().map(|why| why.cause()),
        };
        if let Some(why) = why {
            *left.entry(why).or_default() += 1;
        }
    }
    reports(left)
}

/// Returns the reason for which a session of a process is none that it could leave, if the
/// request concerns the session.
fn why_left(
    here: &Plane,
    request: &Remove,
    held: &Held,
    key: &FlowKey,
    accepted: bool,
) -> Option<Cause> {
    let Some(slot) = here.agent.find(key) else {
        // Many programs without the shim have connections to others of this host.
        let reports = matches!(held.shim, Shim::Reports | Shim::Silent);
        let relayed = reports || !here.is_on_host(&key.remote().ip());
        let meant = relayed && accepted && request.filter.is_empty();
        // Sessions that the operator does not want tracked are not looked for either.
        let tracks = wanted(&here.config.rules(), key, false);
        return (meant && tracks).then(|| unknown(here, key));
    };
    let s = here.agent.session(slot);
    let is_left = s.life.opened_here == 0 && !s.has_ended() && here.proxy.of(key).is_none();
    let meant = is_left && (request.filter.is_empty() || shows(here, slot, &request.filter));
    meant.then(|| no_proof(held))
}

/// Returns the reason for which nothing shows that a process relays a session that it holds.
fn no_proof(held: &Held) -> Cause {
    let Elsewhere { pid, name } = &held.process;
    match held.shim {
        Shim::Silent => Cause::new(format!(
            "process {pid} ({name}) runs under the shim, which has not reported to this dyscod yet"
        ))
        .hint(
            "try again: the shim connects when the process next uses a socket; if this stays so, \
             the process cannot reach the shim's socket ('dyscoctl doctor')",
        ),
        Shim::Reports => Cause::new(format!(
            "process {pid} runs under the shim, which has not reported that it relays the \
             session: it is not spliced endlessly, and may still be changed"
        ))
        .hint(format!(
            "list such sessions with 'dyscoctl drain {pid} --dry-run', or vouch for the process by \
             its listener (--listen)"
        )),
        Shim::Unloadable(why) => Cause::new(format!("{}; it {why}", unproven(&held.process)))
            .hint("vouch for it by its listener (--listen)"),
        Shim::Absent => Cause::new(unproven(&held.process)).hint(
            "run it under the shim ('dyscoctl run'), or vouch for it by its listener (--listen)",
        ),
    }
}

fn unproven(Elsewhere { pid, name }: &Elsewhere) -> String {
    format!(
        "process {pid} ({name}) accepted the session and has opened others, and nothing proves \
         that it passes on unchanged what it reads"
    )
}

fn reports(left: BTreeMap<Cause, u64>) -> Vec<LeftReport> {
    let reported = left.into_iter();
    reported
        .map(|(reason, sessions)| LeftReport { sessions, reason })
        .collect()
}

/// Returns the reason for which a session of the proxy is not known.
pub(in crate::engine) fn unknown(here: &Plane, key: &FlowKey) -> Cause {
    let client = key.remote().ip();
    if here.is_on_host(&client) {
        return Reason::EndAtMiddlebox(client).cause();
    }
    if let Some(cause) = unsteered(here, key.local().ip()) {
        return cause;
    }
    let translated = here.translated(&accepted(key));
    translated.map_or_else(
        || {
            Cause::new("dyscod does not track it: it is not in [[track]], or could not be adopted")
                .hint("see the log of dyscod")
        },
        |why| why.cause(),
    )
}

/// Returns the reason if an address is on an interface without the data plane, or on one where
/// the data plane cannot read packets.
fn unsteered(here: &Plane, local: IpAddr) -> Option<Cause> {
    let all = dysco_config::interfaces().ok()?;
    let holds = |i: &&dysco_config::Interface| i.addresses.contains(&local);
    let interface = all.iter().find(holds)?;
    if let Some(cause) = interface.unusable() {
        return Some(cause);
    }
    let ours = |i: &dysco_config::Interface| i.name == interface.name;
    let name = &interface.name;
    (!here.config.host.interfaces.iter().any(ours)).then(|| {
        Cause::new(format!(
            "its address is on the interface {name}, where dyscod is not attached"
        ))
        .hint(format!(
            "add {name} to interfaces under [host], and restart dyscod"
        ))
    })
}

#[cfg(test)]
mod tests {
    use dysco_proxy::loader::Unloadable;

    use super::*;

    #[test]
    fn the_shim_is_advised_only_where_it_can_be_loaded() {
        let of = |shim| {
            let process = Elsewhere {
                pid: 7,
                name: "relay".to_owned(),
            };
            no_proof(&Held {
                process,
                shim,
                elsewhere: false,
                connections: Vec::new(),
            })
        };
        let hint = |shim| of(shim).hint.unwrap_or_default();
        assert!(hint(Shim::Absent).contains("dyscoctl run"));
        for (why, word) in [
            (Unloadable::Static, "statically"),
            (Unloadable::Musl, "musl"),
        ] {
            let cause = of(Shim::Unloadable(why));
            assert!(cause.why.contains(word), "{}", cause.why);
            let hint = hint(Shim::Unloadable(why));
            assert!(hint.contains("--listen") && !hint.contains("dyscoctl run"));
        }
    }
}
