//! Addresses, links and their options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;

use crate::Host;
use crate::device::{self, Kind};
use crate::wire::Wire;

/// Role of a host in the lab. The router has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Opens the sessions.
    Client,
    /// Runs the middlebox.
    Proxy,
    /// Accepts the sessions.
    Server,
}

/// Address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Client, Role::Proxy, Role::Server];

    /// Name of the host, and of the router's interface to it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Proxy => "proxy",
            Role::Server => "server",
        }
    }

    /// Address of the host.
    pub fn address(self, family: Family) -> IpAddr {
        address(self, family, 1)
    }

    /// Address of a port of the host.
    pub fn at(self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(family), port)
    }

    pub(crate) fn gateway(self, family: Family) -> IpAddr {
        address(self, family, 254)
    }
}

fn address(role: Role, family: Family, last: u8) -> IpAddr {
    let net = role as u8 + 1;
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, net, last).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Options of a host that differ from the default.
#[derive(Clone, Debug)]
pub struct HostOptions {
    pub(crate) congestion: String,
    pub(crate) sysctls: Vec<(String, String)>,
    pub(crate) offload: bool,
    pub(crate) polled: bool,
    pub(crate) mtu: u32,
    pub(crate) advmss: Option<u32>,
    pub(crate) kind: Kind,
}

impl Default for HostOptions {
    fn default() -> Self {
        // Machines differ in their default algorithm; labs must not.
        let congestion = "cubic".into();
        HostOptions {
            congestion,
            sysctls: vec![],
            offload: true,
            polled: false,
            mtu: 1500,
            advmss: None,
            kind: Kind::Veth,
        }
    }
}

impl HostOptions {
    /// Sets the congestion control.
    pub fn congestion(mut self, algorithm: &str) -> Self {
        self.congestion = algorithm.into();
        self
    }

    /// Sets a sysctl, written with dots.
    pub fn sysctl(mut self, key: &str, value: &str) -> Self {
        self.sysctls.push((key.into(), value.into()));
        self
    }

    /// Sets whether the host offers selective acknowledgements.
    pub fn sack(self, on: bool) -> Self {
        self.sysctl("net.ipv4.tcp_sack", if on { "1" } else { "0" })
    }

    /// Sets whether the host offers timestamps.
    pub fn timestamps(self, on: bool) -> Self {
        self.sysctl("net.ipv4.tcp_timestamps", if on { "1" } else { "0" })
    }

    /// Sets whether the host offers window scaling.
    pub fn window_scaling(self, on: bool) -> Self {
        self.sysctl("net.ipv4.tcp_window_scaling", if on { "1" } else { "0" })
    }

    /// Sets the largest receive buffer, which determines the window scale.
    pub fn receive_buffer(self, bytes: u32) -> Self {
        let first = bytes.min(131_072);
        self.sysctl("net.ipv4.tcp_rmem", &format!("4096 {first} {bytes}"))
    }

    /// Sets explicit congestion notification: requested (1) or off (0).
    pub fn ecn(self, mode: u8) -> Self {
        self.sysctl("net.ipv4.tcp_ecn", &mode.to_string())
    }

    /// Sets the MSS that the host offers, which is less than its MTU would permit.
    pub fn advmss(mut self, bytes: u32) -> Self {
        self.advmss = Some(bytes);
        self
    }

    /// Sets whether the link leaves segmentation and checksums to the device.
    pub fn offload(mut self, on: bool) -> Self {
        self.offload = on;
        self
    }

    /// Sets whether the far end of the link takes frames that the host's XDP sends.
    pub fn polled(mut self, on: bool) -> Self {
        self.polled = on;
        self
    }

    /// Makes the link a pair of tun devices, whose packets have no Ethernet header.
    pub fn headerless(self) -> Self {
        self.kind(Kind::Tun)
    }

    /// Sets the kind of the link.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the MTU of the link.
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }
}

/// Joins a host to the router, and configures addresses and routes of both ends. A link of tun
/// devices lasts as long as the returned wire.
pub(crate) fn join(
    host: &Host,
    router: &Host,
    role: Role,
    options: &HostOptions,
) -> Result<Option<Wire>> {
    let port = role.name();
    let wire = device::make(host, router, role, (options.kind, options.mtu))?;
    let (mut near, mut router_side) = (String::new(), String::new());
    let advmss = options
        .advmss
        .map(|a| format!(" advmss {a}"))
        .unwrap_or_default();
    for (family, bits) in [(Family::V4, 24), (Family::V6, 64)] {
        let nodad = if family == Family::V6 { " nodad" } else { "" };
        let (address, gateway) = (role.address(family), role.gateway(family));
        router_side += &format!("addr add {gateway}/{bits} dev {port}{nodad}\n");
        near += &format!("addr add {address}/{bits} dev eth0{nodad}\n");
        near += "link set eth0 up\n";
        // The route sets the algorithm: the sysctl offers a namespace only the algorithms that the
        // machine permits to all.
        let congestion = &options.congestion;
        near += &format!("route add default via {gateway} congctl {congestion}{advmss}\n");
    }
    router_side += &format!("link set {port} up\n");
    router.input("ip", &["-batch", "-"], &router_side)?;
    for key in ["dad_transmits", "router_solicitations"] {
        host.sysctl(&format!("net.ipv6.conf.eth0.{key}"), "0")?;
        router.sysctl(&format!("net.ipv6.conf.{port}.{key}"), "0")?;
    }
    host.input("ip", &["-batch", "-"], &near)?;
    if !options.offload {
        for (host, device) in [(host, "eth0"), (router, port)] {
            let words = [
                "-K", device, "tx", "off", "tso", "off", "gso", "off", "gro", "off",
            ];
            host.output("ethtool", &words)?;
        }
    }
    options
        .sysctls
        .iter()
        .try_for_each(|(key, value)| host.sysctl(key, value))?;
    Ok(wire)
}
