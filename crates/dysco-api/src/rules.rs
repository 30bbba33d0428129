//! Messages of the local API about the policy.

use dysco_common::Element;
use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use crate::ServiceSpec;

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// File that contains the policy, or its key in etcd, such as `etcd:/dysco/policy`.
    pub file: std::path::PathBuf,
    /// True if etcd contains the policy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub of_fleet: bool,
    /// Reason why the current contents of the file are not in force; `None` if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Cause>,
    /// Rules, in order.
    pub rules: Vec<RuleReport>,
}

fn is_false(is: &bool) -> bool {
    !is
}

/// A rule of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Name of the rule, or its number.
    pub name: String,
    /// Source prefix, or `any`.
    pub source: String,
    /// Destination prefix, or `any`.
    pub destination: String,
    /// Ports, or `any`.
    pub ports: String,
    /// User whose programs open the sessions; any user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// cgroup whose programs open the sessions; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// True if this host has no such user or cgroup at the moment, so that no session matches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Hosts of the rule's chain.
    pub chain: Vec<Element>,
    /// Services that its sessions get before their first byte.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceSpec>,
    /// Elements of the chain whose hosts are unavailable.
    pub missing: Vec<Element>,
    /// Treatment of sessions while a host is unavailable.
    pub otherwise: dysco_common::policy::Otherwise,
}

/// The decision of the policy for a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Rule that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleReport>,
    /// `direct`, `chain`, `services` or `refused`. A session that gets services and passes hosts
    /// has `chain`.
    pub verdict: String,
    /// Explanation in words, with the reason.
    pub text: String,
}
