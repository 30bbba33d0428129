//! The numbers of a daemon, as the engine gives them.

use std::collections::BTreeMap;

use dysco_common::Counter;
use dysco_control::{ControlCounters, PeerStatus};
use dysco_proxy::ShimStats;

use super::changes::Ended;
use crate::api::ApiCounts;

/// Numbers of a daemon at one moment. A snapshot costs the engine counts, and no listing of
/// sessions.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time at which the daemon started, in seconds since 1970.
    pub started: f64,
    /// Certificates in use.
    pub certificates: Vec<Certificate>,
    /// Interfaces of the configuration, with true if the data plane is on them.
    pub interfaces: Vec<(String, bool)>,
    /// Number of sessions, by kind.
    pub sessions: SessionGauges,
    /// Packet counters.
    pub packets: Vec<(Counter, u64)>,
    /// Changes in progress, waiting and ended.
    pub changes: Changes,
    /// Ports of proxies that have left.
    pub ports: Ports,
    /// Hosts with which this daemon has communicated.
    pub peers: Vec<PeerStatus>,
    /// State of the fleet's store, if one is configured.
    pub store: Option<StoreGauges>,
    /// Number of addresses to which sessions may be steered.
    pub chain_neighbours: u64,
    /// Counters of the control channel.
    pub control: ControlCounters,
    /// Counters of the session protocol's messages.
    pub messages: dysco_proto::Stats,
    /// Number of messages that could not be parsed.
    pub malformed: u64,
    /// Counters of the shims' socket.
    pub shim: ShimStats,
    /// Counters of the local API.
    pub api: ApiCounts,
}

/// State of the fleet's store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreGauges {
    /// True if etcd answers.
    pub up: bool,
    /// Time at which this began, in seconds since 1970.
    pub since: f64,
    /// Revision of the policy in force; none if no policy of the store is.
    pub policy: Option<i64>,
    /// True if the store's policy is not in force.
    pub refused: bool,
    /// Number of registered hosts.
    pub hosts: u64,
}

/// Certificate in use.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Owner of the certificate: the host or the authority.
    pub name: &'static str,
    /// Time at which it expires, in seconds since 1970.
    pub not_after: i64,
}

/// Number of sessions, by kind.
#[derive(Clone, Debug, Default)]
pub struct SessionGauges {
    /// Number of sessions, by the states of listings.
    pub by_state: BTreeMap<&'static str, u64>,
    /// Number of sessions that a proxy has left by `bypass`.
    pub bypass: u64,
    /// Number of sessions that a proxy has left by `local`.
    pub local: u64,
    /// Number of sessions that a proxy has left by `return`.
    pub returned: u64,
    /// Number of entries in use.
    pub entries: u64,
    /// Number of all entries.
    pub room: u64,
}

/// Changes in progress, waiting and ended.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Number of changes in progress.
    pub under_way: u64,
    /// Number of changes that have not begun.
    pub waiting: u64,
    /// Changes that have ended.
    pub ended: Ended,
}

/// Ports of proxies that have left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports {
    /// Number of ports held now.
    pub held: u64,
    /// Number of ports that could not be held at the last attempt.
    pub not_held: u64,
}
