//! Requests and replies of the local API: one JSON object a line. The daemon answers a request
//! with any number of progress replies and then one final reply.

use std::net::SocketAddr;

use dysco_explain::{Explain, Explanation, display_explained};
use serde::{Deserialize, Serialize};

use super::delta::{DeltaReport, TellDelta};
use super::element::ElementName;
use super::filter::Filter;
use super::fleet::PublishReport;
use super::host::HostName;
use super::name::{SessionId, SessionName};
use super::namespaces::NamespaceReport;
use super::process::ProcessName;
use super::reconfigure::{ChainChange, ChainReport, Reconfigure, Which};
use super::reload::ReloadReport;
use super::removal::{RemovalReport, Remove, Summary};
use super::rules::{Explained, PolicyReport};
use super::service::{
    RunReport, RunRequest, ServiceAnswer, ServiceCall, ServiceListing, ServiceReport,
    ServiceRequest, ServiceRow,
};
use super::session::{ProxyReport, SessionReport};
use super::state::{AboutState, InstallState, MoveState, StateInstalled, StateReport};
use super::status::{AdoptReport, Counters, LeftReport, MetricsReport, StatusReport};
use super::tune::{Tune, TuneReport};

/// A request of a local client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks whether this host works. One [`Reply::Status`].
    Status,
    /// Lists the sessions of this host. [`Reply::Session`]s, then [`Reply::Done`].
    Sessions(Listing),
    /// Shows one session. One [`Reply::Session`], then [`Reply::Done`].
    Session {
        /// Name of the session.
        session: SessionName,
    },
    /// Removes a middlebox from sessions. [`Reply::Accepted`], a [`Reply::Removal`] for each,
    /// then [`Reply::Done`].
    Remove(Remove),
    /// Gives sessions another chain. [`Reply::Accepted`], a [`Reply::ChainUpdated`] for each, then
    /// [`Reply::Done`].
    Reconfigure(Reconfigure),
    /// Sets socket options of sessions' ends, or puts them back. [`Reply::Accepted`], a
    /// [`Reply::Tuned`] for each, then [`Reply::Done`].
    Tune(Tune),
    /// Puts services into sessions, or takes them out. [`Reply::Accepted`], a [`Reply::Service`]
    /// for each, then [`Reply::Done`].
    Service(ServiceRequest),
    /// Lists the sessions that have services. [`Reply::ServiceRow`]s, then [`Reply::Done`].
    Services(ServiceListing),
    /// Calls a service of a session. One [`Reply::ServiceAnswer`].
    CallService(ServiceCall),
    /// Lets the caller's process run with services. One [`Reply::Run`].
    Run(RunRequest),
    /// Declares by how many bytes a middlebox of this host has changed the size of a session's
    /// stream. One [`Reply::Delta`].
    Delta(TellDelta),
    /// Lists the sessions that a proxy holds. One [`Reply::Proxy`].
    Proxy {
        /// Name of the process.
        process: ProcessName,
    },
    /// Reads the state that this host's firewall holds for a session. One [`Reply::State`].
    ExportState(AboutState),
    /// Installs state that another firewall holds for a session. One [`Reply::StateInstalled`].
    InstallState(InstallState),
    /// Copies the state that one host's firewall holds for a session to another host. One
    /// [`Reply::StateInstalled`].
    MoveState(MoveState),
    /// Removes the state that this host's firewall holds for a session and that no other session
    /// shares. One [`Reply::StateRemoved`].
    RemoveState(AboutState),
    /// Shows the policy in force. One [`Reply::Policy`].
    Policy,
    /// Puts a policy in force. One [`Reply::Policy`].
    PolicyApply {
        /// Text of the policy, which replaces the file. Without a text, the file is read again.
        #[serde(default)]
        text: Option<String>,
    },
    /// Publishes a policy for all hosts of the fleet. One [`Reply::Published`].
    PolicyPublish {
        /// Text of the policy.
        text: String,
    },
    /// Explains the policy's decision for a session. One [`Reply::Explained`].
    PolicyExplain {
        /// Address of the end that would open the session; any port will do.
        source: SocketAddr,
        /// Address of the other end.
        destination: SocketAddr,
        /// User whose program would open the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// cgroup of that program, by its path below the root of the hierarchy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
    },
    /// Reports events as they occur: [`Reply::Event`]s until the client disconnects.
    Monitor,
    /// Reads the counters. One [`Reply::Counters`].
    Counters,
    /// Reads the metrics. One [`Reply::Metrics`].
    Metrics,
    /// Lists the network namespaces that an instance serves. One [`Reply::Namespaces`].
    Namespaces,
    /// Adopts the sessions of this host's sockets that are not known. One [`Reply::Adopted`].
    Adopt,
    /// Reads the configuration, keys and policy again. One [`Reply::Reloaded`].
    Reload {
        /// True if the request only reports what would change.
        #[serde(default)]
        dry_run: bool,
    },
}

