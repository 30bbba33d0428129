//! Commands and kills of a plan.

use super::with_daemon;
use crate::plan::{Ask, Kill, Mode, Operation, Part, Plan, ProxyPlan, Victim};
use crate::rng::Rng;

/// Steps of a change at which a daemon may die: commands, and the message that ends a host's part.
const STEPS: [&str; 24] = [
    "Measure", "Lock", "Reserve", "Prepare", "Join", "Try", "Cut", "SetCutIn", "Mute", "TakeBack",
    "Complete", "Close", "Prove", "Return", "Hold", "Enlist", "Extend", "Open", "Splice",
    "Abandon", "Forget", "Persist", "Erase", "Dismiss",
];

/// Messages between daemons that may be lost.
const MESSAGES: [&str; 14] = [
    "Leave",
    "Introduce",
    "RequestLock",
    "AckLock",
    "SetUp",
    "SetUpAck",
    "Switched",
    "Drained",
    "Done",
    "DoneAck",
    "Cancel",
    "Enlisted",
    "Extended",
    "Settled",
];

/// Steps of a session's services before which a daemon may die.
const SERVICE_STEPS: [&str; 15] = [
    "ServiceHeld",
    "ServiceOffer",
    "ServiceAccepted",
    "ServiceEnter",
    "ServiceIn",
    "ServiceLeft",
    "ServiceLeaveBack",
    "ServiceLeaveOut",
    "ServiceForget",
    "ServiceAdd",
    "ServiceAdded",
    "ServicePart",
    "ServiceParted",
    "ServiceAlterHere",
    "ServiceAlterThere",
];

/// Messages about services at both ends that may be lost.
const SERVICE_MESSAGES: [&str; 15] = [
    "ServiceInvite",
    "ServiceInvited",
    "ServiceProceed",
    "ServiceReady",
    "ServiceCutIn",
    "ServiceCutOut",
    "ServiceDoneIn",
    "ServiceDoneOut",
    "ServiceLeave",
    "ServiceLeaving",
    "ServiceOut",
    "ServiceAbort",
    "ServiceAlter",
    "ServiceAltered",
    "ServiceRefused",
];

/// Draws the requests of operators.
pub(super) fn operations(rng: &mut Rng, plan: &mut Plan) {
    let proxies = plan.proxies.clone();
    let clients = with_daemon(plan, Part::Client);
    let firewalls = with_daemon(plan, Part::Firewall);
    let live = plan.live_ms;
    for _ in 0..rng.range(1, 6) {
        let chain = !firewalls.is_empty() && !clients.is_empty();
        let asked = match (rng.pick(&proxies), chain && rng.percent(60)) {
            (Some(proxy), false) => leave(rng, &proxy),
            _ => update_chain(rng, &clients, &firewalls),
        };
        let Some((host, ask)) = asked else {
            continue;
        };
        let cancel = rng.percent(10);
        plan.operations.push(Operation {
            at_ms: rng.range(500, live - 1_500),
            host,
            ask,
            cancel_ms: cancel.then(|| rng.range(1, 60)),
        });
    }
    plan.operations.sort_by_key(|o| o.at_ms);
}

fn leave(rng: &mut Rng, proxy: &ProxyPlan) -> Option<(u8, Ask)> {
    // By naming the listener the operator vouches for it, which must be justified.
    let listen = proxy.is_transparent() && rng.percent(if proxy.shim { 20 } else { 80 });
    let ask = match rng.range(0, 100) {
        0..8 => Ask::Look,
        8..20 if proxy.shim || proxy.declared => Ask::Drain,
        kind => Ask::Remove {
            mode: rng.one([
                Mode::Auto,
                Mode::Auto,
                Mode::Bypass,
                Mode::Bypass,
                Mode::Local,
                Mode::Return,
            ]),
            listen,
            dry_run: kind >= 92,
        },
    };
    Some((proxy.host, ask))
}

fn update_chain(rng: &mut Rng, clients: &[u8], firewalls: &[u8]) -> Option<(u8, Ask)> {
    let (host, one, other) = (
        rng.pick(clients)?,
        rng.pick(firewalls)?,
        rng.pick(firewalls)?,
    );
    let ask = match rng.range(0, 100) {
        0..30 => Ask::Insert { host: one },
        30..60 if one != other => Ask::Replace {
            old: one,
            new: other,
            state: rng.percent(60),
        },
        60..70 => Ask::Reconfigure { chain: Vec::new() },
        70..75 => Ask::Look,
        _ if one != other && rng.percent(50) => Ask::Reconfigure {
            chain: vec![one, other],
        },
        _ => Ask::Reconfigure { chain: vec![one] },
    };
    Some((host, ask))
}

/// Services of a request. Those at both ends need a host with a daemon at the other end.
const SERVICES: [&[&str]; 10] = [
    &["+null"],
    &["+count"],
    &["+null", "+count"],
    &["+latency=delay=20ms"],
    &["+shape=rate=40M"],
    &["+split=congestion=reno"],
    &["+crypt"],
    &["+compress"],
    &["+compress", "+crypt"],
    &["+shape=rate=40M,plane=packet"],
];

/// Draws the services of a request.
fn drawn(rng: &mut Rng) -> Vec<String> {
    rng.one(SERVICES).iter().map(|s| (*s).to_owned()).collect()
}

