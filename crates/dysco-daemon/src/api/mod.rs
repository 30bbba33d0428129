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
mod removal;
mod rules;
mod server;
mod session;
mod state;
mod stats;
mod status;
mod types;

pub use crate::config::Mode;
pub use caller::{Caller, Policy};
pub use client::{Client, ClientError};
pub use delta::{DeltaReport, TellDelta};
pub use error::ApiError;
pub use filter::{BadFilter, Filter, HELP as FILTER_HELP, STATES};
pub use host::{BadHost, HostName};
pub use name::{BadName, SessionId, SessionName};
pub use reconfigure::{ChainChange, ChainOutcome, ChainReport, Reconfigure, Which};
pub use removal::{Outcome, RemovalReport, Remove, Summary};
pub use rules::{Explained, PolicyReport, RuleReport};
pub use server::{Call, Server, ServerConfig, serve};
pub use session::{
    HeldReport, HistoryEntry, Label, PathReport, ProcessReport, ProxyReport, Removable, Role,
    SessionReport, Way, WayChange,
};
pub use state::{AboutState, InstallState, MoveState, StateInstalled, StateReport};
pub use stats::list_counters;
pub use status::{
    AdoptReport, Counters, InterfaceReport, LeftReport, PeerReport, SessionCounts, StatusReport,
};
pub use types::{Failure, FailureCode, MonitorEvent, Reply, Request};

#[cfg(test)]
mod tests;