/// A selection of the sessions to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// Filter that the sessions match.
    #[serde(default)]
    pub filter: Filter,
    /// True if histories are omitted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub brief: bool,
    /// Id of the last session of the previous page. The listing continues behind it, in the order
    /// of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<SessionId>,
    /// Maximum number of sessions. Fewer sessions mean that no more follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

fn is_false(is: &bool) -> bool {
    !is
}

impl Request {
    /// Returns true if the request changes something, so that only root may send it.
    pub fn changes(&self) -> bool {
        match self {
            Request::Remove(remove) => !remove.dry_run,
            Request::Reconfigure(request) => !request.dry_run,
            Request::Tune(request) => !request.dry_run,
            Request::Service(request) => !request.dry_run,
            Request::CallService(_) | Request::Run(_) => true,
            Request::InstallState(install) => !install.dry_run,
            Request::MoveState(request) => !request.dry_run,
            Request::RemoveState(_) => true,
            Request::Adopt => true,
            Request::Reload { dry_run } => !dry_run,
            Request::Delta(_) => true,
            Request::PolicyApply { .. } | Request::PolicyPublish { .. } => true,
            Request::Status
            | Request::Policy
            | Request::PolicyExplain { .. }
            | Request::Sessions(_)
            | Request::Session { .. }
            | Request::Proxy { .. }
            | Request::Services(_)
            | Request::ExportState(_)
            | Request::Monitor
            | Request::Counters
            | Request::Metrics
            | Request::Namespaces => false,
        }
    }
}

impl Request {
    /// Returns the hosts that the request names.
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
                    ChainChange::Become(all) => {
                        hosts.extend(all.iter_mut().map(ElementName::host_mut));
                    }
                    ChainChange::Insert(one) | ChainChange::Remove(one) => {
                        hosts.push(one.host_mut());
                    }
                    ChainChange::Replace { old, new } => {
                        hosts.extend([old.host_mut(), new.host_mut()]);
                    }
                }
                hosts
            }
            _ => Vec::new(),
        };
        hosts.into_iter()
    }
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Final: a summary of the host.
    Status(Box<StatusReport>),
    /// Final: a proxy and the sessions that it holds.
    Proxy(Box<ProxyReport>),
    /// Final: the policy in force.
    Policy(PolicyReport),
    /// Final: a policy was published.
    Published(PublishReport),
    /// Final: the policy's decision for a session.
    Explained(Explained),
    /// Final: counters.
    Counters(Counters),
    /// Final: metrics.
    Metrics(MetricsReport),
    /// Final: network namespaces and their instances.
    Namespaces {
        /// The namespaces, in the order of their names.
        namespaces: Vec<NamespaceReport>,
    },
    /// Final: the state that a firewall holds for a session.
    State(StateReport),
    /// Final: the state was installed, or could be.
    StateInstalled(StateInstalled),
    /// Final: the state was removed.
    StateRemoved {
        /// Number of items removed.
        removed: usize,
    },
    /// Final: the result of adopting sessions.
    Adopted(AdoptReport),
    /// Final: the configuration was read again.
    Reloaded(ReloadReport),
    /// Final: the answer of a service.
    ServiceAnswer(ServiceAnswer),
    /// Final: the caller's process runs with services.
    Run(RunReport),
    /// Final: the delta was stored.
    Delta(DeltaReport),
    /// Progress: a session.
    Session(Box<SessionReport>),
    /// Progress: the request was accepted for a number of sessions.
    Accepted {
        /// Number of sessions.
        sessions: usize,
        /// Sessions that the request selects and that dyscod cannot see or does not track. These
        /// sessions keep the middlebox.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<LeftReport>,
    },
    /// Progress: the result of one session's removal, or the expected one in a dry run.
    Removal(RemovalReport),
    /// Progress: the result of one session's change of chain, or the expected one in a dry run.
    ChainUpdated(ChainReport),
    /// Progress: the result for the socket of one session, or the expected one in a dry run.
    Tuned(TuneReport),
    /// Progress: the result for the services of one session, or the expected one in a dry run.
    Service(ServiceReport),
    /// Progress: a session that has services.
    ServiceRow(ServiceRow),
    /// Progress: an event.
    Event(MonitorEvent),
    /// Final: the request is complete, and each exception was reported.
    Done {
        /// Summary of a removal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<Summary>,
    },
    /// Final: the request failed.
    Error(Failure),
}

