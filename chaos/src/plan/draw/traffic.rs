//! Proxies and sessions of a plan.

use super::of;
use crate::plan::{Part, Plan, ProxyKind, ProxyPlan, SessionKind, SessionPlan, Side};
use crate::rng::Rng;

/// Draws the proxies.
pub(super) fn proxies(rng: &mut Rng, plan: &mut Plan) {
    let servers = of(plan, Part::Server);
    for host in of(plan, Part::Proxy) {
        let Some(server) = rng.pick(&servers) else {
            continue;
        };
        let kind = match rng.range(0, 100) {
            0..35 => ProxyKind::HaproxySplice,
            35..50 => ProxyKind::HaproxyCopy,
            50..60 => ProxyKind::HaproxyMaster,
            60..70 => ProxyKind::NginxStream,
            70..77 => ProxyKind::Socat,
            77..85 => ProxyKind::Go,
            85..93 => ProxyKind::Buffer {
                bytes: rng.one([4_096, 16_384, 262_144]),
            },
            _ => ProxyKind::Rewrite {
                from: rng.one([16, 200_000, 2_000_000]),
            },
        };
        let spliced = matches!(kind, ProxyKind::HaproxySplice | ProxyKind::HaproxyMaster);
        let shim = kind != ProxyKind::Go && rng.percent(if spliced { 95 } else { 60 });
        let transparent = !matches!(kind, ProxyKind::Rewrite { .. });
        plan.proxies.push(ProxyPlan {
            host,
            server,
            kind,
            shim,
            declared: transparent && rng.percent(85),
            v6: rng.percent(20) && kind != ProxyKind::Socat,
        });
    }
}

/// Draws the sessions.
pub(super) fn sessions(rng: &mut Rng, plan: &mut Plan) {
    let (clients, servers) = (of(plan, Part::Client), of(plan, Part::Server));
    let proxies = plan.proxies.clone();
    let has_chains = !of(plan, Part::Firewall).is_empty();
    let live = plan.live_ms;
    for id in 1..=rng.range(4, 13) {
        let direct = proxies.is_empty() || (has_chains && rng.percent(50));
        let proxy = if direct { None } else { rng.pick(&proxies) };
        let (Some(client), Some(server)) = (rng.pick(&clients), rng.pick(&servers)) else {
            continue;
        };
        let session = SessionPlan {
            id,
            client,
            proxy: proxy.as_ref().map(|p| p.host),
            server: proxy.as_ref().map_or(server, |p| p.server),
            v6: proxy.as_ref().map_or_else(|| rng.percent(8), |p| p.v6),
            start_ms: if rng.percent(70) {
                0
            } else {
                rng.range(0, live / 2)
            },
            kind: session(rng),
        };
        plan.sessions.push(session);
    }
}

fn session(rng: &mut Rng) -> SessionKind {
    let side = rng.one([Side::Client, Side::Server]);
    match rng.range(0, 100) {
        0..35 => {
            let rates = [0, 200_000, 1_000_000, 4_000_000, 20_000_000];
            let (up, down) = (rng.one(rates), rng.one(rates));
            SessionKind::Bulk {
                up,
                down: if up + down == 0 { 1_000_000 } else { down },
            }
        }
        35..60 => SessionKind::Requests {
            ask: rng.one([1, 100, 20_000]),
            answer: rng.one([1, 1_000, 100_000]),
            pause_ms: rng.one([0, 5, 50]),
        },
        60..68 => SessionKind::Requests {
            ask: 10,
            answer: 10,
            pause_ms: rng.range(1_000, 4_000),
        },
        68..84 => SessionKind::SlowReader {
            side,
            rate: rng.one([50_000, 400_000, 2_000_000]),
        },
        84..92 => SessionKind::HalfClosed {
            side,
            after_ms: rng.range(200, 4_000),
            rate: rng.one([100_000, 2_000_000]),
        },
        _ => SessionKind::TinyWindow {
            side,
            buffer: rng.one([2_304, 4_608, 16_384]),
            rate: 400_000,
        },
    }
}
