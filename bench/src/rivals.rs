//! Many sessions through each alternative between two hosts: no hop, forwarding, several kinds of
//! proxies, a sockmap, and a relay after the removal of its proxy. The results are goodput, request
//! times, processor time and memory.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role, relays};

use crate::Effort;
use crate::apart::Between;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::contest::{Contest, Pace, resident, used};
use crate::figure::Figure;
use crate::forwards;
use crate::local::through_the_proxys_host;
use crate::pair::buffer_of;
use crate::sockmap::Relay;
use crate::stage::{Stage, proxied, server};
use crate::turns::{BASE, RUN_IN};
use crate::{machine, memory};

/// The kinds of sessions, in this order.
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
/// Maximum number of requests to HAProxy to leave the remaining sessions.
const TRIES: usize = 20;
const CONTROL: usize = 1;
const DIRECT: usize = 2;
const RELAYED: usize = 3;
const SPLICED: usize = 4;
const COPIED: usize = 5;
const NGINX: usize = 6;
const SOCKMAP: usize = 7;
const _: () = assert!(BASE == 0);

/// Ports of a kind's proxy and of its server. They do not apply to relayed sessions.
fn ports(kind: usize) -> (u16, u16) {
    (8100 + kind as u16, 9100 + kind as u16)
}
/// Minimum number of sessions for a measurement of memory: with fewer, the memory of a session is
/// lost among other memory.
const WEIGHED: usize = 1_000;
/// Maximum number of sessions of one of the HAProxies that share a limit of open files.
const EACH_AT_MOST: usize = 8_000;
const LOCAL: &str = "[removal]\nmode = \"local\"\n";

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let counts: &[usize] = if effort.quick {
        &[1, 20]
    } else {
        &[1, 100, 10_000]
    };
    for &count in counts {
        let mut contest = Contest::<KINDS>::new();
        effort.say(&format!("  {count} sessions"));
        let labs = Labs::build(count)?;
        let ends_alone = labs.measure(effort, &mut contest)?;
        labs.end()?;
        for (kind, name) in NAMES.iter().enumerate().skip(1) {
            figures.extend(contest.figures(name, kind, count));
        }
        figures.extend(forwards::measure(effort, count, ends_alone)?);
    }
    Ok(figures)
}

/// The labs. The fields are dropped in this order.
struct Labs {
    count: usize,
    stage: Stage,
    second: Option<Process>,
    proxies: Vec<Process>,
    plain: Lab,
    direct: Lab,
}

impl Labs {
    /// Builds the labs for this number of sessions of each kind.
    fn build(count: usize) -> Result<Labs> {
        let direct = Lab::builder("direct").build()?;
        let plain = Lab::builder("rivals").build()?;
        through_the_proxys_host(&plain)?;
        let hands = hands(count)?;
        // Each of the processes that listen on one port has as many sessions as one process may
        // have.
        let roomy = move |c: Config| match hands {
            1 => c,
            _ => c.connections(EACH_AT_MOST).pipes(512).threads(1),
        };
        let stage = Stage::alone_by("relayed", LOCAL, roomy)?;
        let second = roomy(Config::tcp(proxied(), server()).named("second"));
        let second = (hands > 1)
            .then(|| second.start(&stage.lab.proxy, |haproxy| stage.fleet.under_shim(haproxy)));
        let (at, to) = (|kind| ends(kind).0, |kind| ends(kind).1);
        let mut proxies = Vec::new();
        for (name, kind, splice) in [("splicing", SPLICED, true), ("copying", COPIED, false)] {
            for hand in 0..hands {
                let config = Config::tcp(at(kind), to(kind)).splice(splice);
                let config = roomy(config.named(&format!("{name}{hand}")));
                proxies.push(config.start(&plain.proxy, |haproxy| haproxy)?);
            }
        }
        let nginx = relays::nginx_stream_of(&plain.proxy, at(NGINX), to(NGINX), hands)?;
        proxies.push(nginx);
        Ok(Labs {
            count,
            stage,
            second: second.transpose()?,
            proxies,
            plain,
            direct,
        })
    }

    fn end(mut self) -> Result<()> {
        self.direct.finish(())?;
        // nginx's workers end before nginx only if nginx is asked to end.
        if let Some(mut nginx) = self.proxies.pop() {
            nginx.stop()?;
        }
        self.plain.finish(self.proxies)?;
        drop(self.second);
        self.stage.end()
    }

