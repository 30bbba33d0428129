//! This host's interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use serde::{Serialize, Serializer};

use super::error::ConfigError;

/// The VLANs of this network namespace, as the kernel's net/8021q/vlanproc.c has them.
const VLANS: &str = "/proc/net/vlan/config";

/// An interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Of a VLAN: the name of the interface that it is on.
    pub on: Option<String>,
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
    // There is none on a kernel without VLANs.
    let vlans = std::fs::read_to_string(VLANS).unwrap_or_default();
    let on = on_which(&vlans);
    let interfaces = by_name.into_iter().filter_map(|(name, addresses)| {
        // One that went away in between is not there.
        let index = if_nametoindex(name.as_str()).ok()?;
        Some(Interface {
            on: on.get(name.as_str()).map(|on| (*on).to_owned()),
            name,
            index,
            addresses,
        })
    });
    Ok(interfaces.collect())
}

/// On which interface each VLAN is: the lines `NAME | ID | INTERFACE`.
fn on_which(vlans: &str) -> BTreeMap<&str, &str> {
    let three = |line| {
        let mut words = str::split(line, '|').map(str::trim);
        let (name, _id, on) = (words.next()?, words.next()?, words.next()?);
        Some((name, on))
    };
    vlans.lines().filter_map(three).collect()
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

    #[test]
    fn vlans_are_on_other_interfaces() {
        let text = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                    eth0.5         | 5  | eth0\nstorage        | 9  | eth0.5\n";
        let on = on_which(text);
        assert_eq!(on.len(), 2);
        assert_eq!((on["eth0.5"], on["storage"]), ("eth0", "eth0.5"));
        assert!(on_which("").is_empty());
    }
}
