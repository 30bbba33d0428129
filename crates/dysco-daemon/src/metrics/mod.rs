//! Metrics, for Prometheus and for `status`. The engine gives a snapshot of its numbers, from which
//! a page is made. `families` declares every metric; `server` serves pages.

mod changes;
mod families;
mod handshakes;
mod packets;
mod page;
mod server;
mod snapshot;
#[cfg(test)]
mod tests;
mod tls;

pub use changes::{ChangeKind, Durations, End, Ended};
pub use page::{Format, Page};
pub use server::{MetricsError, Scrape, Server, ServerConfig, serve};
pub use snapshot::{Certificate, Changes, Ports, SessionGauges, Snapshot, StoreGauges};
