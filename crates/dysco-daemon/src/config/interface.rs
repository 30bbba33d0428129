//! This host's interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
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
    let interfaces = by_name.into_iter().filter_map(|(name, addresses)| {
        // One that went away in between is not there.
        let index = if_nametoindex(name.as_str()).ok()?;
        Some(Interface {
            name,
            index,
            addresses,
        })
    });
    Ok(interfaces.collect())
}
