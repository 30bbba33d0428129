//! Mechanisms of a kernel that send sessions elsewhere: address translation by netfilter, address
//! translation with its flow table, and IPVS. Each is compared with plain forwarding by an equal
//! host. The available mechanisms depend on the kernel.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use dysco_netns::{Family, Host, Lab, Role};

use crate::Effort;
use crate::apart::Between;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::contest::{Contest, Pace, used};
use crate::figure::Figure;
use crate::local::through_the_proxys_host;
use crate::pair::buffer_of;
use crate::turns::{BASE, RUN_IN};

/// Plain forwarding, and the other mechanism.
const KINDS: usize = 2;
const OTHER: usize = 1;
/// Minimum number of sessions for a measurement of memory: with fewer, the memory of a session is
/// lost among other memory.
const WEIGHED: usize = 1_000;

/// A mechanism that may be available.
struct Forward {
    name: &'static str,
    /// Description of the mechanism, for the report that it is absent.
    about: &'static str,
    begin: fn(&Host, [SocketAddr; 2]) -> Result<()>,
}

const FORWARDS: [Forward; 3] = [
    Forward {
        name: "nat",
        about: "translation of addresses by netfilter",
        begin: |host, ends| netfilter(host, ends, ""),
    },
    Forward {
        name: "flowtable",
        about: "netfilter's flow table",
        begin: |host, ends| netfilter(host, ends, FLOW_TABLE),
    },
    Forward {
        name: "ipvs",
        about: "IPVS",
        begin: ipvs,
    },
];

const FLOW_TABLE: &str = "
  flowtable known { hook ingress priority 0; devices = { eth0 }; }
  chain forward {
    type filter hook forward priority 0;
    ip protocol tcp flow add @known
  }";

fn netfilter(host: &Host, [at, to]: [SocketAddr; 2], more: &str) -> Result<()> {
    let (ip, port) = (at.ip(), at.port());
    let table = format!(
        "table ip balance {{
  chain arriving {{
    type nat hook prerouting priority -100;
    ip daddr {ip} tcp dport {port} dnat to {to}
  }}{more}
}}
"
    );
    host.input("nft", &["-f", "-"], &table).map(drop)
}

/// Sets up IPVS. It also translates addresses, so that the server needs no address of the proxy's.
fn ipvs(host: &Host, [at, to]: [SocketAddr; 2]) -> Result<()> {
    let (at, to) = (at.to_string(), to.to_string());
    let service = ["-A", "-t", &at, "-s", "rr"];
    host.output("ipvsadm", &service)?;
    let server = ["-a", "-t", &at, "-r", &to, "-m"];
    host.output("ipvsadm", &server).map(drop)
}

/// Returns the figures of all available mechanisms with `count` sessions. `ends_alone` is the
/// memory of a session's ends in bytes.
pub(crate) fn measure(effort: &Effort, count: usize, ends_alone: f64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for forward in &FORWARDS {
        let lab = Lab::builder(forward.name).build()?;
        through_the_proxys_host(&lab)?;
        let ends = [Role::Proxy.at(Family::V4, 8100), server_at(OTHER)];
        match (forward.begin)(&lab.proxy, ends) {
            Ok(()) => {
                effort.say(&format!("    {}", forward.about));
                let (mut contest, bytes) = contest(effort, &lab, ends[0], count)
                    .with_context(|| format!("by {}", forward.about))?;
                if count >= WEIGHED {
                    contest.memory(OTHER, bytes - ends_alone);
                }
                figures.extend(contest.figures(forward.name, OTHER, count));
            }
            Err(error) => {
                let why = format!("{error:#}");
                effort.lacks(forward.about, why.lines().next().unwrap_or_default());
            }
        }
        lab.finish(())?;
    }
    Ok(figures)
}

fn server_at(kind: usize) -> SocketAddr {
    Role::Server.at(Family::V4, 9000 + kind as u16)
}

fn contest(
    effort: &Effort,
    lab: &Lab,
    by: SocketAddr,
    count: usize,
) -> Result<(Contest<KINDS>, f64)> {
    let (mut contest, pace) = (Contest::new(), Pace::of(effort, count));
    let between = |kind: usize| Between {
        client: &lab.client,
        to: if kind == OTHER { by } else { server_at(BASE) },
        server: &lab.server,
        at: server_at(kind),
    };
    let buffer = buffer_of(count * KINDS);
    let forwarded = Bulk::open(between(BASE), count, buffer)?;
    let before = used()?;
    let other = Bulk::open(between(OTHER), count, buffer)?;
    let bytes = (used()? - before) / count as f64;
    let streams = [forwarded, other];
    let warm = |streams: &Bulk| streams.measure(RUN_IN, pace.warm()).map(drop);
    streams.iter().try_for_each(warm)?;
    contest.streams(&streams, pace)?;
    drop(streams);
    let asks = [
        Asks::open(between(BASE), count)?,
        Asks::open(between(OTHER), count)?,
    ];
    let warm = |asks: &Asks| asks.measure(pace.warm()).map(drop);
    asks.iter().try_for_each(warm)?;
    contest.requests(&asks, pace)?;
    Ok((contest, bytes))
}
