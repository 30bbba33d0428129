//! Requests of `dyscod`.

use std::os::fd::OwnedFd;

use dysco_explain::Cause;

use crate::Spec;
use crate::engine::Runner;
use crate::protocol::{Pair, Report, Request};
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
            // A session that has ended meanwhile needs nothing.
            Request::Open { session } => {
                self.with(session, |session, _| {
                    session.open();
                    Ok(())
                });
            }
            Request::Take { session } => {
                self.known(session);
                self.with(session, Session::take);
            }
            Request::Release { session, reset } => {
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
            Request::Call {
                session,
                service,
                id,
                bytes,
            } => match self.sessions.contains_key(&session) {
                true => self.with(session, |session, host| {
                    session.call(&service, id, bytes, host)
                }),
                false => self.host.report(Report::Answer {
                    id,
                    result: Err(missing(session)),
                }),
            },
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
        if services.len() > SERVICES {
            let cause = Cause::new(format!("more than {SERVICES} services are asked for"));
            return Err(cause.hint("put fewer services into the session"));
        }
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

    /// Reports a session that is not there.
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

fn missing(session: u64) -> Cause {
    Cause::new(format!("the runner has no session {session}"))
}
