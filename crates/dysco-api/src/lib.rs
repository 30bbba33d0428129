//! The types of the local API of `dyscod`, and a client for `dyscoctl` and other programs. The
//! API is a unix socket with one JSON object a line. A group may read; only root may change. The
//! crate depends on no async runtime. Hosts do not exchange these types: they exchange those of
//! `dysco-proto`, which are converted into these.

mod change_rate;
mod client;
mod delay;
mod delta;
mod element;
mod exit;
mod filter;
mod fleet;
mod host;
mod listen;
mod mode;
mod name;
mod namespaces;
mod process;
mod reconfigure;
mod reload;
mod removal;
mod rules;
mod service;
mod service_spec;
mod session;
mod socket_option;
mod state;
mod status;
mod tune;
mod types;

pub use change_rate::ChangeRate;
pub use client::{Client, ClientError, DEFAULT_API_SOCKET};
pub use delay::Delay;
pub use delta::{DeltaReport, TellDelta};
pub use dysco_common::Element;
pub use element::ElementName;
pub use exit::{Exit, HELP as EXIT_HELP};
pub use filter::{ENDED, Filter, HELP as FILTER_HELP, STATES};
pub use fleet::{FleetHost, FleetReport, PublishReport, RefusedPolicy};
pub use host::HostName;
pub use listen::ListenAddress;
pub use mode::Mode;
pub use name::{SessionId, SessionName};
pub use namespaces::{NamespaceReport, NamespaceState};
pub use process::ProcessName;
pub use reconfigure::{ChainChange, ChainOutcome, ChainReport, Reconfigure, Which};
pub use reload::{ReloadReport, ValueChange};
pub use removal::{Outcome, RemovalReport, Remove, Summary};
pub use rules::{Explained, PolicyReport, RuleReport};
pub use service::{
    RunReport, RunRequest, ServiceAction, ServiceAnswer, ServiceCall, ServiceListing,
    ServiceOutcome, ServiceReport, ServiceRequest, ServiceRow, ServiceState,
};
pub use service_spec::{PLANE, SERVICES, ServiceSpec};
pub use session::{
    HeldReport, HistoryEntry, Label, PathReport, ProcessReport, ProxyReport, Relayer, Removable,
    Role, SessionReport, Way, WayChange,
};
pub use socket_option::{
    Congestion, Keepalive, OFF, Rate, SocketOption, TunedOption, UserTimeout, time_text,
};
pub use state::{
    AboutState, InstallState, MoveState, StateInstalled, StateKind, StateReport, StateSession,
};
pub use status::{
    AdoptReport, Counters, InterfaceReport, KeysReport, LeftReport, MetricsReport, PeerReport,
    SessionCounts, StatusReport,
};
pub use tune::{SocketOwner, Tune, TuneAction, TuneOptions, TuneOutcome, TuneReport};
pub use types::{Failure, FailureCode, Listing, MonitorEvent, Reply, Request};

#[cfg(test)]
mod tests;
