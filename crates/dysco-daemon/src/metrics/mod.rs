//! Metrics, for Prometheus and for `status`: the engine gives a snapshot of its numbers,
//! and a page is made of that. `families` declares every metric; `server` hands pages out.

mod changes;
mod families;
mod packets;
mod page;
mod server;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeMap;

use dysco_common::Counter;
use dysco_control::{ControlCounters, PeerStatus};
use dysco_proxy::ShimStats;

use crate::api::ApiCounts;

pub use changes::{ChangeKind, Durations, End, Ended};
pub use page::{Format, Page};
pub use server::{MetricsError, Scrape, Server, ServerConfig, serve};

/// The numbers of a daemon at one moment. Taking one costs the engine counts, and no
/// listing of sessions.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When the daemon started, in seconds since 1970.
    pub started: f64,
    /// The certificates in use.
    pub certificates: Vec<Certificate>,
    /// The interfaces of the configuration, and whether the data plane is on them.
    pub interfaces: Vec<(String, bool)>,
    /// How many sessions there are.
    pub sessions: SessionGauges,
    /// What happened to packets.
    pub packets: Vec<(Counter, u64)>,
    /// Changes.
    pub changes: Changes,
    /// Ports of proxies that have left.
    pub ports: Ports,
    /// Hosts that were talked to.
    pub peers: Vec<PeerStatus>,
    /// Addresses to which sessions may be steered.
    pub chain_neighbours: u64,
    /// The control channel.
    pub control: ControlCounters,
    /// Messages of the session protocol.
    pub messages: dysco_proto::Stats,
    /// Messages that could not be parsed.
    pub malformed: u64,
    /// The shims' socket.
    pub shim: ShimStats,
    /// The local API.
    pub api: ApiCounts,
}

impl Snapshot {
    /// Makes the page of it.
    pub fn page(&self) -> Page {
        families::page(self)
    }

    /// Returns what `status` lists as counters.
    pub fn listed(&self) -> BTreeMap<String, u64> {
        let mut listed = self.page().listed();
        listed.extend(families::sums(self));
        listed
    }
}

/// A certificate in use.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Whose it is.
    pub name: &'static str,
    /// When it expires, in seconds since 1970.
    pub not_after: i64,
}

/// How many sessions there are.
#[derive(Clone, Debug, Default)]
pub struct SessionGauges {
    /// By the words of listings.
    pub by_state: BTreeMap<&'static str, u64>,
    /// Those that a proxy has left by `bypass`.
    pub bypass: u64,
    /// The same by `local`.
    pub local: u64,
    /// The same by `return`.
    pub returned: u64,
    /// Entries in use.
    pub entries: u64,
    /// Entries that there are.
    pub room: u64,
}

/// Changes that are under way, and that ended.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// In progress.
    pub under_way: u64,
    /// Not begun.
    pub waiting: u64,
    /// Over.
    pub ended: Ended,
}

/// Ports of proxies that have left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports {
    /// Held now.
    pub held: u64,
    /// Not held, as was tried last.
    pub not_held: u64,
}
