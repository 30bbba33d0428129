//! The same hosts with a proxy between client and server, which leaves their sessions.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan};
use dysco_netns::{Family, wait};
use serde_json::Value;

use super::{At, PATIENCE, PORT, Steered, program};

const LISTEN: u16 = 8080;
/// Configuration by which the operator vouches for the proxy's listener.
pub(crate) const DECLARED: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";

impl Steered {
    /// Builds the hosts with a proxy, settings of hosts, and words for the line of the server in
    /// the proxy's configuration.
    pub(crate) fn with_proxy(
        family: Family,
        settings: &[(At, &str, &str)],
        words: &str,
    ) -> Result<Steered> {
        let all: Vec<At> = At::ALL.into_iter().chain([At::Proxy]).collect();
        let mut world = Steered::of(&all, family, "", settings)?;
        let (listen, server) = (world.listen(), At::Server.address(family));
        let config = Config::tcp(listen, SocketAddr::new(server, PORT)).server_words(words);
        let shim = program("dyscoctl")?;
        let haproxy = config.start(world.host(At::Proxy), |p| {
            p.behind(shim.as_ref(), &["run", "--"])
        })?;
        world.haproxy = Some(haproxy);
        Ok(world)
    }

    fn listen(&self) -> SocketAddr {
        SocketAddr::new(At::Proxy.address(self.family), LISTEN)
    }

    /// Opens sessions through the proxy.
    pub(crate) fn open_by_proxy(&self, count: usize, plan: &Plan) -> Result<Group> {
        let server = self.traffic.as_ref().context("no server")?;
        Group::open(self.host(At::Client), server, self.listen(), count, plan)
    }

    /// Opens sessions through the proxy that are busy in both directions, and makes the proxy leave
    /// them. Returns the sessions, and their names on the client's host.
    pub(crate) fn left(
        &mut self,
        mode: &str,
        count: usize,
        plan: &Plan,
    ) -> Result<(Group, Vec<String>)> {
        let group = self.open_by_proxy(count, plan)?;
        group.run();
        group.wait_progress(1 << 20)?;
        self.leave(mode, count)?;
        drop(self.haproxy.take());
        let to = self.listen();
        let names = group.locals().iter().map(|l| format!("{l}>{to}")).collect();
        Ok((group, names))
    }

    /// Makes the proxy leave all its sessions.
    pub(crate) fn leave(&self, mode: &str, count: usize) -> Result<()> {
        let all = ["remove-middlebox", "self", "--all", "--mode", mode];
        let mut said = Value::Null;
        wait::until("the proxy to be removable", PATIENCE, || {
            let words = [&all[..], &["--dry-run"]].concat();
            said = self.try_json(At::Proxy, &words).ok()?;
            (said["summary"]["removable"] == count).then_some(())
        })
        .with_context(|| format!("{said:#}"))?;
        let done = self.try_json(At::Proxy, &[&all[..], &["--wait"]].concat())?;
        ensure!(
            done["summary"]["removed"] == count,
            "{done:#}\n{}",
            self.logs()
        );
        Ok(())
    }
}
