//! Names of a proxy's process.

use std::fmt;
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::listen::ListenAddress;

/// A proxy on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ProcessName {
    /// The process with this pid, and the processes that it started.
    Pid(i32),
    /// The processes that have sessions of this listener.
    Listener(ListenAddress),
    /// The processes of this systemd unit.
    Unit(String),
    /// The process with this name, and the processes that it started.
    Named(String),
}

impl FromStr for ProcessName {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' names no process")).hint(
                "give a pid, a listener such as ':8080', a unit such as 'haproxy.service', or a name such as 'haproxy'",
            )
        };
        if !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) {
            let pid = s.parse().ok().filter(|pid| *pid > 0).ok_or_else(bad)?;
            return Ok(ProcessName::Pid(pid));
        }
        if s.contains(':') {
            return s.parse().map(ProcessName::Listener).map_err(|_| bad());
        }
        if s.is_empty() || s.contains(['/', ' ', '\n']) {
            return Err(bad());
        }
        if s.ends_with(".service") || s.ends_with(".scope") {
            return Ok(ProcessName::Unit(s.to_owned()));
        }
        Ok(ProcessName::Named(s.to_owned()))
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessName::Pid(pid) => pid.fmt(f),
            ProcessName::Listener(at) => at.fmt(f),
            ProcessName::Unit(name) | ProcessName::Named(name) => name.fmt(f),
        }
    }
}

impl From<ProcessName> for String {
    fn from(name: ProcessName) -> String {
        name.to_string()
    }
}

impl TryFrom<String> for ProcessName {
    type Error = Cause;

    fn try_from(s: String) -> Result<Self, Cause> {
        s.parse()
    }
}
