//! A line: a client, hosts of middleboxes, and a server, in a row.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;

use crate::folder::Folder;
use crate::{Host, require_root};

/// Hosts in a line. Each forwards to the hosts beyond the next one. A host has one address, on its
/// loopback, and the links `left` and `right`. Dropping the line ends everything that runs on it.
/// Its folder stays unless [`Line::finish`] was called.
pub struct Line {
    hosts: Vec<Host>,
    folder: Folder,
}

impl Line {
    /// Creates a line with this number of hosts between its ends.
    pub fn build(name: &str, middleboxes: usize) -> Result<Line> {
        require_root()?;
        let folder = Folder::make(name)?;
        let make = |at: usize| {
            let name = match at {
                0 => "client".to_owned(),
                _ if at == middleboxes + 1 => "server".to_owned(),
                _ => format!("middlebox{at}"),
            };
            let host = Host::new(&name, &folder.path.join(&name))?;
            host.sysctl("net.ipv4.ip_forward", "1")?;
            host.sysctl("net.ipv4.ip_local_port_range", "10000 65000")?;
            Ok(host)
        };
        let hosts = (0..middleboxes + 2).map(make).collect::<Result<_>>()?;
        let line = Line { hosts, folder };
        for at in 0..=middleboxes {
            line.join(at)?;
        }
        for at in 0..line.hosts.len() {
            line.route(at)?;
        }
        Ok(line)
    }

    /// All hosts, from the client to the server.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Host that opens the sessions.
    pub fn client(&self) -> &Host {
        &self.hosts[0]
    }

    /// Host that accepts the sessions.
    pub fn server(&self) -> &Host {
        &self.hosts[self.hosts.len() - 1]
    }

    /// Address of a host. The client has index 0.
    pub fn address(&self, at: usize) -> IpAddr {
        Ipv4Addr::new(10, 9, 0, at as u8 + 1).into()
    }

    /// Address of a port of the server.
    pub fn server_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(self.hosts.len() - 1), port)
    }

    /// Names of a host's links.
    pub fn links(&self, at: usize) -> &'static [&'static str] {
        match at {
            0 => &["right"],
            _ if at + 1 == self.hosts.len() => &["left"],
            _ => &["left", "right"],
        }
    }

    /// Sets whether the links leave segmentation and checksums to their devices, as they do at
    /// first.
    pub fn set_offload(&self, on: bool) -> Result<()> {
        let value = if on { "on" } else { "off" };
        let features = ["tx", "rx", "tso", "gso", "gro"];
        for (at, host) in self.hosts.iter().enumerate() {
            for link in self.links(at) {
                let words = features.iter().flat_map(|feature| [*feature, value]);
                let words: Vec<_> = ["-K", *link].into_iter().chain(words).collect();
                host.output("ethtool", &words)?;
            }
        }
        Ok(())
    }

    /// Limits the rate of each link in both directions, in the syntax of tc. The links continue
    /// while the machine halts for some milliseconds, as wires do: queued data is then sent at
    /// once.
    pub fn limit(&self, rate: &str) -> Result<()> {
        for (at, host) in self.hosts.iter().enumerate() {
            for link in self.links(at) {
                host.limit(link, rate, "2m", "32m")?;
            }
        }
        Ok(())
    }

    /// Ends the line successfully, and keeps nothing of it.
    ///
    /// # Errors
    /// If a process is left on a host after everything there should have ended.
    pub fn finish(mut self, parts: impl Sized) -> Result<()> {
        drop(parts);
        self.folder.finish(&self.hosts)
    }

    pub(crate) fn dir(&self) -> &std::path::Path {
        &self.folder.path
    }

    /// Joins a host to the next one.
    fn join(&self, at: usize) -> Result<()> {
        let ends = [(&self.hosts[at], "right"), (&self.hosts[at + 1], "left")];
        let netns = ends[1].0.netns().display();
        ends[0].0.input(
            "ip",
            &["-batch", "-"],
            &format!("link add right type veth peer name left netns {netns}\n"),
        )?;
        for (end, (host, link)) in ends.into_iter().enumerate() {
            let address = hop(at, end);
            let text = format!("addr add {address}/30 dev {link}\nlink set {link} up\n");
            host.input("ip", &["-batch", "-"], &text)?;
        }
        Ok(())
    }

    /// Configures a host's address and its routes to all others.
    fn route(&self, at: usize) -> Result<()> {
        let own = self.address(at);
        let mut text = format!("addr add {own}/32 dev lo\n");
        for to in (0..self.hosts.len()).filter(|to| *to != at) {
            let via = if to < at { hop(at - 1, 0) } else { hop(at, 1) };
            let to = self.address(to);
            text += &format!("route add {to}/32 via {via} src {own} congctl cubic\n");
        }
        self.hosts[at]
            .input("ip", &["-batch", "-"], &text)
            .map(drop)
    }
}

/// Address of a link's left (0) or right (1) end.
fn hop(link: usize, end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 8, link as u8, end as u8 + 1)
}
