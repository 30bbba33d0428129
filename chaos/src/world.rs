//! The hosts of a plan and their links, as network namespaces around one router.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use dysco_netns::Host;
use dysco_netns::wire::{self, Wire};

use crate::boxes::Narrow;
use crate::plan::{HostPlan, Link, Part, Plan, address, gateway};

/// Prefix of the names of user-space devices at the router. The router's rules have already seen
/// packets from these devices.
pub(crate) const DEVICE: &str = "box";

/// Hosts that exist.
pub(crate) struct World {
    /// Hosts by number.
    pub hosts: BTreeMap<u8, Arc<Host>>,
    /// Router that joins all hosts.
    pub router: Arc<Host>,
    /// Wires that carry packets between tun devices.
    _wires: Vec<Wire>,
    /// Paths that have been made narrow.
    narrow: Mutex<Vec<Narrow>>,
}

impl World {
    /// Creates the hosts of a plan. Their logs go to folders in `dir`.
    pub(crate) fn build(plan: &Plan, dir: &Path) -> Result<World> {
        let make = |name: &str| Host::new(name, &dir.join(name));
        let router = make("router")?;
        for (key, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
        ] {
            router.sysctl(key, value)?;
        }
        router.input("nft", &["-f", "-"], TABLE)?;
        let mut hosts = BTreeMap::new();
        let mut wires = Vec::new();
        for plan in &plan.hosts {
            let host = make(&plan.name())?;
            join(&host, &router, plan, &mut wires)
                .with_context(|| format!("failed to join {}", plan.name()))?;
            hosts.insert(plan.number, Arc::new(host));
        }
        Ok(World {
            hosts,
            router: Arc::new(router),
            _wires: wires,
            narrow: Mutex::default(),
        })
    }

    /// Returns a host.
    ///
    /// # Errors
    /// If the plan has no host of this number.
    pub(crate) fn host(&self, number: u8) -> Result<&Arc<Host>> {
        let host = self.hosts.get(&number);
        host.with_context(|| format!("the plan has no host {number}"))
    }

    /// Takes a host's link down, or brings it up again.
    pub(crate) fn set_link(&self, plan: &HostPlan, up: bool) -> Result<()> {
        // The router's end changes: addresses and routes of the host stay.
        let state = if up { "up" } else { "down" };
        let ports = match plan.link {
            Link::TwoUplinks => vec![plan.name(), second(plan)],
            _ => vec![plan.name()],
        };
        for port in ports {
            self.router.output("ip", &["link", "set", &port, state])?;
        }
        if up {
            self.router
                .input("ip", &["-batch", "-"], &routes_back(plan))?;
            for path in self.narrow().iter() {
                path.restore(&self.router, plan.number)?;
            }
        }
        Ok(())
    }

    /// Makes a path narrow again after each time at which a link of it was down.
    pub(crate) fn remember(&self, path: Narrow) {
        self.narrow().push(path);
    }

    fn narrow(&self) -> MutexGuard<'_, Vec<Narrow>> {
        self.narrow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the interfaces of a host that sessions pass, for the configuration of its `dyscod`.
pub(crate) fn interfaces(plan: &HostPlan) -> Vec<&'static str> {
    match plan.link {
        Link::Bridge => vec!["br0"],
        Link::TwoUplinks => vec!["eth0", "eth1"],
        Link::Veth | Link::Tun | Link::Nat => vec!["eth0"],
    }
}

/// Initial rules. Boxes add further rules. Packets from a user-space box have already passed them.
const TABLE: &str = "
table inet chaos {
  chain again { type filter hook prerouting priority raw; iifname \"box*\" notrack; }
  chain early { type filter hook prerouting priority raw; }
  chain forward {
    type filter hook forward priority 0
    iifname \"box*\" accept
    meta l4proto tcp jump boxes
  }
  chain boxes { }
}
";

const STRICT: &str = "
table inet strict {
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto != tcp accept
    ct state invalid drop
    ct state established accept
    ct state new tcp flags & (fin|syn|rst|ack) == syn accept
  }
}
";

/// Returns the router's port of a host's second uplink.
fn second(plan: &HostPlan) -> String {
    format!("{}b", plan.name())
}

