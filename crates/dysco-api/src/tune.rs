//! Messages of the local API about the socket options of sessions' ends.

use std::net::SocketAddr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::name::{SessionId, SessionName};
use super::socket_option::{Congestion, Keepalive, Rate, TunedOption, UserTimeout};

/// A request to set socket options of sessions' ends on this host, or to put them back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tune {
    /// Names of sessions.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// True for every session.
    #[serde(default)]
    pub all: bool,
    /// Restriction of the selected sessions to those that match.
    #[serde(default)]
    pub filter: Filter,
    /// Action on the sockets.
    pub action: TuneAction,
    /// True if the request only reports what it would do.
    #[serde(default)]
    pub dry_run: bool,
}

/// Action on sockets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneAction {
    /// Sets these options.
    Set(TuneOptions),
    /// Puts the options back that earlier requests have set.
    Restore,
}

/// Options to set. An absent option stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneOptions {
    /// Congestion control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<Congestion>,
    /// Maximum rate at which the end sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Probes of a silent peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Keepalive>,
    /// Limit for data that is not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_timeout: Option<UserTimeout>,
    /// True if small segments are sent at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodelay: Option<bool>,
}

/// Result for one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneOutcome {
    /// Options were set. In a dry run, they could be.
    Tuned,
    /// Options were put back. In a dry run, they could be.
    Restored,
    /// All options had the requested values.
    Unchanged,
    /// Some options could not be changed as requested, or not be put back after that. The others
    /// are changed.
    Incomplete,
    /// Nothing was changed.
    Refused,
}

/// The result of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// The session.
    pub session: SessionId,
    /// End of the session on this host.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Result.
    pub outcome: TuneOutcome,
    /// Process that has the socket open, if it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<SocketOwner>,
    /// Options that were changed, or would be in a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<TunedOption>,
    /// The decisive reason of a refusal, or the reason for which options stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cause>,
    /// All reasons, the decisive one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Cause>,
}

/// A process that has a session's socket open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOwner {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process, of at most 15 bytes.
    pub name: String,
}

impl std::fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SocketOwner { pid, name } = self;
        write!(f, "{name}/{pid}")
    }
}
