//! The local API: a unix socket, one JSON object a line. Reading is for a
//! group, changing for root.

mod caller;
mod client;
mod connection;
mod delta;
mod error;
mod filter;
mod host;
mod name;
mod reconfigure;
mod server;
mod state;
mod stats;
mod types;

pub use caller::{Caller, Policy};
pub use client::{Client, ClientError};
pub use delta::{DeltaReport, TellDelta};
pub use error::ApiError;
pub use filter::{BadFilter, Filter};
pub use host::{BadHost, HostName};
pub use name::{BadName, SessionId, SessionName};
pub use reconfigure::{ChainChange, ChainOutcome, ChainReport, Reconfigure, Which};
pub use server::{Call, Server, ServerConfig, serve};
pub use state::{AboutState, InstallState, MoveState, StateInstalled, StateReport};
pub use stats::list_counters;
pub use types::*;

#[cfg(test)]
mod tests;
