//! What is said of a host as a whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The host in one screen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Its name.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The daemon's version.
    pub version: String,
    /// How long the daemon has been up, in seconds.
    pub uptime_s: u64,
    /// Where programs are attached.
    pub interfaces: Vec<InterfaceReport>,
    /// How many sessions.
    pub sessions: SessionCounts,
    /// Hosts that were talked to.
    pub peers: Vec<PeerReport>,
    /// Where shims report to; a dyscod from before it told so does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shim_socket: Option<PathBuf>,
    /// Processes with the shim loaded.
    pub shim_processes: u64,
    /// Socket pairs that they reported.
    pub pairs: u64,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// How long the certificates in use are valid; a dyscod from before it told so does not
    /// say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeysReport>,
}

/// How long the certificates in use are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// Whole days until the authority's ends.
    pub authority_days: i64,
    /// Whole days until this host's ends.
    pub certificate_days: i64,
}

impl KeysReport {
    /// A certificate that ends sooner is told as one that is to be renewed, in days.
    pub const SOON_DAYS: i64 = 30;

    /// What ends soon, and what to do about it.
    pub fn trouble(&self) -> Option<String> {
        let [authority, certificate] = [self.authority_days, self.certificate_days];
        if authority < KeysReport::SOON_DAYS {
            return Some(format!(
                "the authority's certificate ends in {authority} days; make another authority with 'dyscoctl pki init', and issue the keys of all its hosts anew"
            ));
        }
        (certificate < KeysReport::SOON_DAYS).then(|| {
            format!(
                "this host's certificate ends in {certificate} days; issue another with 'dyscoctl pki issue', copy it here, and run 'dyscoctl reload'"
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

/// Metrics as Prometheus reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsReport {
    /// The page, in the OpenMetrics format.
    pub openmetrics: String,
}

/// An interface with programs on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// How they are attached; `not attached` while there is no interface of this name.
    pub attach: String,
    /// Are relayed packets sent back by XDP there?
    #[serde(default)]
    pub xdp: bool,
    /// Which are.
    pub programs: Vec<String>,
    /// Why sessions that pass there may not be seen, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How many sessions there are in each shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// All that are listed and have not ended; those of a proxy on both its sides.
    #[serde(default)]
    pub live: u64,
    /// Passing, and learnt from.
    pub tracked: u64,
    /// On a path that a middlebox has left; on that middlebox's host each once, though
    /// both its sides are listed.
    pub removed: u64,
    /// Of those, the ones that pass its host by.
    #[serde(default)]
    pub bypass: u64,
    /// Of those, the ones that its host's kernel relays.
    #[serde(default)]
    pub local: u64,
    /// Of those, the ones of which replies go straight to the client.
    #[serde(default, rename = "return")]
    pub returned: u64,
    /// Steered through a chain since they were opened, or given one since; also of
    /// those that a middlebox has left.
    #[serde(default)]
    pub chained: u64,
    /// Being changed.
    pub changing: u64,
    /// Of all these, those that were there before dyscod saw a SYN of theirs.
    #[serde(default)]
    pub adopted: u64,
}

/// A host that was talked to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its address.
    pub address: IpAddr,
    /// Is there a connection?
    pub up: bool,
    /// Round trip of the connection, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
}

/// What came of adopting the sessions that were there first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptReport {
    /// Sessions that were entered now.
    pub adopted: u64,
    /// Sessions that were known.
    pub known: u64,
    /// Sessions that the rules want and that were left.
    pub left: Vec<LeftReport>,
}

/// Sessions that were left, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftReport {
    /// How many.
    pub sessions: u64,
    /// Why.
    pub reason: String,
}
