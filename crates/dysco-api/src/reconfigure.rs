//! Messages of the local API about new chains for live sessions.

use std::net::SocketAddr;

use dysco_common::Element;
use dysco_explain::Cause;
use dysco_proto::asks;
use serde::{Deserialize, Serialize};

use super::change_rate::ChangeRate;
use super::element::ElementName;
use super::filter::Filter;
use super::host::HostName;
use super::name::{SessionId, SessionName};
use super::state::StateKind;

/// Selection of the sessions that get another chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The sessions with these names.
    Sessions(Vec<SessionName>),
    /// All sessions that match the filter.
    Filter(Filter),
    /// All sessions that were opened on the host that receives the request and pass this host. If
    /// both are the same host, all sessions that pass it.
    Through(HostName),
    /// All sessions that this host has opened and to which the change applies.
    #[default]
    All,
}

/// Change of a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainChange {
    /// Replaces the chain by these elements.
    Become(Vec<ElementName>),
    /// Appends this element to the chain.
    Insert(ElementName),
    /// Replaces one element of the chain by another.
    Replace {
        /// Element that leaves.
        old: ElementName,
        /// Element that joins.
        new: ElementName,
    },
    /// Removes this element from the chain.
    Remove(ElementName),
}

/// A request to change the chain of live sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconfigure {
    /// Sessions to change.
    pub which: Which,
    /// Change to make.
    pub chain: ChainChange,
    /// Kinds of state that the leaving hosts transfer to the joining ones. State of each kind
    /// must exist.
    #[serde(default)]
    pub state: Vec<StateKind>,
    /// Greatest number of changes that begin in any second; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ChangeRate>,
    /// True if the request only reports what it would do.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of one session's change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainOutcome {
    /// The session has the new chain. In a dry run, the change is possible.
    Changed,
    /// Nothing was changed.
    Refused,
    /// The change began and was rolled back.
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

/// The result of one session's change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainReport {
    /// The session's current id.
    pub session: SessionId,
    /// The end that opened the session.
    pub local: SocketAddr,
    /// The end that the session was opened to.
    pub remote: SocketAddr,
    /// Result of the change.
    pub outcome: ChainOutcome,
    /// Reason, unless the chain was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cause>,
    /// True if a step of the change timed out, or a host did not answer in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Elements of the chain before the change.
    pub before: Vec<Element>,
    /// Elements of the requested chain.
    pub after: Vec<Element>,
    /// Time from the request to new data on the new path, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_switch_us: Option<u64>,
    /// Time from the request to the end of the old path, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_end_us: Option<u64>,
    /// Id of the change, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}
