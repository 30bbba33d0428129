//! Messages of the local API about a host as a whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use crate::FleetReport;

/// A summary of the host for one screen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Name of the host.
    pub host: String,
    /// Addresses of the host.
    pub addresses: Vec<IpAddr>,
    /// The daemon's version.
    pub version: String,
    /// Time since the start of the daemon, in seconds.
    pub uptime_s: u64,
    /// Interfaces on which programs are attached.
    pub interfaces: Vec<InterfaceReport>,
    /// Number of sessions in each state.
    pub sessions: SessionCounts,
    /// Hosts that this host has communicated with.
    pub peers: Vec<PeerReport>,
    /// Path of the socket that shims report to. Earlier versions of dyscod omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shim_socket: Option<PathBuf>,
    /// Number of processes now whose shims have reported.
    pub shim_processes: u64,
    /// Number of socket pairs that are known of these processes now.
    pub pairs: u64,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Remaining validity of the certificates in use. Earlier versions of dyscod omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeysReport>,
    /// Connection to etcd. It is absent if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
}

/// Remaining validity of the certificates in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// Whole days until the authority's certificate expires.
    pub authority_days: i64,
    /// Whole days until this host's certificate expires.
    pub certificate_days: i64,
}

impl KeysReport {
    /// Number of days before expiry at which a certificate is reported for renewal.
    pub const SOON_DAYS: i64 = 30;

    /// Returns true if a certificate has ended.
    pub fn has_ended(&self) -> bool {
        self.authority_days < 0 || self.certificate_days < 0
    }

    /// Returns the certificate that has ended or ends soon, and a hint.
    pub fn trouble(&self) -> Option<Cause> {
        let ends = |days: i64| match days {
            ..0 => "has ended".to_owned(),
            days => format!("ends in {days} days"),
        };
        let [authority, certificate] = [self.authority_days, self.certificate_days];
        if authority < KeysReport::SOON_DAYS {
            let why = format!("the authority's certificate {}", ends(authority));
            return Some(Cause::new(why).hint(
                "make another authority with 'dyscoctl pki init', and issue the keys of all its hosts anew",
            ));
        }
        (certificate < KeysReport::SOON_DAYS).then(|| {
            let why = format!("this host's certificate {}", ends(certificate));
            Cause::new(why).hint(
                "issue another with 'dyscoctl pki issue', copy it here, and run 'dyscoctl reload'",
            )
        })
    }
}

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// The counters.
    pub counters: BTreeMap<String, u64>,
}

/// Metrics in the format that Prometheus reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsReport {
    /// The page, in the OpenMetrics format.
    pub openmetrics: String,
}

/// An interface with programs attached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// Name of the interface.
    pub name: String,
    /// Method of attachment; `not attached` while no interface has this name.
    pub attach: String,
    /// True if XDP sends back relayed packets on this interface.
    #[serde(default)]
    pub xdp: bool,
    /// Names of the attached programs.
    pub programs: Vec<String>,
    /// Reason why sessions on this interface may be invisible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Hint: a remedy for the trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Number of sessions in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// All sessions that are listed and have not ended. Those of a proxy count on both its sides.
    #[serde(default)]
    pub live: u64,
    /// Sessions that pass and whose numbers the data plane records.
    pub tracked: u64,
    /// Sessions on a path that a middlebox has left. On that middlebox's host each counts once,
    /// although both sides are listed.
    pub removed: u64,
    /// Removed sessions that bypass the middlebox's host.
    #[serde(default)]
    pub bypass: u64,
    /// Removed sessions that the kernel of the middlebox's host relays.
    #[serde(default)]
    pub local: u64,
    /// Removed sessions whose replies go directly to the client.
    #[serde(default, rename = "return")]
    pub returned: u64,
    /// Sessions that were opened through a chain or have received one since, including those that
    /// a middlebox has left.
    #[serde(default)]
    pub chained: u64,
    /// Sessions with a change in progress.
    pub changing: u64,
    /// Sessions, among all of these, that existed before dyscod saw a SYN of them.
    #[serde(default)]
    pub adopted: u64,
}

/// A host that this host has communicated with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Address of the host.
    pub address: IpAddr,
    /// True if there is a connection.
    pub up: bool,
    /// Round-trip time of the connection, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Last known reason for which there is no connection. It is absent while there is one, and from
    /// earlier versions of dyscod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cause>,
}

/// The result of adopting the sessions that existed before the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptReport {
    /// Number of sessions that were adopted now.
    pub adopted: u64,
    /// Number of sessions that were already known.
    pub known: u64,
    /// Sessions that match the rules and were not adopted.
    pub left: Vec<LeftReport>,
}

/// A number of sessions that were not adopted, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftReport {
    /// Number of sessions.
    pub sessions: u64,
    /// Reason.
    pub reason: Cause,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_reported_for_thirty_days() {
        let trouble = |authority_days, certificate_days| {
            let keys = KeysReport {
                authority_days,
                certificate_days,
            };
            keys.trouble().map(|cause| cause.why)
        };
        assert_eq!(trouble(30, 30), None);
        let own = trouble(30, 29).unwrap();
        assert_eq!(own, "this host's certificate ends in 29 days");
        let authority = trouble(29, 29).unwrap();
        assert_eq!(authority, "the authority's certificate ends in 29 days");
        let ended = trouble(400, -1).unwrap();
        assert_eq!(ended, "this host's certificate has ended");
    }
}
