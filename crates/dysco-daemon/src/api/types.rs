//! What is said on the local API: one JSON object a line. A request gets any
//! number of progress replies, then one final one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::delta::{DeltaReport, TellDelta};
use super::filter::Filter;
use super::host::HostName;
use super::name::{SessionId, SessionName};
use super::reconfigure::{ChainReport, Reconfigure};
use super::state::{AboutState, InstallState, MoveState, StateInstalled, StateReport};
pub use crate::config::Mode;
use crate::proxy::ProcessName;

/// A request of a local client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Is this host all right? One [`Reply::Status`].
    Status,
    /// The sessions of this host. [`Reply::Session`]s, then [`Reply::Done`].
    Sessions {
        /// Only those that match.
        #[serde(default)]
        filter: Filter,
    },
    /// One session. One [`Reply::Session`], then [`Reply::Done`].
    Session {
        /// Which.
        session: SessionName,
    },
    /// Take a middlebox out of sessions: [`Reply::Accepted`], a
    /// [`Reply::Removal`] for each, then [`Reply::Done`].
    Remove(Remove),
    /// Give sessions another chain: [`Reply::Accepted`], a [`Reply::Rechained`]
    /// for each, then [`Reply::Done`].
    Reconfigure(Reconfigure),
    /// By how much a middlebox of this host has changed the size of a session's
    /// stream. One [`Reply::Delta`].
    Delta(TellDelta),
    /// What sessions a proxy holds. One [`Reply::Proxy`].
    Proxy {
        /// Which.
        process: ProcessName,
    },
    /// What this host's firewall knows of a session. One [`Reply::State`].
    ExportState(AboutState),
    /// Install what another firewall knows of a session: one
    /// [`Reply::StateInstalled`].
    InstallState(InstallState),
    /// Have what one host's firewall knows of a session installed on another:
    /// one [`Reply::StateInstalled`].
    MoveState(MoveState),
    /// Forget what this host's firewall knows of a session, and no other
    /// session shares: one [`Reply::StateRemoved`].
    RemoveState(AboutState),
    /// The policy in force. One [`Reply::Policy`].
    Policy,
    /// Put a policy in force. One [`Reply::Policy`].
    PolicyApply {
        /// Its text, which takes the place of the file; without, the file is read
        /// again.
        #[serde(default)]
        text: Option<String>,
    },
    /// What would become of a session. One [`Reply::Explained`].
    PolicyExplain {
        /// Who would open it; any port will do.
        source: SocketAddr,
        /// To whom.
        destination: SocketAddr,
    },
    /// What happens, as it happens: [`Reply::Event`]s until the client leaves.
    Monitor,
    /// One [`Reply::Counters`].
    Counters,
    /// Enter the sessions of this host's sockets that are not known. One
    /// [`Reply::Adopted`].
    Adopt,
}

/// Which middlebox to take out of which sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// The middlebox.
    pub host: HostName,
    /// These sessions.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// Every session that can lose it.
    #[serde(default)]
    pub all: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// By which way; the configured one when absent.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// How long each change may take; the configured time when absent.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Only sessions of this proxy; where no shim tells, its sockets are
    /// watched from outside.
    #[serde(default)]
    pub process: Option<ProcessName>,
    /// The operator's word: what is asked about only passes bytes on, whatever
    /// could be seen of it. Counts if root says so.
    #[serde(default)]
    pub transparent: bool,
}

impl Request {
    /// Does it change anything? Then only root may ask.
    pub fn changes(&self) -> bool {
        match self {
            Request::Remove(remove) => !remove.dry_run,
            Request::Reconfigure(request) => !request.dry_run,
            Request::InstallState(install) => !install.dry_run,
            Request::MoveState(request) => !request.dry_run,
            Request::RemoveState(_) => true,
            Request::Adopt => true,
            Request::Delta(_) => true,
            Request::PolicyApply { .. } => true,
            Request::Status
            | Request::Policy
            | Request::PolicyExplain { .. }
            | Request::Sessions { .. }
            | Request::Session { .. }
            | Request::Proxy { .. }
            | Request::ExportState(_)
            | Request::Monitor
            | Request::Counters => false,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Final: the host in one screen.
    Status(Box<StatusReport>),
    /// Final: a proxy and its sessions.
    Proxy(Box<ProxyReport>),
    /// Final: the policy in force.
    Policy(PolicyReport),
    /// Final: what would become of a session.
    Explained(Explained),
    /// Final: counters.
    Counters(Counters),
    /// Final: what a firewall knows of a session.
    State(StateReport),
    /// Final: it was installed, or could be.
    StateInstalled(StateInstalled),
    /// Final: so much was removed.
    StateRemoved {
        /// How many things.
        removed: usize,
    },
    /// Final: what was adopted.
    Adopted(AdoptReport),
    /// Final: it is known now.
    Delta(DeltaReport),
    /// Progress: a session.
    Session(Box<SessionReport>),
    /// Progress: a removal was taken on for so many sessions.
    Accepted {
        /// How many.
        sessions: usize,
    },
    /// Progress: one session's removal has ended, or would end so.
    Removal(RemovalReport),
    /// Progress: one session has another chain, would have it, or why not.
    Rechained(ChainReport),
    /// Progress: something happened.
    Event(MonitorEvent),
    /// Final: all went as asked, or each exception was reported.
    Done {
        /// Of a removal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<Summary>,
    },
    /// Final: it was not done.
    Error(Failure),
}

impl Reply {
    /// Does nothing follow?
    pub fn is_final(&self) -> bool {
        match self {
            Reply::Status(_)
            | Reply::Proxy(_)
            | Reply::Policy(_)
            | Reply::Explained(_)
            | Reply::Counters(_)
            | Reply::State(_)
            | Reply::StateInstalled(_)
            | Reply::StateRemoved { .. }
            | Reply::Adopted(_)
            | Reply::Delta(_)
            | Reply::Done { .. }
            | Reply::Error(_) => true,
            Reply::Session(_)
            | Reply::Accepted { .. }
            | Reply::Removal(_)
            | Reply::Rechained(_)
            | Reply::Event(_) => false,
        }
    }
}

/// What went wrong, why, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("failed to {what}: {why}")]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// What was tried; completes "failed to …".
    pub what: String,
    /// What stood in the way.
    pub why: String,
    /// What to do about it.
    pub mend: String,
}

/// A failure, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The request is not one, or names nothing.
    BadRequest,
    /// The caller may not.
    NotAllowed,
    /// No such session, or no such host.
    NotFound,
    /// It cannot be done, and nothing was changed.
    Refused,
    /// It took too long, and was rolled back.
    TimedOut,
    /// Too much is asked at once.
    Busy,
    /// A fault of the daemon.
    Internal,
}

