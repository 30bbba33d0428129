//! State of sessions, exported from this host's firewall and installed there. Where a table of many
//! entries has to be searched, a separate thread asks the kernel. State that a change of a chain
//! waits for is only looked up.

use std::collections::HashMap;
use std::net::IpAddr;

use dysco_api::{
    AboutState, Failure, FailureCode, InstallState, MoveState, Reply, SessionName, StateInstalled,
    StateKind, StateReport, StateSession,
};
use dysco_common::{FlowKey, Session};
use dysco_control as control;
use dysco_explain::{Cause, Explain, Explanation};
use dysco_firewall::transfer::{Action, Give, Message, Moved, Order, TransferId, Transfers};
use dysco_firewall::{self as state, Document, FiveTuple, StateError};
use dysco_proto::{ChangeId, HostEvent, KindName, Reason, Subsession};
use dysco_scheduling::{spawn_long, spawn_short};
use tokio::sync::mpsc;

use super::install::install;
use super::{Answer, Plane};

type Replies = mpsc::Sender<Reply>;

/// Transfers of sessions' state from host to host.
#[derive(Default)]
pub(super) struct Moves {
    transfers: Transfers,
    /// Clients that wait for transfers that this host began.
    waiting: HashMap<TransferId, (bool, Replies)>,
    /// Change and destination host of transfers that a change wanted.
    wanted: HashMap<TransferId, (ChangeId, IpAddr)>,
    /// Actions of those transfers for hosts that have not been asked to get ready.
    next: Vec<(IpAddr, Action)>,
}