/// Draws the requests that put services into sessions and take them out, of half of the plans. A
/// session with services keeps its proxy and its chain, so that the other half has none.
pub(super) fn services(rng: &mut Rng, plan: &mut Plan) {
    let mut hosts = with_daemon(plan, Part::Client);
    hosts.extend(with_daemon(plan, Part::Server));
    hosts.extend(with_daemon(plan, Part::Proxy));
    let live = plan.live_ms;
    for _ in 0..rng.one([0, 0, 0, 1, 2, 3]) {
        let Some(host) = rng.pick(&hosts) else {
            return;
        };
        let services = drawn(rng);
        let put_ms = rng.range(200, live - 1_500);
        let take_ms = rng.range(put_ms + 50, live - 500);
        let mut asked = Vec::new();
        if rng.percent(40) {
            // More services enter the same sessions. One of all services leaves before the rest.
            let more = drawn(rng);
            let word = if rng.percent(50) {
                &more[0]
            } else {
                &services[0]
            };
            let one = word.split('=').next().map(String::from);
            let more_ms = rng.range(put_ms + 20, live - 1_000);
            let part_ms = rng.range(more_ms, live - 500);
            let leaves = Ask::Take {
                services: one.into_iter().collect(),
            };
            asked.push((more_ms, Ask::Put { services: more }));
            asked.push((part_ms, leaves));
        }
        asked.push((put_ms, Ask::Put { services }));
        let kill_ms = rng.range(put_ms, live);
        if rng.percent(15) {
            plan.kills.push(Kill {
                at_ms: kill_ms,
                victim: Victim::Handlers { host },
            });
        }
        if rng.percent(25) {
            plan.kills.extend(service_fault(rng, &hosts));
        }
        // The other services leave with their sessions.
        let all = Ask::Take { services: vec![] };
        asked.extend(rng.percent(70).then_some((take_ms, all)));
        for (at_ms, ask) in asked {
            let cancel = rng.percent(10);
            plan.operations.push(Operation {
                at_ms,
                host,
                ask,
                cancel_ms: cancel.then(|| rng.range(1, 60)),
            });
        }
    }
    plan.operations.sort_by_key(|o| o.at_ms);
    plan.kills.sort_by_key(|k| k.at_ms);
}

/// Draws a fault of one of these hosts' daemons while services come or leave.
fn service_fault(rng: &mut Rng, hosts: &[u8]) -> Option<Kill> {
    let step = match rng.range(0, 10) {
        0..5 => format!("die:{}", rng.one(SERVICE_STEPS)),
        5..7 => format!("die:{}", rng.one(SERVICE_MESSAGES)),
        _ => format!("drop:{}", rng.one(SERVICE_MESSAGES)),
    };
    let victim = Victim::DaemonAt {
        host: rng.pick(hosts)?,
        step,
        back_ms: rng.one([0, 300, 1_500]),
    };
    Some(Kill { at_ms: 100, victim })
}

/// Draws the kills.
pub(super) fn kills(rng: &mut Rng, plan: &mut Plan) {
    let daemons: Vec<_> = (plan.hosts.iter().filter(|h| h.daemon))
        .map(|h| h.number)
        .collect();
    let hosts: Vec<_> = plan.hosts.iter().map(|h| h.number).collect();
    let proxies: Vec<_> = plan.proxies.iter().map(|p| p.host).collect();
    let live = plan.live_ms;
    for _ in 0..rng.one([0, 1, 1, 2, 3]) {
        let back_ms = rng.one([0, 300, 1_500]);
        let victim = match rng.range(0, 100) {
            0..40 => rng
                .pick(&daemons)
                .map(|host| Victim::Daemon { host, back_ms }),
            40..75 => rng.pick(&daemons).map(|host| Victim::DaemonAt {
                host,
                step: match rng.range(0, 10) {
                    0..6 => format!("die:{}", rng.one(STEPS)),
                    6..8 => format!("die:{}", rng.one(MESSAGES)),
                    _ => format!("drop:{}", rng.one(MESSAGES)),
                },
                back_ms,
            }),
            75..83 => rng.pick(&proxies).map(|host| Victim::Proxy { host }),
            83..88 => rng.pick(&proxies).map(|host| Victim::Host { host }),
            _ => rng.pick(&hosts).map(|host| Victim::Link {
                host,
                back_ms: rng.range(50, 800),
            }),
        };
        let at_ms = match (&victim, plan.operations.first()) {
            // The fault must be requested before it can occur.
            (Some(Victim::DaemonAt { .. }), _) => 100,
            // The kill may fall into the middle of a change.
            (_, Some(first)) if rng.percent(60) => first.at_ms + rng.range(0, 30),
            _ => rng.range(500, live - 500),
        };
        plan.kills
            .extend(victim.map(|victim| Kill { at_ms, victim }));
    }
    plan.kills.sort_by_key(|k| k.at_ms);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use dysco_proto::pairs::Content;
    use dysco_proto::{Command, Message};

    use super::*;

    #[test]
    fn each_step_is_one_of_a_daemon() {
        let commands = Command::names();
        for step in STEPS {
            let known = commands.contains(&step) || Message::names().contains(&step);
            assert!(known, "{step}");
        }
        for message in MESSAGES {
            assert!(Message::names().contains(&message), "{message}");
        }
        assert_eq!(SERVICE_MESSAGES, Content::NAMES);
    }

    /// Names of the steps that a folder of the daemon's sources reaches.
    fn reached(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            if entry.path().is_dir() {
                reached(&entry.path(), names);
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("a source");
            let calls = text.split("faults.reach(\"").skip(1);
            names.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }

    #[test]
    fn steps_of_services_are_those_that_a_daemon_reaches() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = BTreeSet::new();
        reached(&own.join("../crates/dysco-daemon/src/engine"), &mut names);
        let known: BTreeSet<_> = SERVICE_STEPS.into_iter().map(String::from).collect();
        assert_eq!(names, known);
    }
}
