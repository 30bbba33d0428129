//! Goodput of a session whose proxy has left, if only the proxy's host runs `dyscod` and relays. It
//! is compared with plain forwarding by the same host, HAProxy with and without splicing, and a
//! sockmap. The rivals are in a lab without Dysco. A second forwarded session is the control.

use std::time::Duration;

use anyhow::Result;
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Host, Lab, Process, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, Goal};
use crate::pair::{Listener, Pair};
use crate::ping::Ping;
use crate::sockmap::Relay;
use crate::stage::{Stage, proxied, server};
use crate::turns::{RUN_IN, Turns};

/// The kinds of sessions.
const FORWARDED: usize = 0;
const CONTROL: usize = 1;
const RELAYED: usize = 2;
const SPLICED: usize = 3;
const COPIED: usize = 4;
const SOCKMAP: usize = 5;
const KINDS: usize = 6;
const _: () = assert!(FORWARDED == crate::turns::BASE);

type Kinds = Turns<KINDS>;

const NAMES: [(&str, usize); 5] = [
    ("local", RELAYED),
    ("spliced", SPLICED),
    ("copied", COPIED),
    ("sockmap", SOCKMAP),
    ("control", CONTROL),
];

/// Ports on which the rivals listen.
const SPLICING: u16 = 8081;
const COPYING: u16 = 8082;
const HANDING_OVER: u16 = 8083;

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let [mut up, mut down, mut ping] = [(); 3].map(|()| Kinds::new("forwarding"));
    let rounds = effort.pick(5, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        let mut labs = Labs::build()?;
        labs.bulk(effort, Way::Down, &mut down)?;
        labs.bulk(effort, Way::Up, &mut up)?;
        labs.requests(effort, &mut ping)?;
        labs.end()?;
    }
    let mut figures = Vec::new();
    for (name, kind) in NAMES {
        let meant = |figure: Figure, goal| {
            if kind == RELAYED {
                figure.goal(goal)
            } else {
                figure
            }
        };
        for (turns, suffix) in [(&down, ""), (&up, "_upload")] {
            let goodput = format!("{name}_goodput_vs_forwarding{suffix}");
            let goodput = turns.figure(goodput, kind, 1e9, "Gbit/s");
            figures.push(meant(goodput, Goal::AtLeast(0.95)));
            let cpu = format!("{name}_cpu_vs_forwarding{suffix}");
            let cpu = turns.cost(cpu, kind, "s/GB");
            figures.push(meant(cpu, Goal::AtMost(1.1)));
        }
        let latency = format!("{name}_latency_p50_vs_forwarding");
        let latency = ping.figure(latency, kind, 1.0, "µs");
        figures.push(meant(latency, Goal::AtMost(1.1)));
    }
    Ok(figures)
}

/// The two labs. The fields are dropped in this order.
struct Labs {
    stage: Stage,
    sockmap: Relay,
    /// Number of sessions that the sockmap's relay has received so far.
    handed_over: usize,
    proxies: [Process; 2],
    behind: Listener,
    plainly: Listener,
    plain: Lab,
}

impl Labs {
    fn build() -> Result<Labs> {
        let plain = Lab::builder("forwarding").build()?;
        through_the_proxys_host(&plain)?;
        let at = |port| Role::Proxy.at(Family::V4, port);
        let haproxy = |name, port, splice| {
            let config = Config::tcp(at(port), server()).named(name).splice(splice);
            config.start(&plain.proxy, |haproxy| haproxy)
        };
        let stage = Stage::alone("local", "")?;
        Ok(Labs {
            proxies: [
                haproxy("splicing", SPLICING, true)?,
                haproxy("copying", COPYING, false)?,
            ],
            sockmap: Relay::start(&plain.proxy, at(HANDING_OVER), server(), 1)?,
            handed_over: 0,
            behind: Listener::start(&stage.lab, server())?,
            plainly: Listener::start(&plain, server())?,
            stage,
            plain,
        })
    }

    fn end(self) -> Result<()> {
        self.plain
            .finish((self.plainly, self.sockmap, self.proxies))?;
        drop(self.behind);
        self.stage.end()
    }

    /// Opens one session of each kind.
    fn sessions<S>(&mut self, start: impl Fn(Pair) -> Result<S>) -> Result<[S; KINDS]> {
        let relayed = start(self.behind.open(&self.stage.lab, proxied())?)?;
        self.stage.remove_all(1)?;
        let (plain, plainly) = (&self.plain, &self.plainly);
        let open = |port| plainly.open(plain, Role::Proxy.at(Family::V4, port));
        let handed_over = open(HANDING_OVER)?;
        self.handed_over += 1;
        self.sockmap.wait(self.handed_over)?;
        Ok([
            start(plainly.open(plain, server())?)?,
            start(plainly.open(plain, server())?)?,
            relayed,
            start(open(SPLICING)?)?,
            start(open(COPYING)?)?,
            start(handed_over)?,
        ])
    }

    fn bulk(&mut self, effort: &Effort, way: Way, turns: &mut Kinds) -> Result<()> {
        let sessions = self.sessions(|pair| {
            let bulk = Bulk::new(pair, way)?;
            bulk.measure(RUN_IN, RUN_IN)?;
            Ok(bulk)
        })?;
        turns.bulk(&sessions, effort.pick(20, 6), effort.turn(), || {
            Ok(Duration::ZERO)
        })
    }

    fn requests(&mut self, effort: &Effort, turns: &mut Kinds) -> Result<()> {
        let sessions = self.sessions(|pair| {
            let ping = Ping::new(pair)?;
            ping.measure(RUN_IN)?;
            Ok(ping)
        })?;
        turns.requests(&sessions, effort.pick(20, 6), effort.turn())
    }
}

/// Routes the packets between client and server through the proxy's host, which forwards them: the
/// path of a relayed packet.
pub(crate) fn through_the_proxys_host(lab: &Lab) -> Result<()> {
    let ip = |host: &Host, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        host.output("ip", &words)
    };
    let proxy = Role::Proxy.address(Family::V4);
    ip(
        &lab.router,
        &format!("route add default via {proxy} dev proxy table 100"),
    )?;
    for (from, to) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
        let (from, to) = (from.name(), to.address(Family::V4));
        ip(
            &lab.router,
            &format!("rule add iif {from} to {to} lookup 100"),
        )?;
    }
    lab.proxy.sysctl("net.ipv4.ip_forward", "1")?;
    for interface in ["all", "eth0"] {
        let key = format!("net.ipv4.conf.{interface}.send_redirects");
        lab.proxy.sysctl(&key, "0")?;
    }
    Ok(())
}
