//! Kinds of links between a host and the router.

use anyhow::{Context, Result};

use crate::wire::{self, Wire};
use crate::{Host, Role};

/// Kind of the devices that a host and the router are joined by. Some need modules that a kernel
/// may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// A pair of veth devices.
    #[default]
    Veth,
    /// A pair of tun devices, which this process joins. Packets have no Ethernet header.
    Tun,
    /// A VLAN at both ends.
    Vlan,
    /// A bond of one device on the host.
    Bond,
    /// A bridge with one port on the host.
    Bridge,
    /// A macvlan on the host.
    Macvlan,
    /// An ipvlan on the host.
    Ipvlan,
    /// A tunnel with Ethernet inside.
    Vxlan,
    /// A tunnel of IP packets.
    Gre,
    /// A tunnel of IPv4 packets, without a header of its own.
    Ipip,
    /// An encrypted tunnel of IP packets.
    Wireguard,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 11] = [
        Kind::Veth,
        Kind::Tun,
        Kind::Vlan,
        Kind::Bond,
        Kind::Bridge,
        Kind::Macvlan,
        Kind::Ipvlan,
        Kind::Vxlan,
        Kind::Gre,
        Kind::Ipip,
        Kind::Wireguard,
    ];

    /// Returns the name, as `ip link` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Veth => "veth",
            Kind::Tun => "tun",
            Kind::Vlan => "vlan",
            Kind::Bond => "bond",
            Kind::Bridge => "bridge",
            Kind::Macvlan => "macvlan",
            Kind::Ipvlan => "ipvlan",
            Kind::Vxlan => "vxlan",
            Kind::Gre => "gre",
            Kind::Ipip => "ipip",
            Kind::Wireguard => "wireguard",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns true if both ends have a device of this kind above a pair of veth devices.
    const fn has_two_upper_ends(self) -> bool {
        matches!(
            self,
            Kind::Vlan | Kind::Vxlan | Kind::Gre | Kind::Ipip | Kind::Wireguard
        )
    }
}

/// Name of the veth device below the host's `eth0`.
const UNDER: &str = "under";

/// The two ends of a link.
struct Ends<'a> {
    host: &'a Host,
    router: &'a Host,
    /// Name of the router's device.
    port: &'static str,
    /// Number of the link, which no other link of the router has.
    number: u8,
    /// Name of the router's veth device below it.
    under: String,
    /// Addresses of the veth devices: the host's and the router's.
    outer: [String; 2],
}

/// Makes the devices of a link: `eth0` on the host, and the port on the router. A link of tun
/// devices lasts as long as the returned wire.
pub(crate) fn make(
    host: &Host,
    router: &Host,
    role: Role,
    (kind, mtu): (Kind, u32),
) -> Result<Option<Wire>> {
    let outer = [1, 2].map(|last| format!("192.168.{}.{last}", role as u8 + 1));
    let ends = Ends {
        host,
        router,
        port: role.name(),
        number: role as u8 + 1,
        under: format!("u{}", role.name()),
        outer,
    };
    match kind {
        Kind::Tun => {
            let wire = wire::join((host, "eth0"), (router, ends.port))?;
            for (host, name) in [(host, "eth0"), (router, ends.port)] {
                host.output("ip", &["link", "set", name, "mtu", &mtu.to_string()])?;
            }
            return Ok(Some(wire));
        }
        Kind::Veth => ends.pair(ends.port, "eth0", mtu)?,
        _ if kind.has_two_upper_ends() => {
            ends.pair(&ends.under, UNDER, mtu)?;
            ends.upper(kind)?;
        }
        _ => {
            ends.pair(ends.port, UNDER, mtu)?;
            ends.of_host(kind)?;
        }
    }
    Ok(None)
}

impl Ends<'_> {
    fn pair(&self, port: &str, name: &str, mtu: u32) -> Result<()> {
        let netns = self.host.netns().display();
        let text = format!(
            "link add {port} mtu {mtu} type veth peer name {name} mtu {mtu} netns {netns}\n"
        );
        self.router.input("ip", &["-batch", "-"], &text).map(drop)
    }

    /// Makes the device of a kind that only the host has.
    fn of_host(&self, kind: Kind) -> Result<()> {
        let text = match kind {
            Kind::Bond => format!(
                "link add eth0 type bond mode active-backup\nlink set {UNDER} master eth0\n"
            ),
            Kind::Bridge => {
                format!("link add eth0 type bridge\nlink set {UNDER} master eth0\n")
            }
            Kind::Macvlan => format!("link add link {UNDER} name eth0 type macvlan mode bridge\n"),
            _ => format!("link add link {UNDER} name eth0 type ipvlan mode l2\n"),
        };
        let text = format!("{text}link set {UNDER} up\n");
        self.host.input("ip", &["-batch", "-"], &text).map(drop)
    }

    /// Makes the devices of a kind that both ends have.
    fn upper(&self, kind: Kind) -> Result<()> {
        let [near, peer] = &self.outer;
        let under = self.under.as_str();
        let ends = [
            (self.host, "eth0", UNDER, [near, peer]),
            (self.router, self.port, under, [peer, near]),
        ];
        for (host, name, under, [own, other]) in ends {
            let device = match kind {
                Kind::Vlan => format!("link add link {under} name {name} type vlan id 5\n"),
                Kind::Vxlan => format!(
                    "link add {name} type vxlan id {} local {own} remote {other} dstport 4789 dev {under}\n",
                    self.number
                ),
                Kind::Gre | Kind::Ipip => {
                    let kind = kind.name();
                    format!("link add {name} type {kind} local {own} remote {other}\n")
                }
                _ => format!("link add {name} type wireguard\n"),
            };
            let text = format!("addr add {own}/24 dev {under}\nlink set {under} up\n{device}");
            host.input("ip", &["-batch", "-"], &text)?;
        }
        match kind {
            Kind::Wireguard => self.exchange_keys(),
            _ => Ok(()),
        }
    }

    fn exchange_keys(&self) -> Result<()> {
        let make = |host: &Host| -> Result<[String; 2]> {
            let private = host.output("wg", &["genkey"])?;
            let public = host.input("wg", &["pubkey"], &private)?;
            Ok([private, public.trim().to_owned()])
        };
        let keys = [make(self.host)?, make(self.router)?];
        let [near, peer] = &self.outer;
        // The router has a port for each of its links.
        let port = (51820 + u32::from(self.number)).to_string();
        let ends = [
            (self.host, "eth0", &keys[0], &keys[1], peer),
            (self.router, self.port, &keys[1], &keys[0], near),
        ];
        for (host, name, own, other, address) in ends {
            let endpoint = format!("{address}:{port}");
            let words = [
                "set",
                name,
                "listen-port",
                &port,
                "private-key",
                "/proc/self/fd/0",
                "peer",
                &other[1],
                "endpoint",
                &endpoint,
                "allowed-ips",
                "0.0.0.0/0,::/0",
            ];
            host.input("wg", &words, &own[0])
                .context("failed to set the keys of WireGuard")?;
        }
        Ok(())
    }
}
