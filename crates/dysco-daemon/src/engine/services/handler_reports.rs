//! Reports of handlers, and to which part of the services each goes.

use dysco_explain::Cause;
use dysco_runner::protocol::Report;

use super::Services;
use super::handler::session_of;
use crate::engine::Plane;
use crate::handlers::Owner;

impl Services {
    /// Takes a report of an owner's handler.
    pub(super) fn reported(&mut self, plane: &mut Plane, owner: Owner, report: Report) {
        let slot = session_of(&report);
        let own = |slot: &u32| {
            self.sessions
                .get(slot)
                .is_some_and(|one| one.owner == owner)
        };
        let slot = slot.filter(own);
        let with = |slot: &u32| {
            self.sessions
                .get(slot)
                .is_some_and(|one| one.stage.is_with_handler())
        };
        let slot = match report {
            // The answer to the offer.
            Report::Put { .. } => slot,
            _ => slot.filter(with),
        };
        match (report, slot) {
            (Report::Put { result, .. }, Some(slot)) => self.offer_answered(plane, slot, result),
            (Report::Ready { version }, _) => {
                if let Some(handler) = self.handlers.get(&owner) {
                    handler.speaks(version);
                }
            }
            (Report::Added { result, .. }, Some(slot)) => self.added(plane, slot, result),
            (Report::Joined { service, .. }, Some(slot)) => self.joined(plane, slot, &service),
            (Report::Parted { service, .. }, Some(slot)) => self.parted(plane, slot, &service),
            (Report::Idle { idle, .. }, Some(slot)) => self.idle(plane, slot, idle),
            // Services at both ends leave with the other host.
            (Report::Left { .. }, Some(slot)) if self.is_paired(slot) => {
                self.half_left(plane, slot)
            }
            (Report::Left { delta, .. }, Some(slot)) => self.left(plane, slot, delta),
            (Report::Ended { reason, .. }, Some(slot)) => self.ended(plane, slot, &reason),
            (Report::Notify { service, text, .. }, Some(slot)) => {
                if let Some(one) = self.sessions.get(&slot) {
                    let text = format!("{service}: {text}");
                    plane.report("service-notice", Some(one.session), text);
                }
            }
            (Report::Answer { id, result }, _) => self.answered(owner, id, result),
            (Report::Sessions { sessions, more }, _) if self.is_taking_up(owner) => {
                self.taken_up(plane, owner, &sessions, more);
            }
            (Report::Sessions { sessions, more }, _) => self.listed(plane, owner, sessions, more),
            (Report::Invalid { cause }, _) => {
                tracing::error!("the handler refused a request: {cause}");
            }
            _ => {}
        }
    }

    /// The handler has taken a session that it was offered, or has refused it.
    fn offer_answered(&mut self, plane: &mut Plane, slot: u32, result: Result<(), Cause>) {
        match (result, self.routes_of(slot)) {
            (Ok(()), Some(routes)) => self.adopted(plane, slot, routes),
            (Ok(()), None) => self.accepted(plane, slot),
            (Err(cause), Some(_)) => self.end_session(plane, slot, &cause.why),
            (Err(cause), None) => {
                self.abort(plane, slot, &cause.why);
                self.refuse(plane, slot, cause);
            }
        }
    }
}
