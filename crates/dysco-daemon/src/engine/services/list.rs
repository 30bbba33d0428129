//! Listings of the sessions with services, and calls of services.

use std::collections::HashSet;

use dysco_api::{
    Failure, FailureCode, Reply, ServiceAnswer, ServiceCall, ServiceListing, ServiceRow,
    ServiceState, SessionId,
};
use dysco_explain::Cause;
use dysco_runner::protocol::{Bytes, Moved, Request, State};
use serde_json::Value;
use tokio::sync::mpsc;

use super::request::not_own;
use super::{Serviced, Services, Stage, packets};
use crate::api::Caller;
use crate::engine::Plane;
use crate::engine::listing::{named, no_such_session, shows};
use crate::handlers::Owner;

/// A listing that waits for the handlers' numbers.
pub(super) struct Waiting {
    /// Owners of handlers that have not answered.
    asked: HashSet<Owner>,
    slots: Vec<u32>,
    known: Vec<State>,
    replies: mpsc::Sender<Reply>,
}

/// A call that waits for its answer.
pub(super) struct Calling {
    owner: Owner,
    session: SessionId,
    service: String,
    replies: mpsc::Sender<Reply>,
}

impl Services {
    /// Lists the sessions with services.
    pub(crate) fn list(
        &mut self,
        plane: &Plane,
        listing: &ServiceListing,
        replies: mpsc::Sender<Reply>,
    ) {
        let mut slots: Vec<u32> = match listing.sessions.as_slice() {
            [] => {
                let others = packets::slots(plane).into_iter();
                let resting = self.resting.keys().copied();
                let all = self.sessions.keys().copied().chain(others);
                all.chain(resting).collect()
            }
            names => match named(plane, names) {
                Ok(slots) => slots,
                // The client's channel is fresh and has room, or the client has left.
                Err(failure) => return drop(replies.try_send(Reply::Error(failure))),
            },
        };
        slots.retain(|slot| {
            let shown = listing.filter.is_empty() || shows(plane, *slot, &listing.filter);
            let s = plane.agent.session(*slot);
            let rests = self.rests_in(*slot, &s).is_some();
            let has = self.sessions.contains_key(slot) || plane.agent.packet_services(&s).is_some();
            let has = has || rests;
            has && shown
        });
        slots.sort_unstable();
        slots.dedup();
        let handlers = self.handlers.iter();
        let asked = handlers.filter(|(_, handler)| handler.send(Request::List, &[]).is_ok());
        self.lists.push(Waiting {
            asked: asked.map(|(owner, _)| *owner).collect(),
            slots,
            known: Vec::new(),
            replies,
        });
        self.show_answered(plane);
    }

    /// The handler of an owner has listed some of its sessions, in answer to the first request that it
    /// has not answered.
    pub(super) fn listed(&mut self, plane: &Plane, owner: Owner, sessions: Vec<State>, more: bool) {
        let mut all = self.lists.iter_mut();
        let Some(first) = all.find(|waiting| waiting.asked.contains(&owner)) else {
            return;
        };
        first.known.extend(sessions);
        if !more {
            first.asked.remove(&owner);
            self.show_answered(plane);
        }
    }

    /// The handler of an owner has ended: it answers nothing any more.
    pub(super) fn unanswered(&mut self, plane: &Plane, owner: Owner) {
        self.taking_up.remove(&owner);
        for waiting in &mut self.lists {
            waiting.asked.remove(&owner);
        }
        self.show_answered(plane);
        let calls = self.calls.iter();
        let calls = calls.filter(|(_, calling)| calling.owner == owner);
        let calls: Vec<u64> = calls.map(|(id, _)| *id).collect();
        for id in calls {
            self.answered(owner, id, Err("the handler has ended".into()));
        }
    }

    /// Shows the listings to which all handlers have answered.
    fn show_answered(&mut self, plane: &Plane) {
        let all = |waiting: &mut Waiting| waiting.asked.is_empty();
        let answered: Vec<Waiting> = self.lists.extract_if(.., all).collect();
        for waiting in answered {
            self.show(plane, waiting);
        }
    }

