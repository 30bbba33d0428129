//! Messages of the local API about the state that firewalls hold for sessions.

use std::fmt;
use std::net::SocketAddr;

use dysco_proto::KindName;
use serde::{Deserialize, Serialize};

use super::host::HostName;
use super::name::SessionName;

/// The kinds of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum StateKind {
    /// An entry of the kernel's connection tracking.
    Conntrack,
    /// An element of an nftables set.
    #[cfg_attr(feature = "clap", value(name = "set_element"))]
    SetElement,
}

impl From<StateKind> for KindName {
    fn from(kind: StateKind) -> KindName {
        match kind {
            StateKind::Conntrack => KindName::Conntrack,
            StateKind::SetElement => KindName::SetElement,
        }
    }
}

/// The five-tuple of a session, seen from the end that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSession {
    /// End that opened the session.
    pub source: SocketAddr,
    /// The other end.
    pub destination: SocketAddr,
}

impl fmt::Display for StateSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.source, self.destination)
    }
}

/// A request about state of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutState {
    /// The session, by the five-tuple of either end, before or after translation.
    pub session: SessionName,
    /// Kinds of state; all kinds if empty.
    #[serde(default)]
    pub kinds: Vec<StateKind>,
}

/// A request to install state of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallState {
    /// Session that the documents must belong to.
    pub session: SessionName,
    /// Documents in the format of `docs/state.md`.
    pub documents: serde_json::Value,
    /// True if the request only reports whether the state could be installed.
    #[serde(default)]
    pub dry_run: bool,
}

/// A request to copy state of a session from one host to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveState {
    /// The session, one end of which is on this host.
    pub session: SessionName,
    /// Host that has the state.
    pub from: HostName,
    /// Host that receives the state.
    pub to: HostName,
    /// Kinds of state; all kinds if empty.
    #[serde(default)]
    pub kinds: Vec<StateKind>,
    /// True if the request only reports whether the state could be installed.
    #[serde(default)]
    pub dry_run: bool,
}

/// State that a firewall holds for a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// The session as requested.
    pub session: StateSession,
    /// Documents in the format of `docs/state.md`.
    pub documents: serde_json::Value,
}

/// Result of installing state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateInstalled {
    /// True if the request only checked whether the state could be installed.
    pub dry_run: bool,
    /// Number of documents in the request.
    pub documents: usize,
    /// Number of items that did not exist before.
    pub new: usize,
    /// Number of items that existed and were updated.
    pub updated: usize,
}
