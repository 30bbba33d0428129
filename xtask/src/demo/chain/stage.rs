//! The hosts, and the programs that run on them during the whole demo.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::nginx::Nginx;
use dysco_netns::{Host, Ran, Star, Ways, counters};

use super::Step;

/// Everything except the traffic. The fields are dropped in this order.
pub(super) struct Stage {
    nginx: Nginx,
    daemons: Vec<Daemon>,
    fleet: Fleet,
    star: Star,
}

const PORT: u16 = 80;
/// Places of the firewalls among the star's hosts.
const FW: [usize; 2] = [2, 3];

impl Stage {
    /// Builds the hosts and starts all programs.
    pub(super) fn build(programs: &Path) -> Result<Stage> {
        let star = Star::build("chain", FW.len())?;
        star.guard()?;
        let fleet = Fleet::of_star(&star, programs)?;
        let start = |at: usize| {
            let policy = star.hosts()[at].dir().join("policy.toml");
            fs::write(&policy, "").context("failed to write a policy")?;
            let policy = policy.display();
            let extra = format!(
                "[chain]\npolicy = \"{policy}\"\n\n[[track]]\ndestination = \"10.0.0.0/8\"\n"
            );
            fleet.start_around(&star, at, &extra)
        };
        let daemons = (0..star.hosts().len()).map(start);
        Ok(Stage {
            daemons: daemons.collect::<Result<_>>()?,
            nginx: Nginx::start(star.server(), PORT)?,
            fleet,
            star,
        })
    }

    /// Describes the stage in a few lines.
    pub(super) fn summary(&self) -> String {
        let host = |at: usize| {
            let (name, address) = (self.star.hosts()[at].name(), self.star.address(at));
            format!("{name:8}{:10}dyscod, ", address.to_string())
        };
        format!(
            "hosts, joined by a router:\n  {}downloads, uploads and requests, every byte checked\n  \
             {}a strict firewall, which marks the sessions that it admits\n  \
             {}a firewall that drops sessions without this mark\n  {}nginx\n",
            host(0),
            host(FW[0]),
            host(FW[1]),
            host(1)
        )
    }

    /// Host that opens the sessions.
    pub(super) fn client(&self) -> &Host {
        self.star.client()
    }

    /// Host that accepts the sessions.
    pub(super) fn server(&self) -> &Host {
        self.star.server()
    }

    /// Address of the server.
    pub(super) fn server_at(&self) -> SocketAddr {
        self.star.server_at(PORT)
    }

    /// Returns the arguments of dyscoctl for a step, as in a shell; none for the first step.
    pub(super) fn words(&self, step: Step) -> Option<String> {
        let [one, two] = FW.map(|at| self.star.address(at));
        let text = match step {
            Step::Direct => return None,
            Step::Inserted => format!("insert-middlebox {one} --filter port={PORT}"),
            Step::Replaced => format!("replace-middlebox {one} --with {two} --state conntrack"),
            Step::Removed => format!("reconfigure --through {two} --chain ''"),
        };
        Some(format!("{text} --wait"))
    }

    /// Runs `dyscoctl` on the client's host, with JSON output.
    pub(super) fn dyscoctl(&self, words: &str) -> Result<Ran> {
        let words = words.split(' ').chain(["-o", "json"]);
        let words: Vec<_> = words.map(|word| word.trim_matches('\'')).collect();
        self.fleet.try_dyscoctl(self.client(), &words)
    }

    /// Number of packets so far, by path.
    pub(super) fn ways(&self) -> Result<Ways> {
        self.star.ways()
    }

    /// Number of packets that both firewalls have refused so far.
    pub(super) fn dropped(&self) -> Result<u64> {
        self.star.refused()
    }

    /// Number of resets that the client's and the server's hosts have sent or received so far.
    pub(super) fn resets(&self) -> Result<u64> {
        Ok(counters::resets(self.client())? + counters::resets(self.server())?)
    }

    /// Ends everything. After a failure the logs stay.
    pub(super) fn end(self, well: bool) -> Result<()> {
        drop((self.nginx, self.daemons, self.fleet));
        if well { self.star.finish(()) } else { Ok(()) }
    }
}
