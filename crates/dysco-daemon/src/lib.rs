//! `dyscod`, the daemon of a host. The engine is one task that joins the protocol machine, the data
//! plane's agent, the proxy's side, the firewall, the control channel and the local API. The crate
//! depends on all of their crates, and none of them depends on it.

pub mod api;
mod command_line;
mod engine;
mod handlers;
pub mod metrics;
mod namespaces;
mod notify;
mod permits;

pub use command_line::{command, dyscod};
