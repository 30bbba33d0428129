//! The hosts, and the programs that run on them during the whole demo.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use dysco_netns::device::Kind;
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::Nginx;
use dysco_netns::{Family, Lab, Process, Role, counters};

/// Everything except the traffic. The fields are dropped in this order.
pub(super) struct Stage {
    /// HAProxy, under the shim if there is a fleet.
    pub haproxy: Process,
    nginx: Nginx,
    daemons: Vec<Daemon>,
    late: bool,
    /// `dyscod` on the three hosts, unless the demo runs without it.
    pub fleet: Option<Fleet>,
    /// Hosts of the demo.
    pub lab: Lab,
    /// Address for sessions through HAProxy.
    pub proxied: SocketAddr,
    /// Address for direct sessions.
    pub direct: SocketAddr,
}

const TRACK: &str = "[[track]]\ndestination = \"10.0.0.0/8\"\n";

impl Stage {
    /// Builds the hosts, joined by links of this kind, and starts all programs. Without programs, no
    /// `dyscod` runs. A late `dyscod` starts by [`Stage::start_late`], and HAProxy without the shim.
    pub(super) fn build(
        programs: Option<&impl AsRef<Path>>,
        link: Kind,
        late: bool,
    ) -> Result<Stage> {
        let lab = Lab::builder("demo").hosts(|host| host.kind(link)).build()?;
        let (proxied, direct) = (
            Role::Proxy.at(Family::V4, 8080),
            Role::Server.at(Family::V4, 80),
        );
        let fleet = programs
            .map(|p| Fleet::with_programs(&lab, p.as_ref()))
            .transpose()?;
        let mut running = Vec::new();
        if let (Some(fleet), false) = (&fleet, late) {
            running = daemons(fleet, &lab, proxied)?;
        }
        let nginx = Nginx::start(&lab.server, direct.port())?;
        let haproxy = Config::tcp(proxied, direct);
        let haproxy = haproxy.start(&lab.proxy, |haproxy| match &fleet {
            Some(fleet) if !late => fleet.under_shim(haproxy),
            _ => haproxy,
        })?;
        Ok(Stage {
            haproxy,
            nginx,
            daemons: running,
            late,
            fleet,
            lab,
            proxied,
            direct,
        })
    }

    /// Starts a late `dyscod` on the three hosts, which finds the sessions that are open.
    pub(super) fn start_late(&mut self) -> Result<()> {
        if let (Some(fleet), true) = (&self.fleet, self.late) {
            self.daemons = daemons(fleet, &self.lab, self.proxied)?;
        }
        Ok(())
    }

    /// Words that name the proxy, whose sessions no shim reports if `dyscod` is late.
    pub(super) fn proxy_words(&self) -> Vec<String> {
        match self.late {
            true => vec!["--listen".into(), self.proxied.to_string()],
            false => vec![],
        }
    }

    /// Describes the stage in a few lines.
    pub(super) fn summary(&self) -> String {
        let with = |role: Role| {
            let daemon = match self.fleet.is_some() && !self.late {
                true => "dyscod, ",
                false => "",
            };
            format!(
                "{:8}{:10}{daemon}",
                role.name(),
                role.address(Family::V4).to_string()
            )
        };
        let shim = match (&self.fleet, self.late) {
            (Some(_), false) => " under dyscoctl run",
            (Some(_), true) => ", and dyscod starts when the sessions are open",
            (None, _) => "",
        };
        format!(
            "hosts, joined by a router:\n  {}downloads, uploads and requests, every byte checked\n  \
             {}HAProxy{shim}\n  {}nginx\n",
            with(Role::Client),
            with(Role::Proxy),
            with(Role::Server),
        )
    }

    /// Number of resets that the client's and the server's hosts have sent or received so far.
    pub(super) fn resets(&self) -> Result<u64> {
        Ok(counters::resets(&self.lab.client)? + counters::resets(&self.lab.server)?)
    }

    /// Ends everything. After a failure the logs stay.
    pub(super) fn end(self, well: bool) -> Result<()> {
        let Stage {
            haproxy,
            nginx,
            daemons,
            lab,
            ..
        } = self;
        drop((haproxy, nginx, daemons));
        if well { lab.finish(()) } else { Ok(()) }
    }
}

/// Starts `dyscod` on the three hosts.
fn daemons(fleet: &Fleet, lab: &Lab, proxied: SocketAddr) -> Result<Vec<Daemon>> {
    let start = |role| {
        let listener = format!("[[listener]]\naddress = \"{proxied}\"\ntransparent = true\n");
        let extra = match role {
            Role::Proxy => listener,
            _ => String::new(),
        };
        fleet.start(lab, role, &format!("{TRACK}{extra}"))
    };
    Role::ALL.into_iter().map(start).collect()
}
