//! A star: a client, a server and any number of middleboxes' hosts around one router, which counts
//! the packets from each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::folder::Folder;
use crate::wire::{self, Wire};
use crate::{Host, require_root};

/// Hosts around a router, each with the link `eth0`: the client 10.0.1.1, the server 10.0.2.1, the
/// middleboxes' hosts `fw1` 10.0.3.1 and so on, which forward. Dropping the star ends everything
/// that runs on it. Its folder stays unless [`Star::finish`] was called.
pub struct Star {
    /// The client, the server, and then the middleboxes' hosts.
    hosts: Vec<Host>,
    router: Host,
    /// The links without an Ethernet header.
    wires: Vec<Wire>,
    folder: Folder,
}

/// Numbers of TCP packets that the router has forwarded, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// Packets from end to end.
    pub direct: u64,
    /// Packets from each middlebox's host.
    pub through: Vec<u64>,
}

impl Star {
    /// Creates a star with this number of middleboxes' hosts.
    pub fn build(name: &str, middleboxes: usize) -> Result<Star> {
        Star::build_over(name, middleboxes, false)
    }

    /// Creates such a star with links of tun devices, whose packets have no Ethernet header.
    pub fn build_headerless(name: &str, middleboxes: usize) -> Result<Star> {
        Star::build_over(name, middleboxes, true)
    }

    fn build_over(name: &str, middleboxes: usize, headerless: bool) -> Result<Star> {
        require_root()?;
        let folder = Folder::make(name)?;
        let make = |name: &str| Host::new(name, &folder.path.join(name));
        let names = ["client".to_owned(), "server".to_owned()].into_iter();
        let names = names.chain((1..=middleboxes).map(|n| format!("fw{n}")));
        let hosts = names.map(|name| make(&name)).collect::<Result<_>>()?;
        let router = make("router")?;
        let mut star = Star {
            hosts,
            router,
            wires: Vec::new(),
            folder,
        };
        for host in star.middleboxes().iter().chain([&star.router]) {
            host.sysctl("net.ipv4.ip_forward", "1")?;
        }
        for at in 0..star.hosts.len() {
            let wire = star.join(at, headerless)?;
            star.wires.extend(wire);
        }
        star.count()?;
        Ok(star)
    }

    /// Host that opens the sessions.
    pub fn client(&self) -> &Host {
        &self.hosts[0]
    }

    /// Host that accepts the sessions.
    pub fn server(&self) -> &Host {
        &self.hosts[1]
    }

    /// Hosts of the middleboxes.
    pub fn middleboxes(&self) -> &[Host] {
        &self.hosts[2..]
    }

    /// All hosts except the router.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Address of one of [`Star::hosts`].
    pub fn address(&self, at: usize) -> IpAddr {
        address(at, 1).into()
    }

    /// Address of a port of the server.
    pub fn server_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(1), port)
    }

    /// Numbers of packets so far, by path.
    pub fn ways(&self) -> Result<Ways> {
        let text = self.router.output("nft", &["-j", "list", "counters"])?;
        let json: Value = serde_json::from_str(&text).context("nft did not print JSON")?;
        let all = json["nftables"].as_array().cloned().unwrap_or_default();
        let of = |name: &str| {
            let found = all.iter().map(|item| &item["counter"]);
            let mut found = found.filter(|counter| counter["name"] == name);
            let packets = found.next().and_then(|c| c["packets"].as_u64());
            packets.with_context(|| format!("nft did not say the packets of {name}: {text}"))
        };
        let through = self.middleboxes().iter().map(|host| of(host.name()));
        Ok(Ways {
            direct: of("direct")?,
            through: through.collect::<Result<_>>()?,
        })
    }

    /// Ends the star successfully, and keeps nothing of it.
    ///
    /// # Errors
    /// If a process is left on a host after everything there should have ended.
    pub fn finish(mut self, parts: impl Sized) -> Result<()> {
        drop(parts);
        self.folder.finish(self.hosts.iter().chain([&self.router]))
    }

    pub(crate) fn dir(&self) -> &std::path::Path {
        &self.folder.path
    }

    fn join(&self, at: usize, headerless: bool) -> Result<Option<Wire>> {
        let host = &self.hosts[at];
        let (port, netns) = (host.name(), host.netns().display());
        let (own, gateway) = (address(at, 1), address(at, 254));
        let wire = if headerless {
            Some(wire::join((host, "eth0"), (&self.router, port))?)
        } else {
            let pair = format!("link add {port} type veth peer name eth0 netns {netns}\n");
            self.router.input("ip", &["-batch", "-"], &pair)?;
            None
        };
        let router_side = format!("addr add {gateway}/24 dev {port}\nlink set {port} up\n");
        let near = format!(
            "addr add {own}/24 dev eth0\nlink set eth0 up\n\
             route add default via {gateway} congctl cubic\n"
        );
        self.router.input("ip", &["-batch", "-"], &router_side)?;
        host.input("ip", &["-batch", "-"], &near)?;
        Ok(wire)
    }

    fn count(&self) -> Result<()> {
        let mut table = String::from("table inet star {\ncounter direct { }\n");
        let mut rules = String::from(
            "iifname client oifname server counter name direct\n\
             iifname server oifname client counter name direct\n",
        );
        for host in self.middleboxes() {
            let name = host.name();
            table += &format!("counter {name} {{ }}\n");
            rules += &format!("iifname {name} counter name {name}\n");
        }
        table += &format!(
            "chain forward {{\ntype filter hook forward priority 0\n\
             meta l4proto != tcp accept\n{rules}}}\n}}\n"
        );
        self.router.input("nft", &["-f", "-"], &table).map(drop)
    }
}

fn address(at: usize, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, at as u8 + 1, last)
}