/// Joins a host to the router by its kind of link.
fn join(host: &Host, router: &Host, plan: &HostPlan, wires: &mut Vec<Wire>) -> Result<()> {
    host.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    host.sysctl("net.ipv4.conf.default.rp_filter", "0")?;
    let (port, mtu) = (plan.name(), plan.mtu);
    let own = match plan.link {
        Link::Bridge => "br0",
        _ => "eth0",
    };
    match plan.link {
        Link::Tun => wires.push(wire::join((host, "eth0"), (router, &port))?),
        _ => veth(router, &port, host, "eth0", mtu)?,
    }
    if plan.link == Link::Bridge {
        let text = format!(
            "link add br0 type bridge\nlink set eth0 master br0\nlink set br0 mtu {mtu}\nlink set br0 up\n"
        );
        host.input("ip", &["-batch", "-"], &text)?;
    }
    if plan.link == Link::TwoUplinks {
        veth(router, &second(plan), host, "eth1", mtu)?;
    }
    for (host, device) in [(router, port.as_str()), (host, own)] {
        for key in ["dad_transmits", "router_solicitations"] {
            host.sysctl(&format!("net.ipv6.conf.{device}.{key}"), "0")?;
        }
    }
    router.input("ip", &["-batch", "-"], &router_side(plan))?;
    host.input("ip", &["-batch", "-"], &near(plan, own))?;
    if plan.link == Link::Tun {
        let mtu = mtu.to_string();
        host.output("ip", &["link", "set", own, "mtu", &mtu])?;
    }
    if plan.link == Link::Nat {
        let own = address(plan.number, false);
        let rule = format!(
            "table ip nat{} {{ chain post {{ type nat hook postrouting priority srcnat; ip saddr {own} masquerade; }}; }}\n",
            plan.number
        );
        router.input("nft", &["-f", "-"], &rule)?;
    }
    if plan.part == Part::Firewall {
        host.sysctl("net.ipv4.ip_forward", "1")?;
        host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        host.input("nft", &["-f", "-"], STRICT)?;
        host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    }
    (plan.sysctls.iter()).try_for_each(|(key, value)| host.sysctl(key, value))
}

/// Returns the commands that set up the host's end of its link, which is the device `own`.
fn near(plan: &HostPlan, own: &str) -> String {
    let mut near = String::new();
    for (v6, bits, nodad) in [(false, 24, ""), (true, 64, " nodad")] {
        let (own_address, gateway) = (address(plan.number, v6), gateway(plan.number, v6));
        near += &format!("addr add {own_address}/{bits} dev {own}{nodad}\nlink set {own} up\n");
        near += &match (plan.link, v6) {
            // The host sends by the second uplink, and receives replies by the first.
            (Link::TwoUplinks, false) => {
                let n = plan.number;
                format!(
                    "addr add 10.1.{n}.1/24 dev eth1\nlink set eth1 up\nroute add default via 10.1.{n}.254 src {own_address} congctl cubic\n"
                )
            }
            (Link::Tun, _) => {
                format!("route add default dev {own} src {own_address} congctl cubic\n")
            }
            _ => format!("route add default via {gateway} congctl cubic\n"),
        };
    }
    near
}

/// Returns the commands that set up the router's end of a host's link.
fn router_side(plan: &HostPlan) -> String {
    let port = plan.name();
    let mut router_side = String::new();
    for (v6, bits, nodad) in [(false, 24, ""), (true, 64, " nodad")] {
        let gateway = gateway(plan.number, v6);
        router_side += &format!("addr add {gateway}/{bits} dev {port}{nodad}\n");
    }
    router_side += &format!("link set {port} up\n");
    if plan.link == Link::TwoUplinks {
        let (n, second) = (plan.number, second(plan));
        router_side += &format!("addr add 10.1.{n}.254/24 dev {second}\nlink set {second} up\n");
    }
    router_side
}

/// Returns the commands that restore what a link that was down has lost at the router.
fn routes_back(plan: &HostPlan) -> String {
    let v6 = gateway(plan.number, true);
    format!("addr replace {v6}/64 dev {} nodad\n", plan.name())
}

fn veth(router: &Host, port: &str, host: &Host, device: &str, mtu: u32) -> Result<()> {
    let netns = host.netns().display();
    let text =
        format!("link add {port} mtu {mtu} type veth peer name {device} mtu {mtu} netns {netns}\n");
    router.input("ip", &["-batch", "-"], &text)?;
    host.output("ip", &["link", "set", device, "up"]).map(drop)
}

#[cfg(test)]
mod tests;