/// The host in one screen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Its name.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The daemon's version.
    pub version: String,
    /// How long the daemon has been up, in seconds.
    pub uptime_s: u64,
    /// Where programs are attached.
    pub interfaces: Vec<InterfaceReport>,
    /// How many sessions.
    pub sessions: SessionCounts,
    /// Hosts that were talked to.
    pub peers: Vec<PeerReport>,
    /// Processes with the shim loaded.
    pub shim_processes: u64,
    /// Socket pairs that they reported.
    pub pairs: u64,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// The counters.
    pub counters: BTreeMap<String, u64>,
}

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

/// An interface with programs on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// How they are attached.
    pub attach: String,
    /// Are relayed packets sent back by XDP there?
    #[serde(default)]
    pub xdp: bool,
    /// Which are.
    pub programs: Vec<String>,
}

/// How many sessions there are in each shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// Passing, and learnt from.
    pub tracked: u64,
    /// On a path that a middlebox has left.
    pub removed: u64,
    /// Of those, the ones that pass its host by.
    #[serde(default)]
    pub bypass: u64,
    /// Of those, the ones that its host's kernel relays.
    #[serde(default)]
    pub local: u64,
    /// Of those, the ones of which replies go straight to the client.
    #[serde(default, rename = "return")]
    pub returned: u64,
    /// Steered through a chain since they were opened, or given one since; also of
    /// those that a middlebox has left.
    #[serde(default)]
    pub chained: u64,
    /// Being changed.
    pub changing: u64,
    /// Of all these, those that were there before dyscod saw a SYN of theirs.
    #[serde(default)]
    pub adopted: u64,
}

/// What came of adopting the sessions that were there first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptReport {
    /// Sessions that were entered now.
    pub adopted: u64,
    /// Sessions that were known.
    pub known: u64,
    /// Sessions that the rules want and that were left.
    pub left: Vec<LeftReport>,
}

/// Sessions that were left, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftReport {
    /// How many.
    pub sessions: u64,
    /// Why.
    pub reason: String,
}

/// A host that was talked to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its address.
    pub address: IpAddr,
    /// Is there a connection?
    pub up: bool,
    /// Round trip of the connection, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
}

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
    /// The hosts it is steered through, as far as this host knows: all where it
    /// was opened, its neighbours elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Vec<IpAddr>>,
    /// The way by which its proxy has left, or is leaving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The session on the proxy's other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<SessionId>,
    /// What the proxy itself says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// Can this host's middlebox leave it?
    pub removable: Removable,
    /// What happened to it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

/// A subsession on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// Can a middlebox leave a session?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removable {
    /// It can.
    Yes,
    /// It cannot, or not yet.
    No {
        /// Why, in words for an operator.
        reason: String,
    },
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

/// How a removal ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The middlebox has left; in a dry run, it could.
    Removed,
    /// Nothing was changed.
    Refused,
    /// It was begun, and taken back.
    RolledBack,
    /// It was not finished when the time ran out, and goes on.
    Pending,
}

/// The end of one session's removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// The session.
    pub session: SessionId,
    /// The side that opened it, where known.
    pub local: SocketAddr,
    /// The side that it goes to.
    pub remote: SocketAddr,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By which way, where it came so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Why by this one, where that was this host's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_mode: Option<String>,
    /// From the request to the new path carrying data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_switch_us: Option<u64>,
    /// From the request to the proxy's sockets being closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_close_us: Option<u64>,
}

/// All removals of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// So many each.
    pub removed: usize,
    /// Nothing was changed.
    pub refused: usize,
    /// Begun, and taken back.
    pub rolled_back: usize,
    /// Still going on.
    pub pending: usize,
    /// Median of request to switch, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99th percentile of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
}

impl Summary {
    /// The sum of the reports.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a RemovalReport>) -> Summary {
        let mut summary = Summary::default();
        let mut switched = Vec::new();
        for report in reports {
            match report.outcome {
                Outcome::Removed => summary.removed += 1,
                Outcome::Refused => summary.refused += 1,
                Outcome::RolledBack => summary.rolled_back += 1,
                Outcome::Pending => summary.pending += 1,
            }
            switched.extend(report.request_to_switch_us);
        }
        switched.sort_unstable();
        summary.p50_us = percentile(&switched, 50);
        summary.p99_us = percentile(&switched, 99);
        summary
    }
}

/// The nearest-rank percentile of a sorted list.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Something that happened on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonitorEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What kind, for programs: `opened`, `removed`, `refused`, `peer_down` …
    pub kind: String,
    /// The session it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// In words, with the reason.
    pub text: String,
}