    fn show(&self, plane: &Plane, waiting: Waiting) {
        let Waiting {
            asked: _,
            slots,
            known,
            replies,
        } = waiting;
        let moved = |slot: u32| {
            let state = known.iter().find(|state| state.session == u64::from(slot));
            state.map_or_else(Moved::default, |state| state.moved)
        };
        let row = |slot: u32| {
            let s = plane.agent.session(slot);
            if let Some(record) = plane.agent.packet_services(&s) {
                return Some(packets::row(plane, slot, &s, &record));
            }
            if let Some(rests) = self.rests_in(slot, &s) {
                return Some(rests.row(plane, slot, &s));
            }
            let one = self.sessions.get(&slot)?;
            Some(self.row(plane, slot, one, moved(slot)))
        };
        let rows = slots.into_iter().filter_map(row);
        let rows: Vec<Reply> = rows.map(Reply::ServiceRow).collect();
        tokio::spawn(async move {
            for reply in rows.into_iter().chain([Reply::Done { summary: None }]) {
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
        });
    }

    fn row(&self, plane: &Plane, slot: u32, one: &Serviced, moved: Moved) -> ServiceRow {
        let s = plane.agent.session(slot);
        let left = one.stage == Stage::Direct;
        let handler = self.handlers.get(&one.owner).filter(|_| !left);
        ServiceRow {
            session: plane.session_id(slot, &s),
            local: one.key.local(),
            remote: one.key.remote(),
            services: match left {
                true => Vec::new(),
                // A value may be a secret.
                false => one.services.iter().map(without_secrets).collect(),
            },
            state: match one.stage {
                Stage::Invited
                | Stage::Sockets
                | Stage::Offered(..)
                | Stage::Accepted(..)
                | Stage::Entering => ServiceState::Entering,
                Stage::In => ServiceState::In,
                Stage::Asked | Stage::Leaving | Stage::Orphaned(_) => ServiceState::Leaving,
                Stage::Direct => ServiceState::Direct,
            },
            handler: handler.map(|handler| handler.pid()),
            peer: one.paired.as_ref().filter(|_| !left).map(|pair| pair.peer),
            read: moved.read,
            written: moved.written,
            delta: one.delta,
        }
    }

    /// Asks a service of a session something.
    pub(crate) fn call(
        &mut self,
        plane: &Plane,
        call: ServiceCall,
        caller: &Caller,
        replies: mpsc::Sender<Reply>,
    ) {
        if let Err(failure) = may_call(plane, &call, caller) {
            // The client's channel is fresh and has room, or the client has left.
            return drop(replies.try_send(Reply::Error(failure)));
        }
        if let Some(reply) = call_in_packets(plane, &call) {
            // The client's channel is fresh and has room, or the client has left.
            return drop(replies.try_send(reply));
        }
        let asked = self.ask(plane, &call);
        match asked {
            Ok((id, owner, session)) => {
                let service = call.service;
                self.calls.insert(
                    id,
                    Calling {
                        owner,
                        session,
                        service,
                        replies,
                    },
                );
            }
            // The client's channel is fresh and has room, or the client has left.
            Err(failure) => drop(replies.try_send(Reply::Error(failure))),
        }
    }

    fn ask(
        &mut self,
        plane: &Plane,
        call: &ServiceCall,
    ) -> Result<(u64, Owner, SessionId), Failure> {
        let slot = plane
            .slot_named(&call.session)
            .ok_or_else(|| no_such_session(&call.session))?;
        let refused = |cause: Cause| {
            Failure::new(
                FailureCode::Refused,
                cause.of("call a service of the session"),
            )
        };
        let one = self
            .sessions
            .get(&slot)
            .filter(|one| one.stage == Stage::In);
        let handler = one.and_then(|one| self.handlers.get(&one.owner));
        let (Some(one), Some(handler)) = (one, handler) else {
            let cause = Cause::new("no service is in it");
            return Err(refused(cause.hint("look with 'dyscoctl service list'")));
        };
        let id = self.next_job;
        self.next_job += 1;
        let question = match &call.argument {
            Some(argument) => format!("{} {argument}", call.verb),
            None => call.verb.clone(),
        };
        let request = Request::Call {
            session: u64::from(slot),
            service: call.service.clone(),
            id,
            bytes: question.into_bytes(),
        };
        handler
            .send(request, &[])
            .map_err(|error| refused(Cause::new(error)))?;
        Ok((id, one.owner, one.session))
    }

    /// A service in the handler of an owner has answered a call.
    pub(super) fn answered(&mut self, owner: Owner, id: u64, result: Result<Bytes, Cause>) {
        let asked = self.calls.get(&id);
        if asked.is_none_or(|calling| calling.owner != owner) {
            return;
        }
        let Some(calling) = self.calls.remove(&id) else {
            return;
        };
        let reply = match result {
            Ok(Bytes(bytes)) => Reply::ServiceAnswer(ServiceAnswer {
                session: calling.session,
                service: calling.service,
                answer: serde_json::from_slice(&bytes)
                    .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into())),
            }),
            Err(cause) => Reply::Error(Failure::new(
                FailureCode::Refused,
                cause.of("call a service of the session"),
            )),
        };
        // The client's channel is fresh and has room, or the client has left.
        let _ = calling.replies.try_send(reply);
    }
}

/// Judges whether a caller may call a service: root may, and the user of the session's socket.
fn may_call(plane: &Plane, call: &ServiceCall, caller: &Caller) -> Result<(), Failure> {
    match not_own(plane, plane.slot_named(&call.session), caller.uid) {
        None => Ok(()),
        Some(cause) => Err(Failure::new(
            FailureCode::NotAllowed,
            cause.of("call a service of the session"),
        )),
    }
}

/// Answers a call of a service of the packet plane; `None` if the session has none.
fn call_in_packets(plane: &Plane, call: &ServiceCall) -> Option<Reply> {
    let slot = plane.slot_named(&call.session)?;
    let s = plane.agent.session(slot);
    let record = plane.agent.packet_services(&s)?;
    let question = (&*call.service, &*call.verb, call.argument.as_ref());
    Some(match packets::call(plane, &s, &record, question) {
        Ok(answer) => Reply::ServiceAnswer(ServiceAnswer {
            session: plane.session_id(slot, &s),
            service: call.service.clone(),
            answer,
        }),
        Err(cause) => Reply::Error(Failure::new(
            FailureCode::Refused,
            cause.of("call a service of the session"),
        )),
    })
}

fn without_secrets(service: &dysco_api::ServiceSpec) -> dysco_api::ServiceSpec {
    let mut shown = service.clone();
    for (key, value) in &mut shown.arguments {
        if key == "key" {
            *value = "…".into();
        }
    }
    shown
}
