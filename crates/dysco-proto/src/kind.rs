//! The kinds of state that a host's firewall holds for a session, as hosts name them to
//! each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kinds of state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum KindName {
    /// An entry of the kernel's connection tracking.
    Conntrack,
    /// An element of an nftables set.
    SetElement,
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KindName::Conntrack => "conntrack",
            KindName::SetElement => "set_element",
        })
    }
}
