//! Messages of the local API about sessions, and about the proxies that hold them.

use std::net::SocketAddr;

use dysco_common::{Element, FlowKey};
use dysco_explain::{Cause, tame};
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::name::SessionId;
use super::process::ProcessName;
use super::socket_option::TunedOption;

/// Role of this host in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The host that opened the session or its segment.
    LeftAnchor,
    /// The host that accepted the session or its segment.
    RightAnchor,
    /// The host that runs the middlebox.
    Middlebox,
}

/// A session as this host sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Network namespace of the session, in a listing of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Short name of the session.
    pub id: SessionId,
    /// End of the session on this host.
    pub local: SocketAddr,
    /// Other end of the session, as the local socket knows it.
    pub remote: SocketAddr,
    /// The data plane's state of the session.
    pub state: String,
    /// True if all packets that passed here show that the session is over. Late packets are still
    /// recognised for a minute.
    #[serde(default)]
    pub ended: bool,
    /// Role of this host in the session.
    pub role: Role,
    /// True if the session existed before dyscod saw a SYN of it.
    #[serde(default)]
    pub adopted: bool,
    /// Time since the session was opened or adopted, in seconds.
    pub since_s: f64,
    /// Bytes received by the local end.
    pub bytes_in: u64,
    /// Bytes sent by the local end.
    pub bytes_out: u64,
    /// Subsession on the wire, if it differs from `local` and `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathReport>,
    /// Five-tuple of the session at the host that opened it, and in requests. Present if a NAT of
    /// the chain translated it to `local` and `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_as: Option<PathReport>,
    /// Elements of the chain. Only the host that opened the session knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Vec<Element>>,
    /// Mode by which the proxy has left or is leaving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Session on the proxy's other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<SessionId>,
    /// Proxy that relays the session, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Relayer>,
    /// The proxy's own description of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// Options of this host's socket that `tune` has set, with the values before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<TunedOption>,
    /// True if services are in the session at its end on this host, or have left and added bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
    /// Answer to whether this host's middlebox can leave the session.
    pub removable: Removable,
    /// Events of the session, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

impl SessionReport {
    /// Returns the report of a tracked session about which nothing else is known.
    pub fn tracked(id: SessionId, local: SocketAddr, remote: SocketAddr) -> SessionReport {
        SessionReport {
            namespace: None,
            id,
            local,
            remote,
            state: "tracked".into(),
            ended: false,
            role: Role::LeftAnchor,
            adopted: false,
            since_s: 0.0,
            bytes_in: 0,
            bytes_out: 0,
            path: None,
            opened_as: None,
            chain: None,
            mode: None,
            pair: None,
            proxy: None,
            label: None,
            tuned: Vec::new(),
            services: false,
            removable: Removable::Yes,
            history: Vec::new(),
        }
    }
}

/// A proxy's process that relays a session, and the listener that accepted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayer {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process, of at most 15 bytes; empty once the process has ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Systemd unit of the process, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The proxy's end of the session that it accepted.
    pub listener: SocketAddr,
}

/// Number of bytes that the kernel keeps of a process's name.
const COMM: usize = 15;

impl Relayer {
    /// Returns true if this name selects the process. A pid selects one process, without its
    /// children.
    pub fn is_called(&self, name: &ProcessName) -> bool {
        match name {
            ProcessName::Pid(pid) => self.pid == *pid,
            ProcessName::Listener(at) => at.matches(self.listener),
            ProcessName::Unit(unit) => self.unit == Some(tame(unit)),
            ProcessName::Named(name) => self.name == tame(name.get(..COMM).unwrap_or(name)),
        }
    }
}

/// A five-tuple: the subsession on the wire, or another name of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// End at this host.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

impl PathReport {
    /// Returns the five-tuple of a key.
    pub fn of(key: &FlowKey) -> PathReport {
        PathReport {
            local: key.local(),
            remote: key.remote(),
        }
    }
}

/// Answer to whether a middlebox can leave a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removable {
    /// The middlebox can leave.
    Yes,
    /// The middlebox cannot leave, or not yet.
    No {
        /// The decisive reason.
        reason: Cause,
        /// All reasons, the decisive one first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<Cause>,
    },
}

impl Removable {
    /// Returns `No` with these reasons, of which the first is decisive.
    pub fn no(reasons: Vec<Cause>) -> Removable {
        Removable::No {
            reason: reasons.first().cloned().unwrap_or_default(),
            reasons,
        }
    }
}

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Age of the event, in seconds.
    pub ago_s: f64,
    /// Description of the event.
    pub what: String,
    /// Initiator of the event, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Change of the packets' way, if the event is one, with its initiator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<WayChange>,
    /// Id of the change, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}

/// A change of the way of a session's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayChange {
    /// Way before the change.
    pub from: Way,
    /// Way after the change.
    pub to: Way,
    /// Initiator of the change.
    pub by: String,
}

/// The way of a session's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The way through the middlebox.
    Middlebox,
    /// The way past the middlebox's host.
    Bypass,
    /// The way through the kernel of the middlebox's host.
    Local,
    /// The way of `Local` for requests. Replies go directly to the client.
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

/// The processes of a proxy, and the sessions that they have accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Processes of the proxy.
    pub processes: Vec<ProcessReport>,
    /// Sessions that the processes hold, which would be lost if the processes ended now.
    pub sessions: Vec<HeldReport>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
}

/// A session that a proxy has accepted and not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldReport {
    /// Pid of the process.
    pub pid: i32,
    /// End at the listener.
    pub local: SocketAddr,
    /// End at the client.
    pub remote: SocketAddr,
    /// Short name of the session, if it is tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Answer to whether the proxy can leave the session, judged without watching its sockets.
    pub removable: Removable,
    /// The proxy's own description of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
}

/// A proxy's description of a session, in the proxy's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Label {
    /// Frontend that accepted the session.
    pub frontend: String,
    /// Backend that the session was forwarded to.
    pub backend: String,
    /// Server of that backend.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// `tcp` or `http`, if the proxy reports the mode.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
}
