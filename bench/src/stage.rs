//! The measured labs: one without Dysco, and one with `dyscod` on its hosts and HAProxy under the
//! shim.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role, wait};
use serde_json::Value;

/// Address on which HAProxy listens.
pub(crate) fn proxied() -> SocketAddr {
    Role::Proxy.at(Family::V4, 8080)
}

/// Address of the server behind HAProxy, to which direct sessions also go.
pub(crate) fn server() -> SocketAddr {
    Role::Server.at(Family::V4, 9000)
}

/// Maximum time of any wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const LISTENER: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";

/// A lab with `dyscod` on its hosts. The fields are dropped in this order.
pub(crate) struct Stage {
    /// HAProxy, under the shim.
    pub haproxy: Process,
    daemons: Vec<Daemon>,
    /// Keys and programs.
    pub fleet: Fleet,
    /// Hosts of the lab.
    pub lab: Lab,
    /// Mode in which HAProxy leaves.
    mode: &'static str,
}

impl Stage {
    /// Builds the stage, with `extra` in each daemon's configuration.
    pub(crate) fn build(name: &str, extra: &str) -> Result<Stage> {
        let lab = Lab::builder(name).build()?;
        Stage::on(lab, extra, &Role::ALL, "bypass", |haproxy| haproxy)
    }

    /// Builds a stage as [`Stage::build`] does, with a changed configuration of HAProxy.
    pub(crate) fn build_by(
        name: &str,
        extra: &str,
        change: impl FnOnce(Config) -> Config,
    ) -> Result<Stage> {
        let lab = Lab::builder(name).build()?;
        Stage::on(lab, extra, &Role::ALL, "bypass", change)
    }

    /// Builds a stage in which only the proxy's host has `dyscod`: HAProxy leaves, and that host
    /// relays.
    pub(crate) fn alone(name: &str, extra: &str) -> Result<Stage> {
        Stage::alone_in(Lab::builder(name).build()?, extra)
    }

    /// Builds such a stage in an existing lab.
    pub(crate) fn alone_in(lab: Lab, extra: &str) -> Result<Stage> {
        Stage::on(lab, extra, &[Role::Proxy], "local", |haproxy| haproxy)
    }

    /// Builds a stage whose daemon is started later by [`Stage::begin`].
    pub(crate) fn late(name: &str, change: impl FnOnce(Config) -> Config) -> Result<Stage> {
        let lab = Lab::builder(name).build()?;
        Stage::on(lab, "", &[], "local", change)
    }

    /// Starts the daemon of the proxy's host. Returns when the daemon answers.
    pub(crate) fn begin(&mut self, extra: &str) -> Result<()> {
        let config = format!("{LISTENER}{extra}");
        let daemon = self.fleet.start(&self.lab, Role::Proxy, &config)?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Builds a stage as [`Stage::alone`] does, with a changed configuration of HAProxy.
    pub(crate) fn alone_by(
        name: &str,
        extra: &str,
        change: impl FnOnce(Config) -> Config,
    ) -> Result<Stage> {
        let lab = Lab::builder(name).build()?;
        Stage::on(lab, extra, &[Role::Proxy], "local", change)
    }

    fn on(
        lab: Lab,
        extra: &str,
        roles: &[Role],
        mode: &'static str,
        change: impl FnOnce(Config) -> Config,
    ) -> Result<Stage> {
        let fleet = Fleet::new(&lab)?;
        let config = format!("{LISTENER}{extra}");
        let start = |role: &Role| fleet.start(&lab, *role, &config);
        let daemons = roles.iter().map(start).collect::<Result<_>>()?;
        let haproxy = change(Config::tcp(proxied(), server()))
            .start(&lab.proxy, |haproxy| fleet.under_shim(haproxy))?;
        Ok(Stage {
            haproxy,
            daemons,
            fleet,
            lab,
            mode,
        })
    }

    /// Removes HAProxy from all sessions that it may leave now.
    pub(crate) fn remove(&self) -> Result<Value> {
        let (all, how) = (["remove-middlebox", "self", "--all"], ["--mode", self.mode]);
        let words = [&all[..], &how, &["--wait", "-o", "json"]].concat();
        let ran = self.fleet.try_dyscoctl(&self.lab.proxy, &words)?;
        serde_json::from_str(&ran.stdout)
            .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))
    }

    /// Waits until HAProxy may leave `count` sessions: it must first be seen to relay.
    pub(crate) fn wait_removable(&self, count: usize) -> Result<()> {
        let words = ["remove-middlebox", "self", "--all", "--mode", self.mode];
        let words = [&words[..], &["--dry-run", "-o", "json"]].concat();
        wait::until("sessions that HAProxy may leave", PATIENCE, || {
            let ran = self.fleet.try_dyscoctl(&self.lab.proxy, &words).ok()?;
            let judged: Value = serde_json::from_str(&ran.stdout).ok()?;
            (judged["summary"]["removable"] == count).then_some(())
        })
    }

    /// Removes HAProxy from all its sessions. Returns an error unless it left `count` sessions.
    pub(crate) fn remove_all(&self, count: usize) -> Result<Value> {
        let done = self.remove()?;
        let removed = done["summary"]["removed"].as_u64();
        ensure!(
            removed == Some(count as u64),
            "HAProxy was to leave {count} sessions: {}",
            done["summary"]
        );
        Ok(done)
    }

    /// Number of sessions of which the proxy's host knows both sides.
    pub(crate) fn pairs(&self) -> Result<u64> {
        self.status("/pairs")
    }

    /// Number of sessions that the proxy's host has adopted.
    pub(crate) fn adopted(&self) -> Result<u64> {
        self.status("/sessions/adopted")
    }

    fn status(&self, name: &str) -> Result<u64> {
        let status = self.fleet.json(&self.lab.proxy, &["status"])?;
        let number = status.pointer(name).and_then(Value::as_u64);
        number.with_context(|| format!("dyscoctl did not report {name}"))
    }

    /// Process ids of the daemons, in the order of [`Role::ALL`].
    pub(crate) fn daemons(&self) -> Vec<u32> {
        self.daemons.iter().map(|d| d.process.id()).collect()
    }

    /// Ends everything.
    pub(crate) fn end(self) -> Result<()> {
        let parts = (self.haproxy, self.daemons);
        self.lab.finish(parts)
    }
}
