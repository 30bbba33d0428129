//! A lab with `dyscod` on its hosts and HAProxy under the shim.

pub(crate) mod fates;

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use dysco_netns::fleet::{self, Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Close, Group, Plan, Server};
use dysco_netns::{Builder, Family, Lab, Process, Role, capture, counters};
use serde_json::Value;

/// Ports of HAProxy and of the server behind it.
pub(crate) const PROXY_PORT: u16 = 8080;
pub(crate) const SERVER_PORT: u16 = 9000;

/// Configuration by which the operator vouches for HAProxy's listener.
pub(crate) const DECLARED: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";

pub(crate) struct World {
    pub lab: Lab,
    pub fleet: Fleet,
    pub daemons: Vec<(Role, Daemon)>,
    pub haproxy: Option<Process>,
    pub server: Server,
    pub capture: Process,
    pub family: Family,
    /// Mode in which the proxy of this world leaves, if a test does not specify one.
    pub mode: &'static str,
}

impl World {
    /// Builds a world with daemons on the client's, the proxy's and the server's host.
    pub(crate) fn new(builder: Builder, family: Family) -> Result<World> {
        World::with(
            builder,
            family,
            &[Role::Client, Role::Proxy, Role::Server],
            DECLARED,
            |c| c,
        )
    }

    pub(crate) fn with(
        builder: Builder,
        family: Family,
        roles: &[Role],
        config: &str,
        haproxy: impl FnOnce(Config) -> Config,
    ) -> Result<World> {
        let lab = builder.build()?;
        // The capture has the headers for the report of a failure, in which case its folder stays.
        let capture = capture::start(&lab.client, "eth0")?;
        let fleet = Fleet::new(&lab)?.with_faults();
        let started = fleet.start_all(&lab, roles.iter().map(|role| (*role, config.into())))?;
        let daemons = roles.iter().copied().zip(started).collect();
        let (listen, to) = (
            Role::Proxy.at(family, PROXY_PORT),
            Role::Server.at(family, SERVER_PORT),
        );
        let server = Server::start(&lab.server, to)?;
        let haproxy =
            haproxy(Config::tcp(listen, to)).start(&lab.proxy, |p| fleet.under_shim(p))?;
        Ok(World {
            lab,
            fleet,
            daemons,
            haproxy: Some(haproxy),
            server,
            capture,
            family,
            mode: "bypass",
        })
    }

    pub(crate) fn listen(&self) -> SocketAddr {
        Role::Proxy.at(self.family, PROXY_PORT)
    }

