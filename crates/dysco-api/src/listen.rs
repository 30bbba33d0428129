//! Addresses of a proxy's listeners.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use dysco_explain::Cause;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The address of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenAddress {
    /// IP address; `None` stands for all addresses.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl ListenAddress {
    /// Returns the socket addresses of the listener. A listener on all addresses has one of each
    /// family.
    pub fn socket_addresses(&self) -> Vec<SocketAddr> {
        let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let ips = self.ip.map_or(any.to_vec(), |ip| vec![ip]);
        ips.into_iter()
            .map(|ip| SocketAddr::new(ip, self.port))
            .collect()
    }

    /// Returns true if a socket with this address belongs to the listener.
    pub fn matches(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.port == address.port() && self.ip.is_none_or(|own| own == ip)
    }
}

impl FromStr for ListenAddress {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' is no listener"))
                .hint("write \"10.0.2.1:8080\", \"[::1]:8080\" or \":8080\"")
        };
        let (ip, port) = match s.strip_prefix(':').or(s.strip_prefix("*:")) {
            Some(port) => (None, port.parse().map_err(|_| bad())?),
            None => {
                let address: SocketAddr = s.parse().map_err(|_| bad())?;
                let ip = address.ip().to_canonical();
                (Some(ip).filter(|ip| !ip.is_unspecified()), address.port())
            }
        };
        match port {
            0 => Err(bad()),
            port => Ok(ListenAddress { ip, port }),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(Parsed)
    }
}

/// Visitor that parses the address, so that the deserializer of a file adds the place to an
/// error.
struct Parsed;

impl Visitor<'_> for Parsed {
    type Value = ListenAddress;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<ListenAddress, E> {
        s.parse().map_err(E::custom)
    }
}
