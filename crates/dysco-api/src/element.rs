//! Names of elements of chains in requests.

use std::fmt;
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::host::HostName;

/// An element of a chain in a request. The daemon replaces the name of its host by an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ElementName {
    /// A host.
    Host(HostName),
}

impl ElementName {
    /// Returns the name of the host at which the element stands.
    pub fn host(&self) -> &HostName {
        match self {
            ElementName::Host(host) => host,
        }
    }

    /// Returns the name of that host, to replace it by another name.
    pub(crate) fn host_mut(&mut self) -> &mut HostName {
        match self {
            ElementName::Host(host) => host,
        }
    }
}

impl FromStr for ElementName {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let host = s.parse::<HostName>().map(ElementName::Host);
        host.map_err(|_| {
            let cause = Cause::new(format!("'{s}' names no host"));
            match s.starts_with('+') {
                true => cause.hint(
                    "put services into the sessions with 'dyscoctl service put', once their chain has changed",
                ),
                false => cause.hint("give 'self', an address, or a host name"),
            }
        })
    }
}

impl fmt::Display for ElementName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementName::Host(host) => host.fmt(f),
        }
    }
}

impl From<ElementName> for String {
    fn from(element: ElementName) -> String {
        element.to_string()
    }
}

impl TryFrom<String> for ElementName {
    type Error = Cause;

    fn try_from(s: String) -> Result<Self, Cause> {
        s.parse()
    }
}
