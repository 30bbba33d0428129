//! Transfers of sessions' state from host to host.

use std::collections::HashMap;
use std::net::IpAddr;

use dysco_api::{Failure, FailureCode, MoveState, Reply, StateInstalled};
use dysco_control as control;
use dysco_explain::{Explain, Explanation};
use dysco_firewall::transfer::{Action, Give, Message, Moved, Order, TransferId, Transfers};
use dysco_firewall::{self as state, Document, FiveTuple};
use dysco_proto::marked::Marked;
use dysco_proto::{ChangeId, HostEvent, KindName, Reason, Subsession};
use dysco_scheduling::spawn_short;

use super::firewall::{Replies, as_opened};
use super::install::install;
use super::{Answer, Plane};

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
