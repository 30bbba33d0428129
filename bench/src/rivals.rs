//! Many sessions through each of what one can put between two hosts: nothing,
//! forwarding, a proxy of which there are several, a sockmap, and a proxy that
//! has left. What they carry, how soon requests are answered, and what that
//! takes of the processors.

use std::time::Duration;

use anyhow::{Result, bail};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role, relays};

use crate::Effort;
use crate::apart::Between;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::figure::{Figure, median};
use crate::local::through_the_proxys_host;
use crate::pair::buffer_of;
use crate::sockmap::Relay;
use crate::stage::{Stage, proxied, server};
use crate::turns::{BASE, RUN_IN, Turns, all_turns};

/// The kinds of session, in this order.
const NAMES: [&str; 8] = [
    "forwarding",
    "control",
    "direct",
    "relayed",
    "spliced",
    "copied",
    "nginx",
    "sockmap",
];
const KINDS: usize = NAMES.len();
/// How often HAProxy is asked to leave what it has not left yet.
const TRIES: usize = 20;
const DIRECT: usize = 2;
const RELAYED: usize = 3;
const SPLICED: usize = 4;
const COPIED: usize = 5;
const NGINX: usize = 6;
const SOCKMAP: usize = 7;
const _: () = assert!(BASE == 0);

/// The port of a kind's proxy, and of its server, but for the relayed.
fn ports(kind: usize) -> (u16, u16) {
    (8100 + kind as u16, 9100 + kind as u16)
}

/// What each kind's turns brought, of requests.
#[derive(Default)]
struct Asked {
    rate: [Vec<f64>; KINDS],
    p50: [Vec<f64>; KINDS],
    p99: [Vec<f64>; KINDS],
    cpu: [Vec<f64>; KINDS],
}

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let counts: &[usize] = if effort.quick { &[20] } else { &[100, 1_000] };
    for &count in counts {
        let (mut bulk, mut asked) = (Turns::new("forwarding"), Asked::default());
        let rounds = effort.pick(2, 1);
        for round in 1..=rounds {
            effort.say(&format!("  {count} sessions, round {round} of {rounds}"));
            let mut labs = Labs::build()?;
            labs.measure(effort, count, &mut bulk, &mut asked)?;
            labs.end()?;
        }
        for (kind, name) in NAMES.iter().enumerate().skip(1) {
            let name = |what: &str| format!("rival_{name}_{what}_vs_forwarding_{count}");
            figures.push(bulk.figure(name("goodput"), kind, 1e9, "Gbit/s"));
            figures.push(bulk.cpu_figure(name("cpu"), kind));
            figures.extend(asked.figures(kind, name));
        }
    }
    Ok(figures)
}

impl Asked {
    fn figures(&self, kind: usize, name: impl Fn(&str) -> String) -> [Figure; 3] {
        let figure = |what: &str, all: &[Vec<f64>; KINDS], unit: &str| {
            let pairs = all[kind].iter().zip(&all[BASE]);
            Figure::median(
                name(what),
                "",
                pairs.map(|(this, base)| this / base).collect(),
            )
            .aside(&format!("forwarding, {unit}"), median(&all[BASE]))
            .aside(&format!("this, {unit}"), median(&all[kind]))
        };
        let p50 = figure("latency_p50", &self.p50, "µs");
        [
            p50.aside("this p99, µs", median(&self.p99[kind]))
                .aside("forwarding p99, µs", median(&self.p99[BASE])),
            figure("requests", &self.rate, "requests/s"),
            figure("cpu_of_a_request", &self.cpu, "µs"),
        ]
    }
}

/// The labs. The fields end in this order.
struct Labs {
    stage: Stage,
    sockmap: Relay,
    proxies: [Process; 3],
    plain: Lab,
    direct: Lab,
}

impl Labs {
    fn build() -> Result<Labs> {
        let direct = Lab::builder("direct").build()?;
        let plain = Lab::builder("rivals").build()?;
        through_the_proxys_host(&plain)?;
        let at = |kind: usize| Role::Proxy.at(Family::V4, ports(kind).0);
        let to = |kind: usize| Role::Server.at(Family::V4, ports(kind).1);
        let haproxy = |name, kind: usize, splice| {
            let config = Config::tcp(at(kind), to(kind)).named(name).splice(splice);
            config.start(&plain.proxy, |haproxy| haproxy)
        };
        Ok(Labs {
            proxies: [
                haproxy("splicing", SPLICED, true)?,
                haproxy("copying", COPIED, false)?,
                relays::nginx_stream(&plain.proxy, at(NGINX), to(NGINX))?,
            ],
            sockmap: Relay::start(&plain.proxy, at(SOCKMAP), to(SOCKMAP))?,
            stage: Stage::alone("relayed", "")?,
            plain,
            direct,
        })
    }