impl Reply {
    /// Returns true if no further reply follows.
    pub fn is_final(&self) -> bool {
        match self {
            Reply::Status(_)
            | Reply::Proxy(_)
            | Reply::Policy(_)
            | Reply::Published(_)
            | Reply::Explained(_)
            | Reply::Counters(_)
            | Reply::Metrics(_)
            | Reply::Namespaces { .. }
            | Reply::State(_)
            | Reply::StateInstalled(_)
            | Reply::StateRemoved { .. }
            | Reply::Adopted(_)
            | Reply::Reloaded(_)
            | Reply::Delta(_)
            | Reply::ServiceAnswer(_)
            | Reply::Run(_)
            | Reply::Done { .. }
            | Reply::Error(_) => true,
            Reply::Session(_)
            | Reply::Accepted { .. }
            | Reply::Removal(_)
            | Reply::ChainUpdated(_)
            | Reply::Tuned(_)
            | Reply::Service(_)
            | Reply::ServiceRow(_)
            | Reply::Event(_) => false,
        }
    }
}

/// A failure with its cause and a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Failure {
    /// Code of the failure, for programs.
    pub code: FailureCode,
    /// Description of the attempt, which completes "failed to …".
    pub what: String,
    /// Cause of the failure.
    pub why: String,
    /// Hint for the operator; empty if no remedy is known.
    pub hint: String,
}

impl Failure {
    /// Returns the failure with these parts.
    pub fn new(code: FailureCode, explanation: Explanation) -> Failure {
        let Explanation { what, why, hint } = explanation;
        Failure {
            code,
            what,
            why,
            hint: hint.unwrap_or_default(),
        }
    }
}

display_explained!(Failure);

impl Explain for Failure {
    fn explain(&self) -> Explanation {
        let explanation = Explanation::new(&self.what, &self.why);
        match self.hint.as_str() {
            "" => explanation,
            hint => explanation.hint(hint),
        }
    }
}

/// Code of a failure, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The request is malformed or names nothing that exists.
    BadRequest,
    /// The caller has no permission.
    NotAllowed,
    /// The session or host does not exist.
    NotFound,
    /// The request cannot be fulfilled, and nothing was changed.
    Refused,
    /// The change timed out and was rolled back.
    TimedOut,
    /// Too many requests are in progress.
    Busy,
    /// The daemon has a fault.
    Internal,
}

/// An event on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonitorEvent {
    /// Time of the event, in milliseconds since 1970.
    pub at_ms: u64,
    /// Kind of the event, for programs: `opened`, `removed`, `refused`, `peer_down` …
    pub kind: String,
    /// Session that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Id of the change that the event belongs to, which all hosts of the change share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
    /// Description in words, with the reason.
    pub text: String,
}
