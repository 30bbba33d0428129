//! A client, a server and two or four strict firewalls around one router, each with `dyscod`.
//! Sessions are steered through the firewalls' hosts, or past them.

pub(crate) mod beside;
mod commands;
mod daemons;
pub(crate) mod faults;
mod firewalls;
pub(crate) mod forgotten;
pub(crate) mod left;
mod network;
pub(crate) mod policy;
pub(crate) mod ways;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::stream::{Group, Plan, Server};
use dysco_netns::{Family, Folder, Host, Process, require_root};
use serde_json::json;

use daemons::program;

pub(crate) const PORT: u16 = 9000;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A host of the lab, other than the router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Client,
    Server,
    Fw1,
    Fw2,
    /// Exists only in a lab with a proxy.
    Proxy,
    /// Exists only in a lab with four firewalls.
    Fw3,
    /// Exists only in a lab with four firewalls.
    Fw4,
}

impl At {
    pub(crate) const ALL: [At; 4] = [At::Client, At::Server, At::Fw1, At::Fw2];
    pub(crate) const FIREWALLS: [At; 2] = [At::Fw1, At::Fw2];
    pub(crate) const FOUR: [At; 6] = [At::Client, At::Server, At::Fw1, At::Fw2, At::Fw3, At::Fw4];

    pub(crate) fn name(self) -> &'static str {
        match self {
            At::Client => "client",
            At::Server => "server",
            At::Fw1 => "fw1",
            At::Fw2 => "fw2",
            At::Proxy => "proxy",
            At::Fw3 => "fw3",
            At::Fw4 => "fw4",
        }
    }

    fn is_firewall(self) -> bool {
        matches!(self, At::Fw1 | At::Fw2 | At::Fw3 | At::Fw4)
    }

    pub(crate) fn address(self, family: Family) -> IpAddr {
        address(self, family, 1)
    }
}

/// Chains to take in sequence: one firewall, its replacement, two firewalls, none; one and none
/// again.
pub(crate) const TO_AND_FRO: [&[At]; 6] = [
    &[At::Fw1],
    &[At::Fw2],
    &[At::Fw2, At::Fw1],
    &[],
    &[At::Fw1],
    &[],
];

/// Hosts whose daemon dies in a change to the first firewall, each with the point.
pub(crate) const DEATHS: [(At, &str); 7] = [
    (At::Client, "die:Cut"),
    (At::Client, "die:Switched"),
    (At::Client, "die:Complete"),
    (At::Server, "die:Extended"),
    (At::Server, "die:Cut"),
    (At::Server, "die:Settled"),
    (At::Fw1, "die:Enlisted"),
];

fn address(at: At, family: Family, last: u8) -> IpAddr {
    let net = at as u8 + 1;
    match family {
        Family::V4 => IpAddr::from([10, 8, net, last]),
        Family::V6 => IpAddr::from([0xfd08, net.into(), 0, 0, 0, 0, 0, last.into()]),
    }
}

/// Rules that drop every packet of a connection that connection tracking did not see opening, and
/// count the dropped packets.
const FIREWALL: &str = "
table inet fw {
  counter dropped { }
  counter invalid { }
  counter passed { }
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto != tcp accept
    ct state invalid counter name invalid drop
    ct state established counter name passed accept
    ct state new tcp flags & (fin|syn|rst|ack) == syn ct mark set 0x17 counter name passed accept
    counter name dropped
  }
}
";

pub(crate) struct Steered {
    all: Vec<At>,
    hosts: Vec<Host>,
    pub router: Host,
    fleet: Fleet,
    daemons: Vec<Option<Daemon>>,
    traffic: Option<Server>,
    haproxy: Option<Process>,
    pub family: Family,
    folder: Folder,
}

impl Steered {
    pub(crate) fn new(family: Family) -> Result<Steered> {
        Steered::with_policy(family, "")
    }

    /// Builds a lab with four firewalls.
    pub(crate) fn of_four(family: Family) -> Result<Steered> {
        Steered::four_with_policy(family, "")
    }

    /// Builds a lab with four firewalls, and a policy on the client's host.
    pub(crate) fn four_with_policy(family: Family, policy: &str) -> Result<Steered> {
        Steered::of(&At::FOUR, family, policy, &[])
    }

    /// Builds a lab with a policy on the client's host.
    pub(crate) fn with_policy(family: Family, policy: &str) -> Result<Steered> {
        Steered::of(&At::ALL, family, policy, &[])
    }

    /// Builds a lab with a policy on the client's host, and no `dyscod` on the server's host.
    pub(crate) fn without_servers(family: Family, policy: &str) -> Result<Steered> {
        let daemons = [At::Client, At::Fw1, At::Fw2];
        Steered::with_daemons(&At::ALL, &daemons, family, policy, &[])
    }

    /// Builds a lab with settings of hosts: host, name and value.
    pub(crate) fn with_settings(
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        Steered::of(&At::ALL, family, policy, settings)
    }

