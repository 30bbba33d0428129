//! State of sessions, exported from this host's firewall and installed there. Where a table of many
//! entries has to be searched, a separate thread asks the kernel. State that a change of a chain
//! waits for is only looked up.

use dysco_api::{
    AboutState, Failure, FailureCode, InstallState, MoveState, Reply, SessionName, StateKind,
    StateReport, StateSession,
};
use dysco_common::{FlowKey, Session};
use dysco_explain::{Cause, Explain, Explanation};
use dysco_firewall::transfer::Order;
use dysco_firewall::{self as state, FiveTuple, StateError};
use dysco_proto::{KindName, Subsession};
use dysco_scheduling::spawn_long;
use tokio::sync::mpsc;

use super::Plane;
use super::install::install;

pub(super) type Replies = mpsc::Sender<Reply>;

impl Plane {
    pub(super) fn export_state(&self, about: &AboutState, replies: Replies) {
        let kinds = as_named(&about.kinds);
        self.with_session(&about.session, replies, move |session| {
            let documents = state::export(&session, &kinds)?;
            // Documents have string keys: they always encode.
            let documents = serde_json::to_value(documents).unwrap_or_default();
            let session = StateSession {
                source: session.source,
                destination: session.destination,
            };
            Ok(Reply::State(StateReport { session, documents }))
        });
    }

    pub(super) fn install_state(&self, request: InstallState, replies: Replies) {
        let InstallState {
            session,
            documents,
            dry_run,
        } = request;
        let runtime = tokio::runtime::Handle::current();
        self.with_session(&session, replies, move |session| {
            let documents = state::read(&documents)?;
            install(&runtime, &session, &documents, dry_run).map(Reply::StateInstalled)
        });
    }

    pub(super) fn order(&self, request: &MoveState) -> Result<Order, Failure> {
        let session = self
            .five_tuple(&request.session)
            .ok_or_else(|| super::listing::no_such_session(&request.session))?;
        let own = &self.config.host.addresses;
        let session = match session {
            _ if session.ends().iter().any(|end| own.contains(&end.ip())) => session,
            _ => {
                return Err(refused(
                    "this host holds no end of the session, and others would not answer it",
                    "ask on the host of one of its ends",
                ));
            }
        };
        let other = |name| {
            self.resolve(name)?.ok_or_else(|| {
                refused(
                    "a host at an end of the session is no middlebox of it",
                    "name the two firewalls' hosts",
                )
            })
        };
        let (from, to) = (other(&request.from)?, other(&request.to)?);
        if from == to {
            let why = "both are the same host";
            return Err(refused(why, "name the host that has it, and another"));
        }
        Ok(Order {
            session,
            from,
            to,
            kinds: as_named(&request.kinds),
            dry_run: request.dry_run,
        })
    }

    /// Returns an error if the session has passed a NAT: the firewall's entries are then of another
    /// five-tuple, which the host that is to get them does not expect.
    pub(super) fn is_called_so(&self, session: &FiveTuple) -> Result<(), Explanation> {
        let known = self.known_to_firewall(session);
        match known == *session {
            true => Ok(()),
            false => Err(Explanation::new(
                format!("export the state of {session}"),
                format!("it has passed a NAT, behind which it is {known}"),
            )
            .hint("leave --state out, or move the state of the host with the NAT")),
        }
    }

    /// Returns the five-tuple by which this host's firewall knows a session that this host passes
    /// on: as the session arrives here, through a NAT or not.
    pub(super) fn known_to_firewall(&self, session: &FiveTuple) -> FiveTuple {
        let comes = FlowKey::new(session.destination, session.source);
        let slot = self.agent.find_called(&comes);
        let s = slot.map(|slot| self.agent.session(slot));
        let key = s.filter(Session::is_behind_nat).map(|s| s.key);
        key.map_or(*session, |key| FiveTuple {
            source: key.remote(),
            destination: key.local(),
        })
    }

    pub(super) fn remove_state(&self, about: &AboutState, replies: Replies) {
        let kinds = as_named(&about.kinds);
        self.with_session(&about.session, replies, move |session| {
            let removed = state::remove(&session, &kinds)?;
            Ok(Reply::StateRemoved { removed })
        });
    }

    fn with_session(
        &self,
        name: &SessionName,
        replies: Replies,
        work: impl FnOnce(FiveTuple) -> Result<Reply, StateError> + Send + 'static,
    ) {
        let Some(session) = self.five_tuple(name) else {
            let _ = replies.try_send(Reply::Error(super::listing::no_such_session(name)));
            return;
        };
        spawn_long(move || {
            let reply = work(session).unwrap_or_else(|error| Reply::Error(failure(&error)));
            // The client's channel is fresh and has room, or the client has left.
            let _ = replies.try_send(reply);
        });
    }

    /// Returns the five-tuple by which firewalls know a session. A firewall also has state of other
    /// hosts' sessions: a five-tuple needs no session here.
    fn five_tuple(&self, name: &SessionName) -> Option<FiveTuple> {
        let own = self.slot_named(name).map(|slot| self.agent.session(slot));
        let (source, destination) = match (own.map(|s| s.on_wire().key), name) {
            (Some(called), _) => (called.local(), called.remote()),
            (None, SessionName::Tuple { local, remote }) => (*local, *remote),
            (None, SessionName::Id(_)) => return None,
        };
        Some(FiveTuple {
            source,
            destination,
        })
    }
}

/// Returns the kinds as hosts name them to each other.
pub(super) fn as_named(kinds: &[StateKind]) -> Vec<KindName> {
    kinds.iter().map(|kind| (*kind).into()).collect()
}

/// Returns the five-tuple of a session in the direction in which it was opened.
pub(super) fn as_opened(session: &Subsession) -> FiveTuple {
    FiveTuple {
        source: session.left,
        destination: session.right,
    }
}

fn failure(error: &StateError) -> Failure {
    let code = match error {
        _ if error.is_bad_request() => FailureCode::BadRequest,
        StateError::Kernel { .. } => FailureCode::Internal,
        _ => FailureCode::Refused,
    };
    Failure::new(code, error.explain())
}

fn refused(why: &str, hint: &str) -> Failure {
    let cause = Cause::new(why).hint(hint);
    Failure::new(FailureCode::BadRequest, cause.of("move state"))
}

#[cfg(test)]
mod tests {
    use dysco_firewall::Fault;

    use super::*;

    #[test]
    fn a_failure_has_a_hint() {
        let end = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
        let session = FiveTuple {
            source: end(1),
            destination: end(2),
        };
        let reported = failure(&StateError::Refused {
            kind: KindName::Conntrack,
            session,
            fault: Box::new(Fault::Version(7)),
        });
        assert_eq!(reported.code, FailureCode::BadRequest);
        let what = "install the conntrack state of 10.0.0.1:1>10.0.0.1:2";
        assert_eq!(reported.what, what);
        assert_eq!(reported.why, "it is of version 7, and this is 1");
        assert_eq!(reported.hint, "run the same release on both hosts");
    }
}
