//! This host's interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dysco_agent::links::{Header, below, links};
use dysco_explain::Cause;
use nix::ifaddrs::getifaddrs;
use serde::{Serialize, Serializer};

use super::error::ConfigError;

/// An interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// Kind, as `ip -d link` prints it; empty if the kernel names none.
    pub kind: String,
    /// Names of the interfaces below, which its packets pass as well: for a VLAN the interface
    /// that carries it, for a bridge its ports, and so on.
    pub below: Vec<String>,
    /// The header with which its packets pass the data plane.
    pub header: Header,
}

impl Interface {
    /// Returns the reason why no session on this interface can be tracked, and a hint.
    /// Returns `None` if sessions can be tracked.
    pub fn unusable(&self) -> Option<Cause> {
        if self.header != Header::Other {
            return None;
        }
        let kind = match self.kind.as_str() {
            "" => String::new(),
            kind => format!(" ({kind})"),
        };
        let why = format!(
            "{}{kind} carries packets with a header that dyscod does not read: no session that \
             passes it is tracked, and none can lose its proxy",
            self.name
        );
        Some(Cause::new(why).hint(
            "use an Ethernet interface, or a tunnel with one remote end (WireGuard, tun, ipip, sit, \
             gre) or with Ethernet inside (tap, gretap, vxlan)",
        ))
    }
}

/// Settings by which a bridge passes its packets to the IP rules of netfilter (br_netfilter). They
/// are 1 by default.
const BRIDGE_RULES: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];

impl Interface {
    /// Returns the reason why no session on this interface can be tracked, or none can be changed.
    pub fn obstacle(&self) -> Option<Cause> {
        self.unusable().or_else(|| self.filtered())
    }

    /// Returns the reason why no session on this interface can be changed, and a hint. Netfilter
    /// sees packets of a bridge before the data plane. Its connection tracking would take those of
    /// a new path for invalid, and this host's firewall could drop them.
    pub fn filtered(&self) -> Option<Cause> {
        if self.kind != "bridge" {
            return None;
        }
        let name = BRIDGE_RULES.iter().find(|name| {
            let path = format!("/proc/sys/net/bridge/{name}");
            std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
        })?;
        Some(
            Cause::new(format!(
                "netfilter sees the packets of the bridge {} before dyscod (net.bridge.{name} = 1), \
                 and could drop those of a new path",
                self.name
            ))
            .hint(format!(
                "'sysctl net.bridge.{}=0 net.bridge.{}=0', unless the rules of this host are for \
                 bridged packets",
                BRIDGE_RULES[0], BRIDGE_RULES[1]
            )),
        )
    }
}

// The configuration contains the name.
impl Serialize for Interface {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.name)
    }
}

/// Returns all interfaces, including those without an address.
pub fn list() -> Result<Vec<Interface>, ConfigError> {
    let mut by_name: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let entries = getifaddrs().map_err(|e| ConfigError::Interfaces(e.into()))?;
    for entry in entries {
        let addresses = by_name.entry(entry.interface_name).or_default();
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(v4) = address.as_sockaddr_in() {
            addresses.push(v4.ip().into());
        } else if let Some(v6) = address.as_sockaddr_in6() {
            addresses.push(v6.ip().into());
        }
    }
    let links = links().map_err(ConfigError::Interfaces)?;
    let interfaces = by_name.into_iter().filter_map(|(name, addresses)| {
        // The interface disappeared between the two queries.
        let link = links.iter().find(|link| link.name == name)?;
        let below = below(link, &links).into_iter();
        Some(Interface {
            index: link.index,
            kind: link.kind.clone(),
            below: below.map(|link| link.name.clone()).collect(),
            header: link.header,
            name,
            addresses,
        })
    });
    Ok(interfaces.collect())
}

/// Returns the interfaces on which the kernel drops a packet if it would send the reply by
/// another interface (`rp_filter`).
pub fn strict_reverse_path(interfaces: &[Interface]) -> Vec<&Interface> {
    let all = rp_filter("all");
    let strict = |i: &&Interface| is_strict(&all, &rp_filter(&i.name));
    interfaces.iter().filter(strict).collect()
}

/// Returns the `rp_filter` setting of an interface, or of `all`; empty if it cannot be read.
fn rp_filter(interface: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns true if the setting in force is 1, the strict one. The larger of the two values
/// applies (Documentation/networking/ip-sysctl.rst); 2 is the loose setting.
fn is_strict(all: &str, own: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u8>().unwrap_or(0);
    number(all).max(number(own)) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_setting_decides_whether_the_way_back_is_looked_at() {
        for (all, own, strict) in [
            ("0\n", "0\n", false),
            ("1\n", "0\n", true),
            ("0\n", "1\n", true),
            ("2\n", "1\n", false),
            ("1\n", "2\n", false),
            ("", "", false),
        ] {
            assert_eq!(is_strict(all, own), strict, "{all:?} {own:?}");
        }
    }
}
