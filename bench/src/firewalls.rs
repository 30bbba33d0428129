//! Two strict firewalls around a router, and sessions that are to pass one or the other. `dyscod`
//! runs on every host.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet, built};
use dysco_netns::{Host, Star, counters, wait};
use serde_json::Value;

use crate::apart::Between;

/// Places of the firewalls among the star's hosts.
const FIREWALLS: [usize; 2] = [2, 3];

/// A change of the chain of many sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The first firewall enters the chain.
    Insert,
    /// The second firewall replaces the first and receives its state.
    Replace,
    /// The second firewall leaves.
    Remove,
}

/// Sessions whose chain is changed.
#[derive(Clone, Copy)]
pub(crate) enum Whom {
    /// All sessions to a port of the server.
    All {
        /// Port of the server.
        port: u16,
    },
    /// One session.
    One {
        /// Address of the client's end.
        local: SocketAddr,
        /// Address of the server's end.
        remote: SocketAddr,
    },
}

/// Hosts that a host knows before a session needs them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquainted {
    /// All other hosts, by configuration.
    All,
    /// No hosts: they meet in the first change.
    Nobody,
}

const PATIENCE: Duration = Duration::from_secs(10);

/// The hosts. The fields are dropped in this order.
pub(crate) struct Firewalls {
    daemons: Vec<Daemon>,
    fleet: Fleet,
    star: Star,
}

impl Firewalls {
    /// Builds the hosts. No session passes the firewalls at first.
    pub(crate) fn build(name: &str, acquainted: Acquainted) -> Result<Firewalls> {
        let star = Star::build(name, FIREWALLS.len())?;
        star.guard()?;
        let dyscod = built("dyscod")?;
        let fleet = Fleet::of_star(&star, dyscod.parent().unwrap_or(Path::new(".")))?;
        let hosts = star.hosts().len();
        let all: Vec<_> = (0..hosts).map(|at| star.address(at).to_string()).collect();
        let peers = match acquainted {
            Acquainted::All => all.as_slice(),
            Acquainted::Nobody => &[],
        };
        let start = |at: usize| {
            let policy = star.hosts()[at].dir().join("policy.toml");
            fs::write(&policy, "").context("failed to write a policy")?;
            // The first line belongs to `[control]`.
            let extra = format!(
                "peers = {peers:?}\n\n[chain]\npolicy = \"{}\"\n\n\
                 [[track]]\ndestination = \"10.0.0.0/8\"\n",
                policy.display()
            );
            fleet.start_around(&star, at, &extra)
        };
        let daemons = (0..hosts).map(start).collect::<Result<_>>()?;
        let firewalls = Firewalls {
            daemons,
            fleet,
            star,
        };
        if acquainted == Acquainted::All {
            wait::until("all hosts know each other", PATIENCE, || {
                let others = hosts as u64 - 1;
                let all = firewalls.star.hosts().iter();
                { all }
                    .all(|host| firewalls.known(host) == Some(others))
                    .then_some(())
            })?;
        }
        Ok(firewalls)
    }

    /// Number of hosts whose keys a host has.
    fn known(&self, host: &Host) -> Option<u64> {
        let status: Value = self.fleet.json(host, &["status"]).ok()?;
        status["counters"]["chain_neighbours"].as_u64()
    }

    /// Host that opens the sessions.
    pub(crate) fn client(&self) -> &Host {
        self.star.client()
    }

    /// Host that accepts the sessions.
    pub(crate) fn server(&self) -> &Host {
        self.star.server()
    }

    /// Endpoints from the client to a port of the server.
    pub(crate) fn between(&self, port: u16) -> Between<'_> {
        let at = self.star.server_at(port);
        Between {
            client: self.client(),
            to: at,
            server: self.server(),
            at,
        }
    }

    /// Changes the chain of `count` sessions. Returns for each session the time from the request to
    /// the new path, in milliseconds. All sessions share one request.
    ///
    /// # Errors
    /// If not all sessions were changed.
    pub(crate) fn change(&self, change: Change, whom: Whom, count: usize) -> Result<Vec<f64>> {
        let [one, two]: [IpAddr; 2] = FIREWALLS.map(|at| self.star.address(at));
        let words = match change {
            Change::Insert => format!("insert-middlebox {one}"),
            Change::Replace => format!("replace-middlebox {one} --with {two} --state conntrack"),
            Change::Remove => "reconfigure --chain=".to_owned(),
        };
        let whom = match (whom, change) {
            (Whom::All { port }, _) => format!("--filter port={port}"),
            (Whom::One { local, remote }, Change::Remove) => format!("{local}>{remote}"),
            (Whom::One { local, remote }, _) => format!("--session {local}>{remote}"),
        };
        let words = format!("{words} {whom} --wait -o json");
        let words: Vec<_> = words.split(' ').collect();
        let ran = self.fleet.try_dyscoctl(self.client(), &words)?;
        let done: Value = serde_json::from_str(&ran.stdout)
            .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
        let changes = done["changes"].as_array().map_or(&[][..], Vec::as_slice);
        let other = changes.iter().find(|c| c["outcome"] != "changed");
        if let Some(other) = other {
            anyhow::bail!("the chain of a session was not changed: {other}");
        }
        ensure!(
            changes.len() == count,
            "the chains of {} of {count} sessions were changed",
            changes.len()
        );
        let time = |change: &Value| change["request_to_switch_us"].as_f64();
        let times = changes.iter().map(|c| Some(time(c)? / 1e3));
        times.collect::<Option<_>>().context("a change has no time")
    }

    /// Limits the rate at which both ends send. A burst lets the links catch up after a halt of the
    /// machine of some milliseconds.
    pub(crate) fn limit(&self, rate: &str) -> Result<()> {
        let limit = |host: &Host| host.limit("eth0", rate, "2m", "8m");
        [self.client(), self.server()]
            .into_iter()
            .try_for_each(limit)
    }

    /// Number of packets that both firewalls have refused so far, and number of segments that both
    /// ends have retransmitted.
    pub(crate) fn counted(&self) -> Result<[u64; 2]> {
        Ok([self.dropped()?, self.sent_again()?])
    }

    /// Number of packets that both firewalls have refused so far.
    pub(crate) fn dropped(&self) -> Result<u64> {
        self.star.refused()
    }

    fn sent_again(&self) -> Result<u64> {
        let of = |host| {
            let all = counters::tcp(host)?;
            let count = all.get("Tcp.RetransSegs").copied();
            count.context("the kernel does not count retransmissions")
        };
        Ok(of(self.client())? + of(self.server())?)
    }

    /// Ends everything.
    pub(crate) fn end(self, parts: impl Sized) -> Result<()> {
        drop(parts);
        self.star.finish(self.daemons)
    }
}
