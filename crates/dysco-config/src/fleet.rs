//! The store of a fleet's policy and hosts: its settings, and the URLs of its members.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use dysco_explain::Cause;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Config, values};

/// Port of etcd for its clients.
const PORT: u16 = 2379;

/// Settings of the store of the fleet's policy and hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fleet {
    /// Members of etcd. Without any, the policy and the peers are those of the files.
    pub etcd: Vec<EtcdUrl>,
    /// Prefix of the keys, which ends without a slash.
    pub prefix: String,
    /// Time after which the entry of a host that is gone ends.
    #[serde(serialize_with = "values::as_secs", rename = "lease_s")]
    pub lease: Duration,
    /// Certificate of the authority that etcd's certificate has to be of.
    pub ca: PathBuf,
    /// Certificate of this host for etcd.
    pub cert: PathBuf,
    /// Key of this host for etcd.
    pub key: PathBuf,
}

impl Config {
    /// True if etcd has the policy and the hosts.
    pub fn has_store(&self) -> bool {
        !self.fleet.etcd.is_empty()
    }
}

/// URL of a member of etcd. Its form is `https://HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdUrl {
    /// True for `https`.
    pub tls: bool,
    /// Address without brackets, or DNS name.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let EtcdUrl { host, port, .. } = self;
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

impl FromStr for EtcdUrl {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' is no URL of etcd"))
                .hint(format!("write it like https://10.0.0.5:{PORT}"))
        };
        let (scheme, rest) = s.split_once("://").ok_or_else(bad)?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(bad()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(bad)?;
                host.parse::<Ipv6Addr>().map_err(|_| bad())?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or_else(bad)?),
                };
                (host, port)
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = port.map_or(Ok(PORT), str::parse).map_err(|_| bad())?;
        let in_name = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || port == 0 || !host.chars().all(in_name) {
            return Err(bad());
        }
        Ok(EtcdUrl {
            tls,
            host: host.to_owned(),
            port,
        })
    }
}

impl<'de> Deserialize<'de> for EtcdUrl {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        values::parsed(d)
    }
}

impl Serialize for EtcdUrl {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_scheme_a_host_and_a_port() {
        let same = |s: &str| s.parse::<EtcdUrl>().map(|url| url.to_string());
        for url in [
            "https://10.0.0.5:2379",
            "http://localhost:1",
            "https://[fd00::5]:2379",
            "https://etcd-1.example:443",
        ] {
            assert_eq!(same(url).as_deref(), Ok(url));
        }
        assert_eq!(same("https://etcd/").unwrap(), "https://etcd:2379");
        assert_eq!(same("https://[::1]").unwrap(), "https://[::1]:2379");
        for bad in [
            "",
            "10.0.0.5:2379",
            "ftp://a:1",
            "https://",
            "https://a:0",
            "https://a:b",
            "https://a:1/x",
            "https://[10.0.0.5]:1",
            "https://[::1",
            "https://u@a:1",
        ] {
            let error = same(bad).unwrap_err();
            assert!(error.hint.is_some(), "{bad}");
        }
    }
}
