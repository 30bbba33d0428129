//! Errors that keep the engine from starting, or that end it.

use std::io;
use std::path::PathBuf;

use dysco_agent::AgentError;
use dysco_config::{ConfigError, PortsError};
use dysco_control::ControlError;
use dysco_explain::{Cause, Explain, Explanation, display_explained};
use dysco_pki::PkiError;
use dysco_proto::RecordError;
use dysco_proxy::StartError;

use crate::api::ApiError;
use crate::metrics::MetricsError;

/// Error of the engine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// Error of the configuration.
    Config(#[from] ConfigError),
    /// Error of this host's keys.
    Pki(#[from] PkiError),
    /// Error of the data plane.
    Agent(#[from] AgentError),
    /// The ports of new paths cannot be reserved.
    Ports(#[from] PortsError),
    /// Error of the proxy's side.
    Proxy(#[from] StartError),
    /// Error of the channel to other daemons.
    Control(#[from] ControlError),
    /// Error of the local API's server.
    Api(#[from] ApiError),
    /// Error of the metrics' server.
    Metrics(#[from] MetricsError),
    /// An operation of the system failed.
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The state directory cannot be made.
    StateDir {
        /// The directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The records of changes cannot be read.
    Journal {
        /// File of the records.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The record of a change cannot be used.
    Record {
        /// File of the records.
        path: PathBuf,
        /// Error of the record.
        source: RecordError,
    },
    /// The control channel has ended.
    ControlEnded,
}

impl EngineError {
    /// Returns a function that adds the operation to an error of the system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> EngineError {
        move |source| EngineError::System { what, source }
    }
}

display_explained!(EngineError);

impl Explain for EngineError {
    fn explain(&self) -> Explanation {
        match self {
            EngineError::Config(error) => error.explain(),
            EngineError::Pki(error) => error.explain(),
            EngineError::Agent(error) => error.explain(),
            EngineError::Ports(error) => Cause::from(error.explain())
                .hint("set net.ipv4.ip_local_reserved_ports yourself and reserve_ports = false in [removal]")
                .of("reserve the ports of new paths"),
            EngineError::Proxy(error) => error.explain(),
            EngineError::Control(error) => error.explain(),
            EngineError::Api(error) => error.explain(),
            EngineError::Metrics(error) => error.explain(),
            EngineError::System { what, source } => Explanation::new(what, source),
            EngineError::StateDir { path, source } => {
                Explanation::new(format!("make the state directory {}", path.display()), source)
                    .hint("set state_dir in [removal] to a path that root can write")
            }
            EngineError::Journal { path, source } => Explanation::new(
                format!("read the records of changes, {}", path.display()),
                source,
            )
            .hint("remove it if no session of this host is in the middle of a change"),
            EngineError::Record { path, source } => {
                Cause::from(source.explain()).of(format!("read {}", path.display()))
            }
            EngineError::ControlEnded => {
                Explanation::new("serve peers", "the control channel has ended")
            }
        }
    }
}
