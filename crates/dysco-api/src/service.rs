//! Messages of the local API about the services of sessions.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::filter::Filter;
use super::name::{SessionId, SessionName};
use super::service_spec::ServiceSpec;
use super::tune::SocketOwner;

/// A request to put services into sessions of this host's programs, or to take them out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceRequest {
    /// Names of sessions.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// True for every session.
    #[serde(default)]
    pub all: bool,
    /// Restriction of the selected sessions to those that match.
    #[serde(default)]
    pub filter: Filter,
    /// Action on the sessions.
    pub action: ServiceAction,
    /// True if the request only reports what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// Time to wait for the end of each change, in milliseconds. A change that goes on then, or
    /// each change if this is absent, is reported as [`ServiceOutcome::Entering`] or
    /// [`ServiceOutcome::Leaving`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// Action on sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceAction {
    /// Puts services in.
    Put {
        /// The services, in order from the end that opened the session. There is at least one.
        services: Vec<ServiceSpec>,
        /// True if the sessions pass hosts once their chain has changed. For a dry run before that.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        beside_hosts: bool,
    },
    /// Takes all services out.
    Take,
    /// Takes the services with these names out. The session's other services stay.
    Part {
        /// The names. There is at least one.
        services: Vec<String>,
    },
    /// Puts a service into the place of another one, which leaves.
    Replace {
        /// Name of the service that leaves.
        old: String,
        /// The service that comes.
        new: ServiceSpec,
    },
}

/// Result for one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceOutcome {
    /// The services are in: the next byte of each direction passes them, and the old path has
    /// drained. In a dry run, they could be put in.
    Put,
    /// The services are out. In a dry run, they could be taken out.
    Taken,
    /// The services have begun to enter.
    Entering,
    /// The services have begun to leave.
    Leaving,
    /// The session had exactly these services, or had none to take out.
    Unchanged,
    /// Nothing was changed.
    Refused,
}

/// The result of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// The session.
    pub session: SessionId,
    /// End of the session on this host.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Result.
    pub outcome: ServiceOutcome,
    /// The services that were put in or taken out, or would be in a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceSpec>,
    /// Process that has the socket open, if it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<SocketOwner>,
    /// The decisive reason of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cause>,
    /// All reasons, the decisive one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Cause>,
    /// Number of bytes that services which have left added to the stream to the server and to the
    /// stream to the client; negative if they removed bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<[i64; 2]>,
    /// Time that the change took, in milliseconds, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
}

/// A selection of sessions whose services are listed. No name selects all sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceListing {
    /// Names of sessions.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// Filter that the sessions match.
    #[serde(default)]
    pub filter: Filter,
}

/// State of a session's services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// The services have begun to enter. The old path still drains.
    Entering,
    /// All bytes pass the services.
    In,
    /// The services have begun to leave. The path through them still drains.
    Leaving,
    /// The services have left by themselves, since the session gained nothing by them. They come back
    /// to see whether that has changed.
    Resting,
    /// The services have left and had changed the size of the stream. The host translates numbers
    /// until the session ends.
    Direct,
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceState::Entering => "entering",
            ServiceState::In => "in",
            ServiceState::Leaving => "leaving",
            ServiceState::Resting => "resting",
            ServiceState::Direct => "direct",
        })
    }
}

/// A session that has services, or whose numbers are translated because it had some. Pairs are
/// those of the stream to the server and of the stream to the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// The session.
    pub session: SessionId,
    /// End of the session on this host.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The services, in order from the end that opened the session; empty if they have left for good.
    #[serde(default)]
    pub services: Vec<ServiceSpec>,
    /// State of the services.
    pub state: ServiceState,
    /// Pid of the process that runs the services, if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<i32>,
    /// Address of the host that has the same services, if they are at both ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// Number of bytes that the handler has read of each stream.
    #[serde(default)]
    pub read: [u64; 2],
    /// Number of bytes that the handler has written to each stream.
    #[serde(default)]
    pub written: [u64; 2],
    /// Number of bytes that services which have left added to each stream; negative if they
    /// removed bytes.
    #[serde(default)]
    pub delta: [i64; 2],
}

/// A call of a session's service by the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceCall {
    /// The session.
    pub session: SessionName,
    /// Name of the service, without arguments.
    pub service: String,
    /// Operation, in the words of the service.
    pub verb: String,
    /// Argument of the operation, if it takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argument: Option<Value>,
}

/// The answer of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceAnswer {
    /// The session.
    pub session: SessionId,
    /// Name of the service.
    pub service: String,
    /// The answer. An answer that is no JSON is a string.
    pub answer: Value,
}

