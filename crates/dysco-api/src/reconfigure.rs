//! What is said on the local API about other chains for sessions.

use std::net::{IpAddr, SocketAddr};

use dysco_proto::asks;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::host::HostName;
use super::name::{SessionId, SessionName};
use super::state::StateKind;

/// Which sessions are to get another chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// These.
    Sessions(Vec<SessionName>),
    /// All that match.
    Filter(Filter),
    /// All that were opened on the host asked and pass this one; if it is the same, all
    /// that pass it.
    Through(HostName),
    /// All that this host has opened, and that the change makes sense for.
    #[default]
    All,
}

/// What is to become of a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainChange {
    /// It is to be these hosts.
    Become(Vec<HostName>),
    /// This host is to come into it, as the last.
    Insert(HostName),
    /// One is to take the place of another.
    Replace {
        /// The one that leaves.
        old: HostName,
        /// The one that comes.
        new: HostName,
    },
    /// This host is to leave it.
    Remove(HostName),
}

/// Another chain for live sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconfigure {
    /// For which.
    pub which: Which,
    /// What is to change.
    pub chain: ChainChange,
    /// What the hosts that leave know of the session goes to those that come, of these
    /// kinds. Each must be there.
    #[serde(default)]
    pub state: Vec<StateKind>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainOutcome {
    /// It has the chain; in a dry run, it could.
    Changed,
    /// Nothing was changed.
    Refused,
    /// It was begun, and taken back.
    RolledBack,
}

impl From<asks::Outcome> for ChainOutcome {
    fn from(outcome: asks::Outcome) -> ChainOutcome {
        match outcome {
            asks::Outcome::Changed => ChainOutcome::Changed,
            asks::Outcome::Refused => ChainOutcome::Refused,
            asks::Outcome::RolledBack => ChainOutcome::RolledBack,
        }
    }
}

impl From<ChainOutcome> for asks::Outcome {
    fn from(outcome: ChainOutcome) -> asks::Outcome {
        match outcome {
            ChainOutcome::Changed => asks::Outcome::Changed,
            ChainOutcome::Refused => asks::Outcome::Refused,
            ChainOutcome::RolledBack => asks::Outcome::RolledBack,
        }
    }
}

/// The end of one session's change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainReport {
    /// The session, as it is called now.
    pub session: SessionId,
    /// The side that opened it.
    pub local: SocketAddr,
    /// The side that it goes to.
    pub remote: SocketAddr,
    /// How it ended.
    pub outcome: ChainOutcome,
    /// Why, unless it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time ran out that one of its steps has, or a host did not answer in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// The hosts that it passed.
    pub before: Vec<IpAddr>,
    /// The hosts that it was to pass.
    pub after: Vec<IpAddr>,
    /// From the request to new data on the new path, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_switch_us: Option<u64>,
    /// From the request to the old path's end, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_end_us: Option<u64>,
    /// The id of the change that did it, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}
