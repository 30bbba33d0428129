//! Sessions that the proxy's host relays, with firewalls on one side of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::Value;

use super::{At, Steered};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The side of the relaying host that gets firewalls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Client,
    Server,
}

impl Beside {
    /// Host that has opened the session on that side, and its port at the end that accepted it.
    pub(crate) fn opened(self) -> (At, u16) {
        match self {
            Beside::Client => (At::Client, 8080),
            Beside::Server => (At::Proxy, 9000),
        }
    }

    /// Host that has accepted the session on that side.
    pub(crate) fn accepted(self) -> At {
        match self {
            Beside::Client => At::Proxy,
            Beside::Server => At::Server,
        }
    }

    /// Host that is not involved.
    pub(crate) fn other_end(self) -> At {
        match self {
            Beside::Client => At::Server,
            Beside::Server => At::Client,
        }
    }
}

pub(crate) struct Relayed {
    pub world: Steered,
    pub beside: Beside,
    pub group: Group,
}

impl Relayed {
    /// Opens sessions that are busy in both directions and relayed. No daemon runs at the far end.
    pub(crate) fn new(
        family: Family,
        beside: Beside,
        settings: &[(At, &str, &str)],
        (count, plan): (usize, &Plan),
    ) -> Result<Relayed> {
        let mut world = Steered::with_proxy(family, settings, "send-proxy-v2")?;
        world.kill(beside.other_end())?;
        let (group, _) = world.left("local", count, plan)?;
        Ok(Relayed {
            world,
            beside,
            group,
        })
    }

    /// Names of the sessions where chains are requested.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let (at, port) = self.beside.opened();
        let port = format!(":{port}");
        let all = self.world.sessions(at)?;
        let word = |s: &Value, end: &str| s[end].as_str().unwrap_or_default().to_owned();
        let ours = all.iter().filter(|s| word(s, "remote").ends_with(&port));
        let name = |s| format!("{}>{}", word(s, "local"), word(s, "remote"));
        Ok(ours.map(name).collect())
    }

    pub(crate) fn only(&self) -> Result<String> {
        let mut all = self.names()?;
        ensure!(all.len() == 1, "{all:?}\n{}", self.world.logs());
        all.pop().context("none")
    }

    pub(crate) fn try_update_chain(&self, session: &str, chain: &[At]) -> Result<Value> {
        let at = self.beside.opened().0;
        self.world.reconfigure_on(at, session, chain, &[])
    }

    pub(crate) fn update_chain(&self, session: &str, chain: &[At]) -> Result<()> {
        let done = self.try_update_chain(session, chain)?;
        let why = || format!("{chain:?}: {done:#}\n{}", self.world.logs());
        ensure!(done["outcome"] == "changed", "{}", why());
        Ok(())
    }

    /// Waits until a request is refused for this reason. The request itself may first have to fetch
    /// facts about a host.
    pub(crate) fn is_refused(&self, session: &str, what: &str) -> Result<()> {
        let mut said = Value::Null;
        wait::until("the reason", PATIENCE, || {
            said = self.try_update_chain(session, &[At::Fw1]).ok()?;
            said["reason"].to_string().contains(what).then_some(())
        })
        .with_context(|| format!("{what}: {said:#}\n{}", self.world.logs()))
    }

    pub(crate) fn get_on(&self, bytes: u64) -> Result<()> {
        let moved = self.group.wait_progress(bytes);
        moved.with_context(|| self.world.logs())
    }

    pub(crate) fn passed(&self) -> Result<[u64; 2]> {
        let [one, two] = At::FIREWALLS;
        let world = &self.world;
        Ok([world.counted(one, "passed")?, world.counted(two, "passed")?])
    }

    /// Waits until data takes this chain and no other.
    pub(crate) fn takes_only(&self, chain: &[At]) -> Result<()> {
        wait::until("the chain to carry it all", PATIENCE, || {
            let before = self.passed().ok()?;
            self.group.wait_progress(1 << 20).ok()?;
            let after = self.passed().ok()?;
            let each = At::FIREWALLS.iter().zip(before.iter().zip(after));
            let mut right = each.map(|(fw, (b, a))| chain.contains(fw) == (*b != a));
            right.all(|right| right).then_some(())
        })
        .with_context(|| self.world.logs())
    }

    pub(crate) fn nothing_refused(&self) -> Result<()> {
        for fw in At::FIREWALLS {
            let refused = self.world.refused(fw)?;
            ensure!(refused == 0, "{fw:?}: {refused}\n{}", self.world.logs());
        }
        Ok(())
    }

    /// Connections of the sessions that a firewall has.
    pub(crate) fn connections(&self, fw: At) -> Result<Vec<String>> {
        let all = (self.world.host(fw)).output("conntrack", &["-L", "-p", "tcp"])?;
        let port = format!("dport={}", self.beside.opened().1);
        let ours = all.lines().filter(|l| l.contains(&port));
        Ok(ours.map(str::to_owned).collect())
    }

    /// Checks that a firewall has one connection, between the two hosts next to it.
    pub(crate) fn is_known(&self, fw: At) -> Result<()> {
        let all = self.connections(fw)?;
        let ends = [self.beside.opened().0, self.beside.accepted()];
        let ends = ends.map(|at| self.world.ip(at));
        let opened = format!("src={} dst={} ", ends[0], ends[1]);
        let right = |line: &String| {
            let words = ["ESTABLISHED", opened.as_str(), "ASSURED"];
            words.iter().all(|word| line.contains(word)) && !line.contains("UNREPLIED")
        };
        ensure!(all.len() == 1 && all.iter().all(right), "{all:#?}");
        Ok(())
    }

    pub(crate) fn forgotten(&self, fw: At) -> Result<()> {
        wait::until("the host to forget", PATIENCE, || {
            let left = !self.connections(fw).ok()?.is_empty();
            let listed = !self.world.sessions(fw).ok()?.is_empty();
            (!left && !listed).then_some(())
        })
        .with_context(|| self.world.logs())
    }

    pub(crate) fn finish(self) -> Result<()> {
        all_intact(&self.group.finish()?)?;
        self.world.finish()
    }
}
