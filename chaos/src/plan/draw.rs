//! Derives a plan from a seed, and from nothing else.

mod acts;
mod traffic;

use super::{BoxKind, BoxPlan, HostPlan, Link, Part, Place, Plan};
use crate::rng::Rng;

/// Draws the plan of a seed.
pub(crate) fn draw(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x5eed_c4a0);
    let mut plan = Plan {
        seed,
        live_ms: rng.range(4_000, 8_000),
        hosts: Vec::new(),
        boxes: Vec::new(),
        proxies: Vec::new(),
        sessions: Vec::new(),
        operations: Vec::new(),
        kills: Vec::new(),
    };
    hosts(&mut rng, &mut plan);
    traffic::proxies(&mut rng, &mut plan);
    traffic::sessions(&mut rng, &mut plan);
    boxes(&mut rng, &mut plan);
    acts::operations(&mut rng, &mut plan);
    acts::kills(&mut rng, &mut plan);
    acts::services(&mut rng, &mut plan);
    plan
}

/// Returns the numbers of the hosts with a role.
fn of(plan: &Plan, part: Part) -> Vec<u8> {
    let hosts = plan.hosts.iter().filter(|h| h.part == part);
    hosts.map(|h| h.number).collect()
}

/// Returns the numbers of the hosts with a role and a daemon.
fn with_daemon(plan: &Plan, part: Part) -> Vec<u8> {
    let hosts = plan.hosts.iter().filter(|h| h.part == part && h.daemon);
    hosts.map(|h| h.number).collect()
}

fn hosts(rng: &mut Rng, plan: &mut Plan) {
    // Two of three plans have a proxy, and half of those have firewalls for chains. Every plan has
    // one or the other.
    let proxies = rng.one([0, 1, 1, 1, 2, 2]);
    let firewalls = match proxies {
        0 => rng.range(1, 4),
        _ => rng.one([0, 0, 1, 2]),
    };
    let parts = [
        (Part::Client, rng.one([1, 1, 2])),
        (Part::Proxy, proxies),
        (Part::Server, rng.one([1, 1, 2])),
        (Part::Firewall, firewalls),
    ];
    let all = parts.iter().flat_map(|(part, n)| (0..*n).map(|_| *part));
    for (at, part) in all.take(8).enumerate() {
        let mut host = host(rng, at as u8 + 1, part);
        // The host that opens a session determines its chain.
        host.daemon |= proxies == 0 && part == Part::Client;
        plan.hosts.push(host);
    }
}

fn host(rng: &mut Rng, number: u8, part: Part) -> HostPlan {
    let daemon = match part {
        Part::Client | Part::Server => rng.percent(92),
        Part::Proxy | Part::Firewall => true,
    };
    let link = match (rng.range(0, 100), part) {
        (0..76, _) | (_, Part::Firewall) => Link::Veth,
        (76..84, _) => Link::Bridge,
        (84..92, _) => Link::TwoUplinks,
        (92..96, Part::Client) => Link::Nat,
        (92..96, _) => Link::Veth,
        _ => Link::Tun,
    };
    let mut sysctls = Vec::new();
    let mut set = |name: &str, value: &str| sysctls.push((name.to_owned(), value.to_owned()));
    if rng.percent(8) {
        set("net.ipv4.tcp_timestamps", "0");
    }
    if rng.percent(5) {
        set("net.ipv4.tcp_sack", "0");
    }
    if rng.percent(5) {
        set("net.ipv4.tcp_window_scaling", "0");
    }
    if rng.percent(10) {
        set(
            "net.ipv4.tcp_rmem",
            rng.one(["4096 65536 65536", "4096 131072 67108864"]),
        );
    }
    if rng.percent(5) {
        set("net.ipv4.tcp_shrink_window", "1");
    }
    if rng.percent(5) {
        set("net.ipv4.tcp_ecn", "1");
    }
    // These MTUs are rare: if two hosts differ, most changes are refused, and nothing else is
    // tested.
    let mtu = match (rng.percent(4), rng.percent(4)) {
        (true, _) => 1400,
        (_, true) => 9000,
        _ => 1500,
    };
    HostPlan {
        number,
        part,
        daemon,
        link,
        sysctls,
        mtu,
    }
}

