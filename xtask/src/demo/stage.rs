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
    /// Builds the hosts, joined by links of this kind, and starts all programs. Without programs, no `dyscod` runs.
    pub(super) fn build(programs: Option<&impl AsRef<Path>>, link: Kind) -> Result<Stage> {
        let lab = Lab::builder("demo").hosts(|host| host.kind(link)).build()?;
        let (proxied, direct) = (
            Role::Proxy.at(Family::V4, 8080),
            Role::Server.at(Family::V4, 80),
        );
        let fleet = programs
            .map(|p| Fleet::with_programs(&lab, p.as_ref()))
            .transpose()?;
        let mut daemons = Vec::new();
        for role in Role::ALL {
            let listener = format!("[[listener]]\naddress = \"{proxied}\"\ntransparent = true\n");
            let extra = if role == Role::Proxy {
                listener
            } else {
                String::new()
            };
            if let Some(fleet) = &fleet {
                daemons.push(fleet.start(&lab, role, &format!("{TRACK}{extra}"))?);
            }
        }
        let nginx = Nginx::start(&lab.server, direct.port())?;
        let haproxy = Config::tcp(proxied, direct);
        let haproxy = haproxy.start(&lab.proxy, |haproxy| match &fleet {
            Some(fleet) => fleet.under_shim(haproxy),
            None => haproxy,
        })?;
        Ok(Stage {
            haproxy,
            nginx,
            daemons,
            fleet,
            lab,
            proxied,
            direct,
        })
    }

    /// Describes the stage in a few lines.
    pub(super) fn summary(&self) -> String {
        let with = |role: Role| {
            let daemon = if self.fleet.is_some() { "dyscod, " } else { "" };
            format!(
                "{:8}{:10}{daemon}",
                role.name(),
                role.address(Family::V4).to_string()
            )
        };
        let shim = if self.fleet.is_some() {
            " under dyscoctl run"
        } else {
            ""
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
