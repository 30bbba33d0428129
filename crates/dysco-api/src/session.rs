//! What is said of sessions, and of proxies that hold them.

use std::net::{IpAddr, SocketAddr};

use dysco_common::FlowKey;
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::name::SessionId;
use super::process::ProcessName;

/// What this host is to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It opened the session, or the segment of it.
    LeftAnchor,
    /// It was connected to.
    RightAnchor,
    /// It runs the middlebox.
    Middlebox,
}

/// One session as this host sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its short name.
    pub id: SessionId,
    /// This host's end.
    pub local: SocketAddr,
    /// The other end, as the local socket knows it.
    pub remote: SocketAddr,
    /// The data plane's word for it.
    pub state: String,
    /// It is over, by all that passed here: what comes late is still known for a minute.
    #[serde(default)]
    pub ended: bool,
    /// What this host is to it.
    pub role: Role,
    /// It was there before dyscod saw a SYN of it.
    #[serde(default)]
    pub adopted: bool,
    /// How long ago it was opened, or adopted, in seconds.
    pub since_s: f64,
    /// Bytes received by the local end.
    pub bytes_in: u64,
    /// Bytes sent by the local end.
    pub bytes_out: u64,
    /// The subsession on the wire, where it is not `local` to `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathReport>,
    /// What it is called where it was opened, and in requests: a NAT of its chain made
    /// `local` and `remote` of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_as: Option<PathReport>,
    /// The hosts it is steered through, where it was opened: no other host knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Vec<IpAddr>>,
    /// The way by which its proxy has left, or is leaving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The session on the proxy's other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<SessionId>,
    /// The proxy that relays it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Relayer>,
    /// What the proxy itself says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// Can this host's middlebox leave it?
    pub removable: Removable,
    /// What happened to it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

/// A proxy's process that relays a session, and the listener that accepted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayer {
    /// Its number.
    pub pid: i32,
    /// Its name, of at most 15 bytes; empty once it has ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its systemd unit, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The proxy's end of the session that it accepted.
    pub listener: SocketAddr,
}

/// The kernel keeps this much of a process's name.
const COMM: usize = 15;

impl Relayer {
    /// Is it meant by this name? A pid means one process, and none that it started.
    pub fn is_called(&self, name: &ProcessName) -> bool {
        match name {
            ProcessName::Pid(pid) => self.pid == *pid,
            ProcessName::Listener(at) => at.matches(self.listener),
            ProcessName::Unit(unit) => self.unit.as_ref() == Some(unit),
            ProcessName::Named(name) => self.name == name.get(..COMM).unwrap_or(name),
        }
    }
}

/// A five-tuple: that of a subsession on the wire, or another name of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

impl PathReport {
    /// Of a key.
    pub fn of(key: &FlowKey) -> PathReport {
        PathReport {
            local: key.local(),
            remote: key.remote(),
        }
    }
}

/// Can a middlebox leave a session?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removable {
    /// It can.
    Yes,
    /// It cannot, or not yet.
    No {
        /// Why, in words for an operator: of all reasons the one that counts.
        reason: String,
        /// All that stands in the way, that one first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<String>,
    },
}

impl Removable {
    /// It cannot, for these reasons, of which the first counts.
    pub fn no(reasons: Vec<String>) -> Removable {
        Removable::No {
            reason: reasons.first().cloned().unwrap_or_default(),
            reasons,
        }
    }
}

/// Something that happened to a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// How long ago, in seconds.
    pub ago_s: f64,
    /// What.
    pub what: String,
    /// If another way was taken: which, and by whose will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<WayChange>,
    /// The id of the change that did it, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}

/// A session took another way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayChange {
    /// The way before.
    pub from: Way,
    /// The way since.
    pub to: Way,
    /// Who wanted it.
    pub by: String,
}

/// The way of a session's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Through the middlebox.
    Middlebox,
    /// Past its host.
    Bypass,
    /// Through the kernel of its host.
    Local,
    /// The same, but for replies, which go straight to the client.
    Return,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Way::Middlebox => "middlebox",
            Way::Bypass => "bypass",
            Way::Local => "local",
            Way::Return => "return",
        })
    }
}

/// A proxy's processes, and the sessions that they have accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Its processes.
    pub processes: Vec<ProcessReport>,
    /// What they hold: what would be lost if they ended now.
    pub sessions: Vec<HeldReport>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub name: String,
}

/// A session that a proxy has accepted and not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldReport {
    /// The process.
    pub pid: i32,
    /// The listener's end.
    pub local: SocketAddr,
    /// The client's end.
    pub remote: SocketAddr,
    /// Its short name, where it is tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Can the proxy leave it, by what is known without watching?
    pub removable: Removable,
    /// What the proxy itself says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
}

/// What a proxy says of a session, in its own terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Label {
    /// What accepted it.
    pub frontend: String,
    /// What it was passed to.
    pub backend: String,
    /// And to which server of that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// `tcp` or `http`, where it says so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
}