/// A request to let the caller's process, and its children, run with services: each session that
/// they open or accept from then on has them from its first byte on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The services, in order from the end that opens a session.
    pub services: Vec<ServiceSpec>,
}

/// A program that runs with services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// Folder of its cgroup.
    pub cgroup: PathBuf,
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::{Reply, Request};

    /// Programs write and read these forms.
    #[test]
    fn requests_are_written_like_this() {
        let put = json!({
            "request": "service",
            "sessions": ["1a", "10.0.0.1:80>10.0.0.2:40000"],
            "action": {"put": {"services": ["count", "shape=rate=20M"]}},
            "wait_ms": 500,
        });
        let read: Request = from_value(put).unwrap();
        let request = ServiceRequest {
            sessions: ["1a", "10.0.0.1:80>10.0.0.2:40000"]
                .map(|name| name.parse().unwrap())
                .into(),
            all: false,
            filter: Filter::default(),
            action: ServiceAction::Put {
                beside_hosts: false,
                services: ["count", "shape=rate=20M"]
                    .map(|s| s.parse().unwrap())
                    .into(),
            },
            dry_run: false,
            wait_ms: Some(500),
        };
        assert_eq!(read, Request::Service(request));
        assert!(read.changes());
        let take = json!({"request": "service", "all": true, "action": "take", "dry_run": true});
        let take: Request = from_value(take).unwrap();
        assert!(!take.changes());
        let list: Request =
            from_value(json!({"request": "services", "filter": "port=80"})).unwrap();
        assert!(!list.changes());
        let call = json!({
            "request": "call_service", "session": "1a", "service": "count", "verb": "reset",
        });
        let call: Request = from_value(call).unwrap();
        assert!(call.changes(), "a call may change what the service does");
        for request in [read, take, list, call] {
            let json = to_value(&request).unwrap();
            assert_eq!(from_value::<Request>(json).unwrap(), request);
        }
        for wrong in [
            json!({"request": "service", "all": true}),
            json!({"request": "service", "all": true, "action": {"put": {"services": ["+count"]}}}),
            json!({"request": "service", "all": true, "action": "take", "wait": 1}),
            json!({"request": "call_service", "session": "1a", "service": "count"}),
        ] {
            assert!(from_value::<Request>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn replies_are_written_like_this() {
        let report = Reply::Service(ServiceReport {
            session: SessionId(0x1a),
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 40_000).into(),
            outcome: ServiceOutcome::Taken,
            services: vec!["count".parse().unwrap()],
            process: None,
            reason: None,
            reasons: Vec::new(),
            delta: Some([5, -7]),
            millis: Some(12),
        });
        let row = Reply::ServiceRow(ServiceRow {
            session: SessionId(0x1a),
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 40_000).into(),
            services: Vec::new(),
            state: ServiceState::Direct,
            handler: None,
            peer: None,
            read: [1, 2],
            written: [6, u64::MAX],
            delta: [5, i64::MIN],
        });
        let answer = Reply::ServiceAnswer(ServiceAnswer {
            session: SessionId(0x1a),
            service: "count".into(),
            answer: json!({"forward": 1}),
        });
        let names = json!({
            "session": "1a", "local": "10.0.0.1:80", "remote": "10.0.0.2:40000",
        });
        let with_names = |mut rest: Value| {
            let rest = rest.as_object_mut().unwrap();
            rest.extend(names.as_object().unwrap().clone());
            Value::Object(rest.clone())
        };
        let written = [
            with_names(json!({
                "reply": "service", "outcome": "taken", "services": ["count"], "delta": [5, -7],
                "millis": 12,
            })),
            with_names(json!({
                "reply": "service_row", "services": [], "state": "direct", "read": [1, 2],
                "written": [6, u64::MAX], "delta": [5, i64::MIN],
            })),
            json!({
                "reply": "service_answer", "session": "1a", "service": "count",
                "answer": {"forward": 1},
            }),
        ];
        for (reply, written) in [report, row, answer].into_iter().zip(written) {
            assert_eq!(to_value(&reply).unwrap(), written);
            assert_eq!(from_value::<Reply>(written).unwrap(), reply);
            assert_eq!(reply.is_final(), matches!(reply, Reply::ServiceAnswer(_)));
        }
    }

    #[test]
    fn states_are_printed_as_in_json() {
        for state in [
            ServiceState::Entering,
            ServiceState::In,
            ServiceState::Leaving,
            ServiceState::Resting,
            ServiceState::Direct,
        ] {
            assert_eq!(to_value(state).unwrap(), *state.to_string());
        }
    }
}