    /// Builds a lab with these hosts and settings.
    fn of(
        all: &[At],
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        Steered::with_daemons(all, all, family, policy, settings)
    }

    fn with_daemons(
        all: &[At],
        daemons: &[At],
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        require_root()?;
        let folder = Folder::make("steered")?;
        let make = |name: &str| Host::new(name, &folder.path().join(name));
        let hosts = all.iter().map(|at| make(at.name()));
        let router = make("router")?;
        let fleet = Fleet::new_in(folder.path().join("pki"), &router)?.with_faults();
        let mut world = Steered {
            all: all.to_vec(),
            hosts: hosts.collect::<Result<_>>()?,
            router,
            fleet,
            daemons: all.iter().map(|_| None).collect(),
            traffic: None,
            haproxy: None,
            family,
            folder,
        };
        world.connect(all)?;
        for (at, key, value) in settings {
            world.host(*at).sysctl(key, value)?;
        }
        let server = SocketAddr::new(At::Server.address(family), PORT);
        world.traffic = Some(Server::start(world.host(At::Server), server)?);
        world.write_policy(policy)?;
        world.start_those(daemons)?;
        Ok(world)
    }

    /// Builds a lab with hosts whose daemons fail on purpose from their start on.
    pub(crate) fn failing(family: Family, policy: &str, faults: &[(At, &str)]) -> Result<Steered> {
        let mut world = Steered::with_daemons(&At::ALL, &[], family, policy, &[])?;
        for (at, words) in faults {
            world.set_faults(*at, words)?;
        }
        world.start_those(&At::ALL)?;
        Ok(world)
    }

    /// Builds a lab in which the interface of one host is a bridge, whose packets netfilter sees
    /// before the data plane.
    pub(crate) fn bridged(family: Family, at: At) -> Result<Steered> {
        let mut world = Steered::with_daemons(&At::ALL, &[], family, "", &[])?;
        let host = world.host(at);
        let mut ip = String::from(
            "link set eth0 down\nlink set eth0 name port0\nlink add eth0 type bridge\n\
             link set port0 master eth0\nlink set port0 up\nlink set eth0 up\n",
        );
        for (family, bits, nodad) in [(Family::V4, 24, ""), (Family::V6, 64, " nodad")] {
            let (own, gateway) = (address(at, family, 1), address(at, family, 254));
            ip += &format!("addr flush dev port0\naddr add {own}/{bits} dev eth0{nodad}\n");
            ip += &format!("route add default via {gateway}\n");
        }
        host.input("ip", &["-batch", "-"], &ip)?;
        world.filter_bridged(at, true)?;
        world.start_those(&At::ALL)?;
        Ok(world)
    }

    /// Ends the lab, and lets its folder be removed. Returns an error if something still runs on a
    /// host.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.daemons.clear();
        (self.traffic, self.haproxy) = (None, None);
        self.folder.finish(self.hosts.iter().chain([&self.router]))
    }

    pub(crate) fn host(&self, at: At) -> &Host {
        &self.hosts[self.place(at)]
    }

    /// Index of a host that this lab has.
    fn place(&self, at: At) -> usize {
        let place = self.all.iter().position(|a| *a == at);
        place.unwrap_or(usize::MAX)
    }

    pub(crate) fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let server = self.traffic.as_ref().context("no server")?;
        let to = SocketAddr::new(At::Server.address(self.family), PORT);
        Group::open(self.host(At::Client), server, to, count, plan)
    }

    /// Name of a session on the client's host.
    pub(crate) fn name(&self, local: SocketAddr) -> String {
        let to = SocketAddr::new(At::Server.address(self.family), PORT);
        format!("{local}>{to}")
    }

    pub(crate) fn ip(&self, at: At) -> String {
        at.address(self.family).to_string()
    }

    /// Ends of all logs, for the report of a failure.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for at in self.all.iter().copied() {
            let log = self.host(at).dir().join("dyscod.log");
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(25).collect();
            let status = self.json(at, &["status"]).unwrap_or_default();
            let counters = status["counters"].as_object().cloned().unwrap_or_default();
            let telling = counters.iter().filter(|(name, value)| {
                **value != json!(0) && (name.starts_with("chain_") || name.contains("dropped"))
            });
            let telling: Vec<_> = telling.map(|(n, v)| format!("{n}={v}")).collect();
            all += &format!("--- {at:?} {}\n", telling.join(" "));
            // These commands show the state of the sockets and the firewalls.
            for words in ["ss -Htin", "conntrack -L -p tcp", "nft list counters"] {
                let mut words = words.split(' ');
                let program = words.next().unwrap_or_default();
                let words: Vec<_> = words.collect();
                all += &self.host(at).output(program, &words).unwrap_or_default();
            }
            let sessions = self.sessions(at).unwrap_or_default();
            for session in sessions {
                all += &format!("{session}\n");
            }
            for line in lines.into_iter().rev() {
                all += &format!("{line}\n");
            }
        }
        all
    }
}
