//! Sessions whose handler has died. If it had bytes of a session in hand, the session ends.
//!
//! If it had passed on all that it had read, the session goes on: the daemon has its sockets as well,
//! and gives them to the next handler, which passes bytes on unchanged. The session then leaves the
//! detour, as if its services had left by themselves.

use dysco_api::ServiceSpec;
use dysco_common::policy::Otherwise;
use dysco_explain::Cause;
use dysco_runner::protocol::Request;

use super::handler::{in_order, offer};
use super::{Routes, Serviced, Services, Stage, choice};
use crate::engine::Plane;
use crate::handlers::Owner;

impl Serviced {
    /// Returns the routes of the session, if it can go on with another handler.
    fn survives(&self, plane: &Plane, slot: u32) -> Option<Routes> {
        let routes = match self.stage {
            Stage::Entering => Routes::Enter,
            Stage::In | Stage::Asked => Routes::Through,
            Stage::Leaving => Routes::Leave,
            // The next handler has died as well, before it took the session.
            _ => return None,
        };
        // A rule may want it to end rather than to go on without services.
        let may = |held: &super::Held| held.otherwise == Otherwise::Direct;
        if self.paired.is_some() || !self.held.as_ref().is_none_or(may) {
            return None;
        }
        let s = plane.agent.session(slot);
        let even = self.sockets.as_ref().is_some_and(super::Sockets::are_even);
        // One that was coming in may have worked.
        let all = [&self.services[..], self.coming()].concat();
        (even && keep_bytes(&all, &s)).then_some(routes)
    }
}

/// True if none of these services changes the bytes of a session.
fn keep_bytes(services: &[ServiceSpec], s: &dysco_common::Session) -> bool {
    choice::needs(services, s).is_ok_and(|needs| needs.keeps_bytes)
}

impl Services {
    /// Decides the fate of a session whose handler has ended. Returns true if it waits for the next
    /// handler.
    pub(super) fn lost(&mut self, plane: &mut Plane, slot: u32) -> bool {
        plane.agent.settle_detour(slot, false);
        let is_out = self.is_out(plane, slot);
        let stage = self.sessions.get(&slot).map(|one| one.stage);
        match stage {
            None | Some(Stage::Direct | Stage::Invited) => {}
            Some(Stage::Leaving) if is_out => self.out(plane, slot),
            Some(Stage::Sockets) => self.waiting.push(slot),
            // No byte has entered it.
            Some(Stage::Offered(..) | Stage::Accepted(..)) => {
                self.abort(plane, slot, "its handler has ended");
                self.refuse(plane, slot, "the handler has ended".into());
            }
            _ if self.orphan(plane, slot) => return true,
            _ => self.end_session(plane, slot, "its handler has ended"),
        }
        false
    }

    /// Ends a session whose bytes are lost.
    pub(super) fn end_session(&mut self, plane: &mut Plane, slot: u32, why: &str) {
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        plane.report("service-failed", Some(one.session), why.into());
        match &one.sockets {
            Some(sockets) => sockets.reset(),
            // An earlier process has put them in.
            None => self.send(
                slot,
                Request::Release {
                    session: u64::from(slot),
                    reset: true,
                },
            ),
        }
        self.settle_refused(
            plane,
            slot,
            Cause::new(format!("{why}, and the session with it")),
        );
        self.abandon(slot);
        self.sessions.remove(&slot);
    }

    /// Lets a session whose handler has died wait for the next one. Returns false if bytes of it may
    /// be lost.
    fn orphan(&mut self, plane: &mut Plane, slot: u32) -> bool {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return false;
        };
        let Some(routes) = one.survives(plane, slot) else {
            return false;
        };
        one.stage = Stage::Orphaned(routes);
        one.lost = true;
        let why = "its handler has ended, with no bytes in hand: it goes on without services";
        plane.report("service-failed", Some(one.session), why.into());
        let comes = !one.coming().is_empty();
        if routes == Routes::Enter || comes {
            self.settle_refused(plane, slot, Cause::new(why));
        }
        if let Some(one) = self.sessions.get_mut(&slot).filter(|_| comes) {
            one.partial = None;
        }
        true
    }

    /// Returns the routes of a session whose handler has died.
    pub(super) fn routes_of(&self, slot: u32) -> Option<Routes> {
        match self.sessions.get(&slot)?.stage {
            Stage::Orphaned(routes) => Some(routes),
            _ => None,
        }
    }

    /// Gives the sessions of an owner's handler that has died to the present one.
    pub(super) fn adopt(&mut self, plane: &mut Plane, owner: Owner) {
        for slot in self.taken_orphans(owner) {
            // The session may have ended meanwhile.
            if self.routes_of(slot).is_none() {
                continue;
            }
            if let Err(cause) = self.give(slot) {
                self.end_session(plane, slot, &cause.why);
            }
        }
    }

    /// Gives the handler the sockets of a session.
    fn give(&self, slot: u32) -> Result<(), Cause> {
        let Some(one) = self.sessions.get(&slot) else {
            return Ok(());
        };
        let (Some(handler), Some(sockets)) = (self.handler_of(slot), &one.sockets) else {
            return Err("its handler has ended".into());
        };
        let fds = in_order(sockets, one.opened_here)?;
        handler.send(offer(slot, one)?, &fds).map_err(Cause::new)
    }

    /// The next handler has taken a session. Its route goes on to change, or changes back.
    pub(super) fn adopted(&mut self, plane: &mut Plane, slot: u32, routes: Routes) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        match routes {
            Routes::Enter => {
                one.stage = Stage::Entering;
                one.left.get_or_insert([0; 2]);
                self.step(plane, slot);
            }
            Routes::Through => {
                one.stage = Stage::In;
                self.left(plane, slot, [0; 2]);
            }
            Routes::Leave => {
                one.stage = Stage::Leaving;
                self.step(plane, slot);
            }
        }
    }
}
