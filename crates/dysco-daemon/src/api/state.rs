//! What is said on the local API about state of sessions.

use serde::{Deserialize, Serialize};

use super::host::HostName;
use super::name::SessionName;
use crate::state::{FiveTuple, KindName};

/// Which state of which session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutState {
    /// The session, by either end's five-tuple, before or after translation.
    pub session: SessionName,
    /// Only these kinds; all without any.
    #[serde(default)]
    pub kinds: Vec<KindName>,
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
    pub kinds: Vec<KindName>,
    /// Only say whether it could be installed.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a firewall knows of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// The session as asked for.
    pub session: FiveTuple,
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
