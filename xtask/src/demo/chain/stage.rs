//! The hosts, and what runs on them for the whole demo.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::nginx::Nginx;
use dysco_netns::{Host, Ran, Star, Ways, counters};

use super::Step;

/// Everything but the traffic. The fields end in this order.
pub struct Stage {
    nginx: Nginx,
    daemons: Vec<Daemon>,
    fleet: Fleet,
    star: Star,
}

const PORT: u16 = 80;
/// Places of the firewalls among the star's hosts.
const FW: [usize; 2] = [2, 3];

impl Stage {
    /// Builds the hosts and starts all.
    pub fn build(programs: &Path) -> Result<Stage> {
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

    /// What was built, in a few lines.
    pub fn summary(&self) -> String {
        let host = |at: usize| {
            let (name, address) = (self.star.hosts()[at].name(), self.star.address(at));
            format!("{name:8}{:10}dyscod, ", address.to_string())
        };
        format!(
            "hosts, joined by a router:\n  {}downloads, uploads and requests, every byte checked\n  \
             {}a strict firewall, which marks whom it lets in\n  \
             {}one that drops whoever has no such mark\n  {}nginx\n",
            host(0),
            host(FW[0]),
            host(FW[1]),
            host(1)
        )
    }

    /// Opens the sessions.
    pub fn client(&self) -> &Host {
        self.star.client()
    }

    /// Accepts them.
    pub fn server(&self) -> &Host {
        self.star.server()
    }

    /// Where they go.
    pub fn server_at(&self) -> SocketAddr {
        self.star.server_at(PORT)
    }

    /// What dyscoctl is told to get to a step, as in a shell; nothing for the
    /// first.
    pub fn words(&self, step: Step) -> Option<String> {
        let [one, two] = FW.map(|at| self.star.address(at));
        let text = match step {
            Step::Direct => return None,
            Step::Inserted => format!("insert-middlebox {one} --filter port={PORT}"),
            Step::Replaced => format!("replace-middlebox {one} --with {two} --state conntrack"),
            Step::Removed => format!("reconfigure --through {two} --chain ''"),
        };
        Some(format!("{text} --wait"))
    }

    /// Runs `dyscoctl` on the client's host, for JSON.
    pub fn dyscoctl(&self, words: &str) -> Result<Ran> {
        let words = words.split(' ').chain(["-o", "json"]);
        let words: Vec<_> = words.map(|word| word.trim_matches('\'')).collect();
        self.fleet.try_dyscoctl(self.client(), &words)
    }

    /// Packets by the way they took, so far.
    pub fn ways(&self) -> Result<Ways> {
        self.star.ways()
    }

    /// What both firewalls have refused so far.
    pub fn dropped(&self) -> Result<u64> {
        self.star.refused()
    }

    /// Resets that the client's and the server's hosts sent or met so far.
    pub fn resets(&self) -> Result<u64> {
        Ok(counters::resets(self.client())? + counters::resets(self.server())?)
    }

    /// Ends all; after a failure the logs stay.
    pub fn end(self, well: bool) -> Result<()> {
        drop((self.nginx, self.daemons, self.fleet));
        if well { self.star.finish(()) } else { Ok(()) }
    }
}