    fn end(self) -> Result<()> {
        self.direct.finish(())?;
        // Its worker ends before it does only if it is asked to end.
        let [splicing, copying, mut nginx] = self.proxies;
        nginx.stop()?;
        self.plain
            .finish((self.sockmap, splicing, copying, nginx))?;
        self.stage.end()
    }

    fn measure(
        &mut self,
        effort: &Effort,
        count: usize,
        bulk: &mut Turns<KINDS>,
        asked: &mut Asked,
    ) -> Result<()> {
        let buffer = buffer_of(count * KINDS);
        let open = |between: Between<'_>| Bulk::open(between, count, buffer);
        let warm = |streams: &Bulk| streams.measure(RUN_IN, RUN_IN).map(drop);
        let streams = self.sessions(count, open, warm)?;
        bulk.bulk(&streams, effort.turn(), || Ok(Duration::ZERO))?;
        drop(streams);
        let open = |between: Between<'_>| Asks::open(between, count);
        let warm = |asks: &Asks| asks.measure(RUN_IN).map(drop);
        let asks = self.sessions(count, open, warm)?;
        for kind in all_turns::<KINDS>() {
            let answers = asks[kind].measure(effort.turn())?;
            asked.rate[kind].push(answers.rate);
            asked.p50[kind].push(answers.p50_us);
            asked.p99[kind].push(answers.p99_us);
            asked.cpu[kind].push(answers.cpu_us);
        }
        Ok(())
    }

    /// Takes HAProxy out of `count` sessions, of which each must have carried
    /// enough: among many a turn is not long enough for all.
    fn remove(&self, count: usize, warm: impl Fn() -> Result<()>) -> Result<()> {
        let mut removed = 0;
        for _ in 0..TRIES {
            warm()?;
            let done = self.stage.remove()?;
            removed += done["summary"]["removed"].as_u64().unwrap_or(0);
            if removed == count as u64 {
                return Ok(());
            }
        }
        bail!("HAProxy left {removed} of {count} sessions")
    }

    /// Sessions of each kind. Those that lose their proxy are opened first.
    fn sessions<S>(
        &mut self,
        count: usize,
        open: impl Fn(Between<'_>) -> Result<S>,
        warm: impl Fn(&S) -> Result<()>,
    ) -> Result<[S; KINDS]> {
        let relayed = open(Between {
            client: &self.stage.lab.client,
            to: proxied(),
            server: &self.stage.lab.server,
            at: server(),
        })?;
        self.remove(count, || warm(&relayed))?;
        let (plain, sockmap) = (&self.plain, &mut self.sockmap);
        let join = |sockmap: &mut Relay| (0..count).try_for_each(|_| sockmap.join(&plain.proxy));
        let handed_over = std::thread::scope(|scope| {
            let joining = scope.spawn(|| join(sockmap));
            let opened = open(between(plain, SOCKMAP));
            joining
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p))?;
            opened
        })?;
        let all = [
            open(between(plain, BASE))?,
            open(between(plain, 1))?,
            open(between(&self.direct, DIRECT))?,
            relayed,
            open(between(plain, SPLICED))?,
            open(between(plain, COPIED))?,
            open(between(plain, NGINX))?,
            handed_over,
        ];
        // A sockmap has lost what came before it had both sockets.
        all.iter().try_for_each(warm)?;
        Ok(all)
    }
}

/// From where to where a kind's sessions are opened, but for the relayed.
fn between(lab: &Lab, kind: usize) -> Between<'_> {
    let (proxy, server) = ports(kind);
    let at = Role::Server.at(Family::V4, server);
    Between {
        client: &lab.client,
        to: if kind < RELAYED {
            at
        } else {
            Role::Proxy.at(Family::V4, proxy)
        },
        server: &lab.server,
        at,
    }
}
