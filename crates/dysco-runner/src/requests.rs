//! Requests of `dyscod`.

use std::os::fd::OwnedFd;

use dysco_explain::Cause;
use dysco_service::Service;

use crate::Spec;
use crate::engine::Runner;
use crate::protocol::{End, Pair, Report, Request};
use crate::registry::Half;
use crate::session::Session;

/// Greatest number of sessions of a runner.
const SESSIONS: usize = 4096;

/// Greatest number of services of a session.
const SERVICES: usize = 16;

/// Number of sessions in a report.
const PAGE: usize = 32;

impl Runner {
    /// Handles a request.
    pub(crate) fn handle(&mut self, request: Request, fds: Vec<OwnedFd>) {
        match request {
            Request::Put {
                session,
                opener,
                other,
                pair,
                services,
            } => {
                let view = dysco_service::Session {
                    opener,
                    other,
                    both_ends: pair.is_some(),
                };
                let result = self.put(session, view, &services, pair.as_ref(), fds);
                self.host.report(Report::Put { session, result });
                self.schedule(session);
            }
            // A session that has ended meanwhile needs no answer.
            Request::Open { session } => {
                self.with(session, |session, _| {
                    session.open();
                    Ok(())
                });
            }
            Request::Add {
                session,
                next_to,
                behind,
                services,
            } => self.add(session, next_to, behind.as_deref(), &services),
            Request::Join {
                session,
                secret,
                begins,
                services,
                leaves,
            } => self.join(session, secret, &services, (!begins).then_some(leaves)),
            Request::Part { session, services } => {
                self.known(session);
                self.with(session, |session, host| session.part(&services, host));
            }
            Request::Take { session } => {
                self.known(session);
                self.with(session, Session::take);
            }
            Request::Release { session, reset } => self.release(session, reset),
            Request::Call {
                session,
                service,
                id,
                bytes,
            } => self.call(session, &service, id, bytes),
            Request::List => self.list(),
        }
    }

    fn put(
        &mut self,
        id: u64,
        view: dysco_service::Session,
        services: &[Spec],
        pair: Option<&Pair>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Cause> {
        if self.sessions.contains_key(&id) {
            return Err(Cause::new(format!("session {id} is there already")));
        }
        if self.sessions.len() >= SESSIONS {
            return Err(Cause::new(format!("the runner has {SESSIONS} sessions")));
        }
        few(services.len())?;
        let sockets = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            Cause::new(format!("{} descriptors came, and not 2", fds.len()))
                .hint("look whether the runner's limit of open files is reached")
        })?;
        let half = pair.map(Half::of);
        let services = services.iter();
        let services = services.map(|spec| self.registry.make(spec, half.as_ref()));
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let session = Session::new(id, view, services, sockets, pair, &mut self.host)?;
        self.sessions.insert(id, session);
        Ok(())
    }

    /// Forgets a session, and reports its last numbers.
    fn release(&mut self, session: u64, reset: bool) {
        let moved = self.sessions.remove(&session).map(|session| {
            let moved = session.moved();
            if reset {
                session.reset();
            }
            session.close(None, &mut self.host);
            moved
        });
        self.host.report(Report::Released { session, moved });
    }

    /// Puts more services into a session, and reports the result before any consequence of it.
    fn add(&mut self, id: u64, next_to: End, behind: Option<&str>, services: &[Spec]) {
        let made = services.iter().map(|spec| self.registry.make(spec, None));
        let made = made.collect::<Result<Vec<_>, _>>();
        let result = match (made, self.sessions.get_mut(&id)) {
            (Err(cause), _) => Err(cause),
            (_, None) => Err(missing(id)),
            (Ok(made), Some(session)) => few(session.len() + made.len())
                .and_then(|()| session.add(next_to, behind, made, &mut self.host)),
        };
        let session = id;
        self.host.report(Report::Added { session, result });
        self.with(id, Session::settle);
    }

    /// Puts halves of services into a session. If the other host begins, keeps them ready, and lets
    /// the services with these names leave.
    fn join(&mut self, id: u64, secret: [u8; 32], services: &[Spec], leaves: Option<Vec<String>>) {
        let begins = leaves.is_none();
        let result = self.make_halves(id, secret, services).and_then(|made| {
            let session = self.sessions.get_mut(&id).ok_or_else(|| missing(id))?;
            match leaves {
                None => session.enter(made, &mut self.host),
                Some(leaves) => session.expect(made, leaves),
            }
        });
        if !begins || result.is_err() {
            let session = id;
            self.host.report(Report::Added { session, result });
        }
        self.with(id, Session::settle);
    }

    fn make_halves(
        &self,
        id: u64,
        secret: [u8; 32],
        services: &[Spec],
    ) -> Result<Vec<Box<dyn Service>>, Cause> {
        let session = self.sessions.get(&id).ok_or_else(|| missing(id))?;
        few(session.len() + services.len())?;
        let outward = session.outward()?;
        let half = Half { outward, secret };
        let services = services.iter();
        services
            .map(|spec| self.registry.make(spec, Some(&half)))
            .collect()
    }

    /// Calls a service of a session.
    fn call(&mut self, session: u64, service: &str, id: u64, bytes: Vec<u8>) {
        match self.sessions.contains_key(&session) {
            true => self.with(session, |session, host| {
                session.call(service, id, bytes, host)
            }),
            false => self.host.report(Report::Answer {
                id,
                result: Err(missing(session)),
            }),
        }
    }

    /// Reports an unknown session as invalid.
    fn known(&mut self, session: u64) {
        if !self.sessions.contains_key(&session) {
            let cause = missing(session);
            self.host.report(Report::Invalid { cause });
        }
    }

    fn list(&mut self) {
        let mut states: Vec<_> = self.sessions.values().map(Session::state).collect();
        loop {
            let rest = states.split_off(states.len().min(PAGE));
            let more = !rest.is_empty();
            self.host.report(Report::Sessions {
                sessions: states,
                more,
            });
            if !more {
                return;
            }
            states = rest;
        }
    }
}

/// Checks the number of a session's services.
fn few(services: usize) -> Result<(), Cause> {
    if services > SERVICES {
        let cause = Cause::new(format!("more than {SERVICES} services are asked for"));
        return Err(cause.hint("put fewer services into the session"));
    }
    Ok(())
}

fn missing(session: u64) -> Cause {
    Cause::new(format!("the runner has no session {session}"))
}