/// Result of a task for another host.
pub(super) enum Done {
    /// The export is done, or the reason why not.
    Exported(Give, Result<Vec<u8>, Explanation>),
    /// The installation is done, or the reason why not.
    Installed(TransferId, Result<Moved, Explanation>),
}

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

    fn order(&self, request: &MoveState) -> Result<Order, Failure> {
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
    fn is_called_so(&self, session: &FiveTuple) -> Result<(), Explanation> {
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

impl Moves {
    pub(super) fn move_state(&mut self, plane: &mut Plane, request: MoveState, replies: Replies) {
        let order = match plane.order(&request) {
            Ok(order) => order,
            Err(failure) => {
                let _ = replies.try_send(Reply::Error(failure));
                return;
            }
        };
        let transfer = TransferId(rand::random());
        self.waiting.insert(transfer, (request.dry_run, replies));
        let actions = self.transfers.begin(plane.now(), transfer, order);
        self.move_on(plane, actions);
    }

    /// Moves a session's state for a change of its chain.
    pub(super) fn move_state_for(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        session: &Subsession,
        from: IpAddr,
        to: IpAddr,
    ) {
        let order = Order {
            session: as_opened(session),
            from,
            to,
            kinds: plane.kinds_of(change),
            dry_run: false,
        };
        let transfer = TransferId(rand::random());
        self.wanted.insert(transfer, (change, to));
        let mut actions = self.transfers.begin(plane.now(), transfer, order);
        let to_it =
            |action: &mut Action| matches!(action, Action::Transmit(host, _) if *host == to);
        let expects = actions.extract_if(.., to_it).map(|action| (to, action));
        self.next.extend(expects);
        // The change waits longest for the old host's export.
        self.move_on(plane, actions);
    }

    /// Makes host `to`, or each host, expect the state that changes want, once it was asked to get
    /// ready. If that host has more of the session than it should, it forgets that then. State that
    /// arrives there earlier is kept. Returns false if there is nothing to expect.
    pub(super) fn have_expected(&mut self, plane: &mut Plane, to: Option<IpAddr>) -> bool {
        let asked = |(host, _): &mut (IpAddr, Action)| to.is_none_or(|to| *host == to);
        let next: Vec<_> = self.next.extract_if(.., asked).collect();
        let any = !next.is_empty();
        self.move_on(plane, next.into_iter().map(|(_, action)| action).collect());
        any
    }

    pub(super) fn take_state_message(&mut self, plane: &mut Plane, incoming: &control::Incoming) {
        let Some(message) = Message::decode(&incoming.message) else {
            plane.state.malformed += 1;
            tracing::warn!(from = %incoming.via, "a message about state was discarded");
            return;
        };
        let now = plane.now();
        let actions = self
            .transfers
            .handle(now, &incoming.from.addresses, message);
        self.move_on(plane, actions);
    }

    pub(super) fn sweep_moves(&mut self, plane: &mut Plane) {
        let now = plane.now();
        let mut actions = self.transfers.tick(now);
        // A transfer that ends by itself has timed out.
        let over = |action: &mut Action| matches!(action, Action::Ended { .. });
        let over: Vec<_> = actions.extract_if(.., over).collect();
        self.move_on(plane, actions);
        for action in over {
            let passes = plane.faults.pass(action.name());
            if let Action::Ended { transfer, result } = action
                && passes
            {
                self.moved(plane, transfer, result, FailureCode::TimedOut);
            }
        }
    }

    /// Expects no state of a session that this host is forgetting.
    pub(super) fn expect_no_state(&mut self, session: &FiveTuple) {
        self.transfers.forget(session);
    }

    pub(super) fn state_done(&mut self, plane: &mut Plane, done: Done) {
        let now = plane.now();
        let transfers = &mut self.transfers;
        let actions = match done {
            Done::Exported(give, documents) => transfers.exported(give, documents),
            Done::Installed(transfer, result) => transfers.installed(now, transfer, result),
        };
        self.move_on(plane, actions);
    }

    fn move_on(&mut self, plane: &mut Plane, actions: Vec<Action>) {
        for action in actions {
            if !plane.faults.pass(action.name()) {
                continue;
            }
            match action {
                Action::Transmit(to, message) => match message.encode() {
                    Ok(bytes) => plane.control.send(to, bytes),
                    Err(error) => tracing::error!(%to, %error, "cannot encode a message"),
                },
                Action::Export {
                    give,
                    session,
                    kinds,
                } => self.export_for(plane, give, session, kinds),
                Action::Install {
                    transfer,
                    session,
                    documents,
                    dry_run,
                } => self.install_for(plane, transfer, session, &documents, dry_run),
                Action::Ended { transfer, result } => {
                    self.moved(plane, transfer, result, FailureCode::Refused);
                }
            }
        }
    }

    /// Exports a session's state for another host. A few look-ups are done here, since the kernel
    /// answers them sooner than a thread wakes up.
    fn export_for(
        &mut self,
        plane: &mut Plane,
        give: Give,
        session: FiveTuple,
        kinds: Vec<KindName>,
    ) {
        let found = plane.is_called_so(&session).and_then(|()| {
            state::export_at_once(&session, &kinds).map_err(|error| error.explain())
        });
        if let Some(found) = found.transpose() {
            let packed = found.and_then(|all| packed(&session, &kinds, &all));
            return self.state_done(plane, Done::Exported(give, packed));
        }
        let answers = plane.answers.clone();
        spawn_short(move || {
            let documents = state::export(&session, &kinds).map_err(|error| error.explain());
            let packed = documents.and_then(|all| packed(&session, &kinds, &all));
            let done = Done::Exported(give, packed);
            let _ = answers.send(Answer::State(done));
        });
    }

    /// Installs state that another host has sent, here or on a thread as for an export.
    fn install_for(
        &mut self,
        plane: &mut Plane,
        transfer: TransferId,
        session: FiveTuple,
        documents: &[u8],
        dry_run: bool,
    ) {
        let read = serde_json::from_slice(documents)
            .map_err(|error| Explanation::new("read the state", error))
            .and_then(|documents| state::read(&documents).map_err(|error| error.explain()));
        let at_once = read.as_deref().map_or(true, state::is_at_once);
        let runtime = tokio::runtime::Handle::current();
        let work = move |documents: Vec<Document>| {
            let report = install(&runtime, &session, &documents, dry_run);
            let moved = |report: StateInstalled| Moved {
                documents: report.documents as u32,
                new: report.new as u32,
                updated: report.updated as u32,
            };
            report.map(moved).map_err(|error| error.explain())
        };
        if at_once {
            return self.state_done(plane, Done::Installed(transfer, read.and_then(work)));
        }
        let answers = plane.answers.clone();
        spawn_short(move || {
            let done = Done::Installed(transfer, read.and_then(work));
            let _ = answers.send(Answer::State(done));
        });
    }

    /// Handles the end of a transfer. `code` is for the client that waits for a transfer that was
    /// not done.
    fn moved(
        &mut self,
        plane: &mut Plane,
        transfer: TransferId,
        result: Result<Moved, Explanation>,
        code: FailureCode,
    ) {
        if let Some((change, to)) = self.wanted.remove(&transfer) {
            let result = result.map(|_| ());
            let result = result.map_err(|error| Reason::StateNotMoved(error.into()));
            return plane.tell_machine(HostEvent::StateMoved { change, to, result });
        }
        let Some((dry_run, replies)) = self.waiting.remove(&transfer) else {
            return;
        };
        let reply = match result {
            Ok(moved) => Reply::StateInstalled(StateInstalled {
                dry_run,
                documents: moved.documents as usize,
                new: moved.new as usize,
                updated: moved.updated as usize,
            }),
            Err(error) => Reply::Error(Failure::new(code, error)),
        };
        let _ = replies.try_send(reply);
    }
}

/// Returns the kinds as hosts name them to each other.
fn as_named(kinds: &[StateKind]) -> Vec<KindName> {
    kinds.iter().map(|kind| (*kind).into()).collect()
}

/// Returns the five-tuple of a session in the direction in which it was opened.
pub(super) fn as_opened(session: &Subsession) -> FiveTuple {
    FiveTuple {
        source: session.left,
        destination: session.right,
    }
}

/// Encodes documents for another host. Each named kind must be there: without it, that host would
/// drop the session.
fn packed(
    session: &FiveTuple,
    kinds: &[KindName],
    all: &[Document],
) -> Result<Vec<u8>, Explanation> {
    state::has_each(session, kinds, all).map_err(|error| error.explain())?;
    serde_json::to_vec(all).map_err(|error| Explanation::new("encode the state", error))
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
        let told = failure(&StateError::Refused {
            kind: KindName::Conntrack,
            session,
            fault: Box::new(Fault::Version(7)),
        });
        assert_eq!(told.code, FailureCode::BadRequest);
        let what = "install the conntrack state of 10.0.0.1:1>10.0.0.1:2";
        assert_eq!(told.what, what);
        assert_eq!(told.why, "it is of version 7, and this is 1");
        assert_eq!(told.hint, "run the same release on both hosts");
    }
}
