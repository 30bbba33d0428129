//! What is said on the local API: one JSON object a line. A request gets any
//! number of progress replies, then one final one.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::delta::{DeltaReport, TellDelta};
use super::filter::Filter;
use super::host::HostName;
use super::name::{SessionId, SessionName};
use super::process::ProcessName;
use super::reconfigure::{ChainChange, ChainReport, Reconfigure, Which};
use super::reload::ReloadReport;
use super::removal::{RemovalReport, Remove, Summary};
use super::rules::{Explained, PolicyReport};
use super::session::{ProxyReport, SessionReport};
use super::state::{AboutState, InstallState, MoveState, StateInstalled, StateReport};
use super::status::{AdoptReport, Counters, LeftReport, MetricsReport, StatusReport};

/// A request of a local client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Is this host all right? One [`Reply::Status`].
    Status,
    /// The sessions of this host. [`Reply::Session`]s, then [`Reply::Done`].
    Sessions(Listing),
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
    /// One [`Reply::Metrics`].
    Metrics,
    /// Enter the sessions of this host's sockets that are not known. One
    /// [`Reply::Adopted`].
    Adopt,
    /// Read the configuration, keys and policy again. One [`Reply::Reloaded`].
    Reload {
        /// Only say what would change.
        #[serde(default)]
        dry_run: bool,
    },
}

/// Which sessions to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// Only those that match.
    #[serde(default)]
    pub filter: Filter,
    /// Without their histories.
    #[serde(default, skip_serializing_if = "is_false")]
    pub brief: bool,
    /// Those behind this one, in the order of the table: the last one of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<SessionId>,
    /// At most so many; fewer mean that no more follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

fn is_false(is: &bool) -> bool {
    !is
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
            Request::Reload { dry_run } => !dry_run,
            Request::Delta(_) => true,
            Request::PolicyApply { .. } => true,
            Request::Status
            | Request::Policy
            | Request::PolicyExplain { .. }
            | Request::Sessions(_)
            | Request::Session { .. }
            | Request::Proxy { .. }
            | Request::ExportState(_)
            | Request::Monitor
            | Request::Counters
            | Request::Metrics => false,
        }
    }
}

impl Request {
    /// The hosts that it names.
    pub fn hosts(&mut self) -> impl Iterator<Item = &mut HostName> {
        let hosts: Vec<&mut HostName> = match self {
            Request::Remove(remove) => vec![&mut remove.host],
            Request::MoveState(state) => vec![&mut state.from, &mut state.to],
            Request::Reconfigure(Reconfigure { which, chain, .. }) => {
                let through = match which {
                    Which::Through(host) => Some(host),
                    Which::Sessions(_) | Which::Filter(_) | Which::All => None,
                };
                let mut hosts: Vec<_> = through.into_iter().collect();
                match chain {
                    ChainChange::Become(chain) => hosts.extend(chain),
                    ChainChange::Insert(host) | ChainChange::Remove(host) => hosts.push(host),
                    ChainChange::Replace { old, new } => hosts.extend([old, new]),
                }
                hosts
            }
            _ => Vec::new(),
        };
        hosts.into_iter()
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
    /// Final: metrics.
    Metrics(MetricsReport),
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
    /// Final: the configuration was read again.
    Reloaded(ReloadReport),
    /// Final: it is known now.
    Delta(DeltaReport),
    /// Progress: a session.
    Session(Box<SessionReport>),
    /// Progress: a removal was taken on for so many sessions.
    Accepted {
        /// How many.
        sessions: usize,
        /// Sessions that the request is about and that dyscod cannot see, or does not
        /// track: they keep the middlebox.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<LeftReport>,
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
            | Reply::Metrics(_)
            | Reply::State(_)
            | Reply::StateInstalled(_)
            | Reply::StateRemoved { .. }
            | Reply::Adopted(_)
            | Reply::Reloaded(_)
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
    /// The id of the change that it is part of, which all hosts of the change share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
    /// In words, with the reason.
    pub text: String,
}
