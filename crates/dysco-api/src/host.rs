//! Names of hosts in requests: `self`, an address or a name.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// A host in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum HostName {
    /// The host that receives the request.
    This,
    /// The host with this address.
    Address(IpAddr),
    /// The host with this name. The daemon knows only the name of its own host and resolves none.
    Name(String),
}

impl HostName {
    /// Replaces the name by its address, if the resolver knows one. A loopback address is
    /// ignored, because a host may resolve its own name to it, and its daemon knows a better
    /// address. Blocks until the resolver answers.
    pub fn look_up(&mut self) {
        let HostName::Name(name) = self else { return };
        let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        let mut addresses = found.map(|a| a.ip().to_canonical());
        if let Some(address) = addresses.next().filter(|ip| !ip.is_loopback()) {
            *self = HostName::Address(address);
        }
    }
}

impl FromStr for HostName {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        if s == "self" {
            return Ok(HostName::This);
        }
        if let Ok(address) = s.parse::<IpAddr>() {
            return Ok(HostName::Address(address.to_canonical()));
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if s.is_empty() || s.len() > 253 || !s.bytes().all(allowed) {
            let cause = Cause::new(format!("'{s}' names no host"));
            return Err(cause.hint("give 'self', an address, or a host name"));
        }
        Ok(HostName::Name(s.to_owned()))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::This => f.write_str("self"),
            HostName::Address(address) => address.fmt(f),
            HostName::Name(name) => f.write_str(name),
        }
    }
}

impl From<HostName> for String {
    fn from(host: HostName) -> String {
        host.to_string()
    }
}

impl TryFrom<String> for HostName {
    type Error = Cause;

    fn try_from(s: String) -> Result<Self, Cause> {
        s.parse()
    }
}