    /// Measures the kinds. Returns the memory of the ends of a session by themselves.
    fn measure(&self, effort: &Effort, contest: &mut Contest<KINDS>) -> Result<f64> {
        let pace = Pace::of(effort, self.count);
        // Only one kind at a time fills its buffers.
        let buffer = buffer_of(self.count * 2);
        let open = |between: Between<'_>| Bulk::open(between, self.count, buffer);
        let warm = |streams: &Bulk| streams.measure(RUN_IN, pace.warm()).map(drop);
        effort.say("    streams");
        let (relay, streams, memory) = self.sessions(open, warm)?;
        contest.streams(&streams, pace)?;
        drop((streams, relay));
        if self.count >= WEIGHED {
            for kind in [RELAYED, SPLICED, COPIED, NGINX, SOCKMAP] {
                contest.memory(kind, memory[kind]);
            }
        }
        effort.say("    requests");
        let open = |between: Between<'_>| Asks::open(between, self.count);
        let warm = |asks: &Asks| asks.measure(pace.warm()).map(drop);
        let (_relay, asks, _) = self.sessions(open, warm)?;
        contest.requests(&asks, pace)?;
        Ok(memory[CONTROL])
    }

    /// Removes HAProxy from all sessions, each of which must have carried enough data: with many
    /// sessions a turn is too short for all.
    fn remove(&self, warm: impl Fn() -> Result<()>) -> Result<()> {
        let mut removed = 0;
        for _ in 0..TRIES {
            warm()?;
            let done = self.stage.remove()?;
            removed += done["summary"]["removed"].as_u64().unwrap_or(0);
            if removed == self.count as u64 {
                return Ok(());
            }
        }
        bail!("HAProxy left {removed} of {} sessions", self.count)
    }

    /// Opens sessions of each kind. Returns the sockmap's relay, the sessions, and the memory of a
    /// session of each kind in excess of a forwarded one. The sessions that lose their proxy are
    /// opened first.
    fn sessions<S>(
        &self,
        open: impl Fn(Between<'_>) -> Result<S>,
        warm: impl Fn(&S) -> Result<()>,
    ) -> Result<(Relay, [S; KINDS], [f64; KINDS])> {
        let mut memory = [0.0; KINDS];
        let daemon = self.stage.daemons().into_iter().next();
        let own = || daemon.map_or(Ok(0.0), resident);
        let before = own()?;
        let relayed = open(Between {
            client: &self.stage.lab.client,
            to: proxied(),
            server: &self.stage.lab.server,
            at: server(),
        })?;
        self.remove(|| warm(&relayed))?;
        // The proxy has left the session: two entries remain, and the daemon's memory of the
        // session.
        let entries = 2.0 * memory::of_an_entry(&self.stage.lab.proxy)?;
        memory[RELAYED] = entries + (own()? - before).max(0.0) / self.count as f64;
        let relay = Relay::start(
            &self.plain.proxy,
            ends(SOCKMAP).0,
            ends(SOCKMAP).1,
            hands(self.count)?,
        )?;
        let mut one = |kind: usize| {
            let lab = if kind == DIRECT {
                &self.direct
            } else {
                &self.plain
            };
            let before = used()?;
            let sessions = open(between(lab, kind))?;
            if kind == SOCKMAP {
                relay.wait(self.count)?;
            }
            memory[kind] = (used()? - before) / self.count as f64;
            Ok::<_, anyhow::Error>(sessions)
        };
        let all = [
            one(BASE)?,
            one(CONTROL)?,
            one(DIRECT)?,
            relayed,
            one(SPLICED)?,
            one(COPIED)?,
            one(NGINX)?,
            one(SOCKMAP)?,
        ];
        all.iter().try_for_each(warm)?;
        // The first sessions use memory that earlier sessions had freed.
        let ends_alone = memory[CONTROL];
        for kind in [SPLICED, COPIED, NGINX, SOCKMAP] {
            memory[kind] -= ends_alone;
        }
        Ok((relay, all, memory))
    }
}

/// Number of processes, each with its own table of open files, that are needed for both sockets of
/// all sessions.
pub(crate) fn hands(count: usize) -> Result<usize> {
    Ok((2 * count + 1_000).div_ceil(machine::sockets()?))
}

/// Addresses of a kind's proxy and of its server. They do not apply to relayed sessions.
fn ends(kind: usize) -> (SocketAddr, SocketAddr) {
    let (proxy, server) = ports(kind);
    (
        Role::Proxy.at(Family::V4, proxy),
        Role::Server.at(Family::V4, server),
    )
}

/// Endpoints of a kind's sessions. They do not apply to relayed sessions.
fn between(lab: &Lab, kind: usize) -> Between<'_> {
    let (to, at) = ends(kind);
    Between {
        client: &lab.client,
        to: if kind < RELAYED { at } else { to },
        server: &lab.server,
        at,
    }
}