/// Draws the boxes. Boxes that end sessions stand where no session passes before a change.
fn boxes(rng: &mut Rng, plan: &mut Plan) {
    let count = rng.one([0, 0, 1, 1, 2, 3]);
    let translated = plan.hosts.iter().any(|h| h.link == Link::Nat);
    let live = plan.live_ms;
    for number in 1..=count {
        let Some((place, used)) = place(rng, plan) else {
            return;
        };
        // Two boxes on one path may be more than a session survives.
        if plan.boxes.iter().any(|b| b.place.is_same(place)) {
            continue;
        }
        let kind = match (used, translated) {
            (false, false) if rng.percent(60) => closed(rng),
            (_, false) => open(rng),
            (_, true) => BoxKind::Lose {
                permille: rng.one([5, 20]),
            },
        };
        let from_ms = match kind {
            BoxKind::Narrow { .. } if rng.percent(60) => rng.range(live / 3, live),
            BoxKind::Lose { .. } if rng.percent(30) => rng.range(0, live),
            _ => 0,
        };
        let place = match kind {
            BoxKind::DropInvalid | BoxKind::Synproxy if rng.percent(40) => on_host(rng, plan),
            _ => place,
        };
        plan.boxes.push(BoxPlan {
            number,
            from_ms,
            place,
            kind,
        });
    }
}

fn on_host(rng: &mut Rng, plan: &Plan) -> Place {
    let hosts: Vec<_> = plan.hosts.iter().map(|h| h.number).collect();
    Place::Host {
        host: rng.pick(&hosts).unwrap_or(1),
    }
}

/// Draws two hosts. Returns true with them if sessions pass between them before any change.
fn place(rng: &mut Rng, plan: &Plan) -> Option<(Place, bool)> {
    let numbers: Vec<_> = plan.hosts.iter().map(|h| h.number).collect();
    let from = rng.pick(&numbers)?;
    let others: Vec<_> = numbers.into_iter().filter(|n| *n != from).collect();
    let to = rng.pick(&others)?;
    let pair = |a: u8, b: u8| (a, b) == (from, to) || (b, a) == (from, to);
    let used = plan.sessions.iter().any(|s| match s.proxy {
        None => pair(s.client, s.server),
        Some(proxy) => pair(s.client, proxy) || pair(proxy, s.server),
    });
    Some((Place::Path { from, to }, used))
}

/// Draws a box through which no session can open.
fn closed(rng: &mut Rng) -> BoxKind {
    rng.one([
        BoxKind::RejectByReset,
        BoxKind::RejectByReset,
        BoxKind::RejectByIcmp,
        BoxKind::DropSyns,
    ])
}

/// Draws a box that sessions survive.
fn open(rng: &mut Rng) -> BoxKind {
    let (up, down) = (rng.next() as u32, rng.next() as u32);
    let clocks = (rng.range(1, 1 << 30) as u32, rng.range(1, 1 << 30) as u32);
    rng.one([
        BoxKind::Lose { permille: 10 },
        BoxKind::Lose { permille: 50 },
        BoxKind::Narrow { mtu: 1300 },
        BoxKind::DropInvalid,
        BoxKind::Stateful,
        BoxKind::Synproxy,
        BoxKind::Renumber {
            up,
            down,
            sack: true,
        },
        BoxKind::Renumber {
            up,
            down: 0,
            sack: true,
        },
        BoxKind::ShiftClocks {
            up: clocks.0,
            down: clocks.1,
        },
        BoxKind::StripSack,
        BoxKind::StripTimestamps,
        BoxKind::StripScale,
        BoxKind::ClampMss { mss: 1_000 },
        BoxKind::Reorder { permille: 30 },
        BoxKind::Duplicate { permille: 30 },
        BoxKind::Delay { ms: 20 },
    ])
}

#[cfg(test)]
mod tests;
