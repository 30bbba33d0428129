//! This host's interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dysco_agent::links::{below, links};
use nix::ifaddrs::getifaddrs;
use serde::{Serialize, Serializer};

use super::error::ConfigError;

/// An interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its kind, as `ip -d link` has it; empty where the kernel names none.
    pub kind: String,
    /// The names of those that its packets pass as well, since it is made of them: of a
    /// VLAN the one that it is on, of a bridge its ports, and so on.
    pub below: Vec<String>,
    /// Have its packets an Ethernet header? The data plane finds nothing without.
    pub ethernet: bool,
}

impl Interface {
    /// Why no session that passes it can be tracked, and what to do.
    pub fn unusable(&self) -> Option<[String; 2]> {
        if self.ethernet {
            return None;
        }
        let kind = match self.kind.as_str() {
            "" => String::new(),
            kind => format!(" ({kind})"),
        };
        Some([
            format!(
                "{}{kind} carries packets without an Ethernet header, which dyscod does not \
                 read: no session that passes it is tracked, and none can lose its proxy",
                self.name
            ),
            "run client, proxy and server over an Ethernet interface, or use a tunnel that \
             carries Ethernet (tap, gretap, vxlan)"
                .into(),
        ])
    }
}

// As the configuration has it: by name.
impl Serialize for Interface {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.name)
    }
}

/// All interfaces, those without an address included.
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
        // One that went away in between is not there.
        let link = links.iter().find(|link| link.name == name)?;
        let below = below(link, &links).into_iter();
        Some(Interface {
            index: link.index,
            kind: link.kind.clone(),
            below: below.map(|link| link.name.clone()).collect(),
            ethernet: link.ethernet,
            name,
            addresses,
        })
    });
    Ok(interfaces.collect())
}

/// Those by which the kernel drops what it would answer by another (`rp_filter`).
pub fn strict_reverse_path(interfaces: &[Interface]) -> Vec<&Interface> {
    let all = rp_filter("all");
    let strict = |i: &&Interface| is_strict(&all, &rp_filter(&i.name));
    interfaces.iter().filter(strict).collect()
}

/// The setting of an interface, or of all; empty if it cannot be read.
fn rp_filter(interface: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The larger of the two holds (Documentation/networking/ip-sysctl.rst); 2 is the loose one.
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