    pub(crate) fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        self.open_at(PROXY_PORT, count, plan)
    }

    /// Opens sessions through a proxy on another port.
    pub(crate) fn open_at(&self, port: u16, count: usize, plan: &Plan) -> Result<Group> {
        let to = Role::Proxy.at(self.family, port);
        Group::open(&self.lab.client, &self.server, to, count, plan)
    }

    /// Starts another HAProxy, under the shim.
    pub(crate) fn proxy(
        &self,
        name: &str,
        port: u16,
        change: impl FnOnce(Config) -> Config,
    ) -> Result<Process> {
        let (listen, to) = (
            Role::Proxy.at(self.family, port),
            Role::Server.at(self.family, SERVER_PORT),
        );
        change(Config::tcp(listen, to).named(name))
            .start(&self.lab.proxy, |p| self.fleet.under_shim(p))
    }

    /// Removes the proxy from these sessions.
    pub(crate) fn remove_these(&self, ends: &[fates::Ends]) -> Result<Value> {
        let names: Vec<_> = ends.iter().map(fates::Ends::name).collect();
        let words: Vec<_> = names.iter().flat_map(|n| ["--session", n]).collect();
        let done = self.remove(&words)?;
        if done["summary"]["removed"] != ends.len() {
            bail!("not all were removed: {done:#}\n{}", self.state());
        }
        Ok(done)
    }

    /// Sets the faults of a host's daemon from now on.
    pub(crate) fn fault(&self, role: Role, words: &str) -> Result<()> {
        self.fleet.set_faults(self.lab.host(role), words)
    }

    /// Number of times that the host's daemon has lost this message on purpose.
    pub(crate) fn lost(&self, role: Role, message: &str) -> Result<usize> {
        fleet::lost(self.lab.host(role), message)
    }

    pub(crate) fn daemon(&mut self, role: Role) -> Result<&mut Process> {
        let found = self.daemons.iter_mut().find(|(r, _)| *r == role);
        Ok(&mut found.context("no daemon there")?.1.process)
    }

    /// Starts a host's daemon again, with its former configuration.
    pub(crate) fn restart(&mut self, role: Role) -> Result<()> {
        self.daemons.retain(|(r, _)| *r != role);
        let file = self.lab.host(role).dir().join("dyscod.toml");
        let daemon = self.fleet.restart(&self.lab, role, &file)?;
        self.daemons.push((role, daemon));
        Ok(())
    }

    /// Runs `dyscoctl remove-middlebox self --all --wait` on the proxy's host.
    pub(crate) fn remove_all(&self) -> Result<Value> {
        self.remove(&["--all"])
    }

    pub(crate) fn remove(&self, words: &[&str]) -> Result<Value> {
        self.remove_from(Role::Proxy, "self", words)
    }

    /// Runs such a command on any host.
    pub(crate) fn remove_from(&self, role: Role, middlebox: &str, words: &[&str]) -> Result<Value> {
        let mut all = vec!["remove-middlebox", middlebox, "--wait", "-o", "json"];
        if middlebox == "self" && !words.contains(&"--mode") {
            all.extend(["--mode", self.mode]);
        }
        all.extend(words);
        let ran = self.fleet.try_dyscoctl(self.lab.host(role), &all)?;
        serde_json::from_str(&ran.stdout)
            .with_context(|| format!("no JSON: {} {}", ran.stdout, ran.stderr))
    }

    /// Removes the proxy from all sessions.
    pub(crate) fn remove_all_of(&self, count: usize) -> Result<Value> {
        let done = self.remove_all()?;
        if done["summary"]["removed"] != count {
            bail!("not all were removed: {done:#}\n{}", self.state());
        }
        Ok(done)
    }

    /// Returns the state of the hosts, for the report of a failure.
    pub(crate) fn state(&self) -> String {
        let mut text = String::new();
        for role in [Role::Client, Role::Proxy, Role::Server] {
            let host = self.lab.host(role);
            for (program, args) in [("ss", "-tino"), ("nstat", "-as")] {
                let out = host.output(program, &[args]).unwrap_or_default();
                text += &format!("== {} {program}\n{out}\n", role.name());
            }
            for words in [["sessions", "-o", "json"], ["status", "-o", "json"]] {
                let out = self.fleet.dyscoctl(host, &words).unwrap_or_default();
                text += &format!("== {} {words:?}\n{out}\n", role.name());
            }
        }
        text
    }

    /// Ends everything that runs. Returns an error if anything else was left.
    pub(crate) fn finish(self) -> Result<()> {
        self.lab
            .finish((self.haproxy, self.daemons, self.server, self.capture))
    }

    /// Checks that no end was reset, and that the proxy's stack answered nothing.
    pub(crate) fn no_resets(&self) -> Result<()> {
        for host in [&self.lab.client, &self.lab.server] {
            let resets = counters::resets(host)?;
            ensure!(resets == 0, "{resets} resets\n{}", self.state());
        }
        let sent = counters::tcp(&self.lab.proxy)?["Tcp.OutRsts"];
        ensure!(sent == 0, "{sent} resets from the proxy's host");
        Ok(())
    }

    /// Opens a session for each of these ways to end, of a moderate rate, and waits until all can
    /// be removed.
    pub(crate) fn open_to_end(&self, ways: &[Close]) -> Result<Vec<Group>> {
        let open = |close: &Close| {
            let group = self.open(1, &Plan::paced(2_000_000, *close))?;
            group.run();
            Ok(group)
        };
        let groups: Vec<Group> = ways.iter().map(open).collect::<Result<_>>()?;
        for group in &groups {
            group.wait_progress(200_000)?;
            self.wait_removable(&self.ends(group)?)?;
        }
        Ok(groups)
    }

    pub(crate) fn counters(&self, role: Role) -> Result<Value> {
        let status = self.fleet.json(self.lab.host(role), &["status"])?;
        Ok(status["counters"].clone())
    }
}
