//! What is said of the policy.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The file it comes from.
    pub file: std::path::PathBuf,
    /// Why that file, as it is now, is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its rules, in order.
    pub rules: Vec<RuleReport>,
}

/// A rule of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// What it is called.
    pub name: String,
    /// Source prefix, or `any`.
    pub source: String,
    /// Destination prefix, or `any`.
    pub destination: String,
    /// Ports, or `any`.
    pub ports: String,
    /// The hosts of its chain.
    pub chain: Vec<IpAddr>,
    /// Those of them that are not there.
    pub missing: Vec<IpAddr>,
    /// What becomes of sessions then.
    pub otherwise: dysco_common::policy::Otherwise,
}

/// What would become of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The rule that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleReport>,
    /// `direct`, `chain` or `refused`.
    pub verdict: String,
    /// In words, with the reason.
    pub text: String,
}
