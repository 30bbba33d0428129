//! What is said on the local API about state of sessions.

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

/// A session's five-tuple, from the end that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSession {
    /// The end that opened it.
    pub source: SocketAddr,
    /// The other end.
    pub destination: SocketAddr,
}

impl fmt::Display for StateSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.source, self.destination)
    }
}

/// Which state of which session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutState {
    /// The session, by either end's five-tuple, before or after translation.
    pub session: SessionName,
    /// Only these kinds; all without any.
    #[serde(default)]
    pub kinds: Vec<StateKind>,
}

/// What to install, and for which session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallState {
    /// The session that it must be of.
    pub session: SessionName,
    /// Documents as `docs/state.md` has them.
    pub documents: serde_json::Value,
    /// Only say whether it could be.
    #[serde(default)]
    pub dry_run: bool,
}

/// Whose state is to go where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveState {
    /// The session; this host holds an end of it.
    pub session: SessionName,
    /// The host that has it.
    pub from: HostName,
    /// The host that is to have it.
    pub to: HostName,
    /// Only these kinds; all without any.
    #[serde(default)]
    pub kinds: Vec<StateKind>,
    /// Only say whether it could be installed.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a firewall knows of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// The session as asked for.
    pub session: StateSession,
    /// What there is, as `docs/state.md` has it.
    pub documents: serde_json::Value,
}

/// How much was installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateInstalled {
    /// It was only looked whether it could be.
    pub dry_run: bool,
    /// Documents that it was about.
    pub documents: usize,
    /// What was not there before.
    pub new: usize,
    /// What was, and was brought up to date.
    pub updated: usize,
}
