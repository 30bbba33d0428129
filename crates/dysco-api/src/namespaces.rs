//! Messages of the local API about the network namespaces that an instance of `dyscod` serves.

use std::path::PathBuf;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// A network namespace of this machine, other than that of the asked `dyscod`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceReport {
    /// Name: of its container or pod, else in `/run/netns`, else `net:[INODE]`.
    pub name: String,
    /// Inode.
    pub inode: u64,
    /// Name in `/run/netns`, or path of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// Runtime and id of a container in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Uid of the pod in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// State of its instance.
    pub state: NamespaceState,
    /// Process of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// API socket of the instance.
    pub socket: PathBuf,
    /// Reason why no instance runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Cause>,
}

/// State of the instance for a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamespaceState {
    /// Its process runs.
    Running,
    /// It is started once an interface of the namespace has an address.
    NoAddress,
    /// Its process has ended, and is started again.
    Failed,
    /// Another `dyscod` runs in the namespace.
    OtherDyscod,
}

impl NamespaceState {
    /// Returns the state in words.
    pub fn words(self) -> &'static str {
        match self {
            NamespaceState::Running => "running",
            NamespaceState::NoAddress => "no address",
            NamespaceState::Failed => "failed",
            NamespaceState::OtherDyscod => "other dyscod",
        }
    }
}

/// Shortest beginning of an id that selects a namespace.
const SHORT: usize = 6;

impl NamespaceReport {
    /// Returns true if a user's word means this namespace: its name, its inode, its name in
    /// `/run/netns`, its pod, its container, or the beginning of the container's id.
    pub fn is_called(&self, word: &str) -> bool {
        let id = self.container.as_deref().and_then(|c| c.split_once(':'));
        let id = id.map(|(_, id)| id);
        let named = [
            Some(self.name.as_str()),
            self.bound.as_deref(),
            self.pod.as_deref(),
            self.container.as_deref(),
        ];
        named.contains(&Some(word))
            || word.parse() == Ok(self.inode)
            || word.len() >= SHORT && id.is_some_and(|id| id.starts_with(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_several_names() {
        let id = "0123456789ab".repeat(5) + "cdef";
        let report = NamespaceReport {
            name: "docker:0123456789ab".into(),
            inode: 4_026_532_000,
            bound: Some("web".into()),
            container: Some(format!("docker:{id}")),
            pod: None,
            state: NamespaceState::Running,
            pid: Some(7),
            socket: "/run/dysco/ns/4026532000/dyscod.sock".into(),
            why: None,
        };
        for word in ["docker:0123456789ab", "4026532000", "web", "012345", &id] {
            assert!(report.is_called(word), "{word}");
        }
        for word in ["", "0", "01234", "docker", "402653", "we"] {
            assert!(!report.is_called(word), "{word}");
        }
    }
}
