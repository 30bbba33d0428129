//! Messages of the local API about the store of a fleet's policy and hosts.

use std::net::IpAddr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// The connection to etcd, and the policy and hosts that it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Name of the policy's key, such as `etcd:/dysco/policy`.
    pub key: String,
    /// True if etcd answers.
    pub connected: bool,
    /// URL of the member that answers, or that was the last to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Time in seconds since which etcd answers or does not answer.
    pub for_s: u64,
    /// Reason why etcd does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Cause>,
    /// Revision of the policy in force; `None` if no policy of etcd is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<i64>,
    /// Reason why the policy of etcd is not in force; `None` if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Cause>,
    /// Hosts that are registered, in the order of their names.
    pub hosts: Vec<FleetHost>,
}

/// A registered host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetHost {
    /// Name of the host.
    pub name: String,
    /// Addresses of the host.
    pub addresses: Vec<IpAddr>,
    /// Revision of the policy in force there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<i64>,
    /// Later policy that the host has refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedPolicy>,
}

/// A policy that a host has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPolicy {
    /// Revision of the policy.
    pub revision: i64,
    /// Reason.
    pub why: String,
}

/// The result of publishing a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishReport {
    /// Name of the policy's key, such as `etcd:/dysco/policy`.
    pub key: String,
    /// Revision of the policy.
    pub revision: i64,
}
