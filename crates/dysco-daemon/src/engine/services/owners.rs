//! Handlers by their owners: which of them run, start, and end.

use std::sync::Arc;

use dysco_agent::Start;
use dysco_explain::{Cause, Explain};

use super::done::Done;
use super::handler::{Handler, make, preload, speaking, start_handler};
use super::{Serviced, Services, Stage};
use crate::engine::{Answer, Plane};
use crate::handlers::{self, Owner, Place, Started};

impl Services {
    /// Returns the handler of a session's services.
    pub(super) fn handler_of(&self, slot: u32) -> Option<&Arc<Handler>> {
        let one = self.sessions.get(&slot)?;
        self.handlers.get(&one.owner)
    }

    /// Returns those of these sessions that are of an owner, and takes them out.
    fn taken(&self, from: &mut Vec<u32>, owner: Owner) -> Vec<u32> {
        let of_owner = |slot: &mut u32| self.sessions.get(slot).is_none_or(|s| s.owner == owner);
        from.extract_if(.., of_owner).collect()
    }

    /// Begins what waits for a handler, and starts those that are missing.
    pub(super) fn go_on(&mut self, plane: &mut Plane) {
        for slot in std::mem::take(&mut self.waiting) {
            let Some(owner) = self.sessions.get(&slot).map(|one| one.owner) else {
                continue;
            };
            match self.handlers.get(&owner).cloned() {
                Some(handler) => self.begin_to_make(plane, slot, handler),
                None => {
                    self.waiting.push(slot);
                    self.prepare(plane, owner);
                }
            }
        }
    }

    /// Lets the sockets for a session be made.
    fn begin_to_make(&mut self, plane: &Plane, slot: u32, handler: Arc<Handler>) {
        self.next_job += 1;
        let attempt = self.next_job;
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.attempt = attempt;
        let far = one.paired.is_none();
        let s = plane.agent.session(slot);
        let at = plane.agent.detour_numbers(slot);
        let start = Start {
            out: at.sent_out.wrapping_add(at.shift_out),
            back: at.sent_back,
            acked: None,
        };
        let (routes, answers) = (plane.routes.clone(), plane.answers.clone());
        tokio::spawn(async move {
            let made = make(&handler, &routes, &s, start, far).await;
            // The engine may have ended.
            let _ = answers.send(Answer::Service(Box::new(Done::Made(slot, attempt, made))));
        });
    }

    /// Starts the handler of an owner if there is none.
    pub(super) fn prepare(&mut self, plane: &Plane, owner: Owner) {
        if self.handlers.contains_key(&owner) || !self.starting.insert(owner) {
            return;
        }
        let folder = plane.config.removal.state_dir.clone();
        let answers = plane.answers.clone();
        let agent = plane.agent.clone();
        tokio::spawn(async move {
            let started = start_handler(&folder, agent, owner).await;
            // The engine may have ended.
            let _ = answers.send(Answer::Service(Box::new(Done::Started(owner, started))));
        });
    }

    /// Loads the programs for sessions with handlers if `preload` is set. Does nothing if they are
    /// loaded.
    pub(in crate::engine) fn preload(&self, plane: &Plane) {
        if plane.config.services.preload {
            preload(plane.agent.clone());
        }
    }

    /// Starts a handler in the place of one that has ended, where its sockets are.
    fn start_again(&mut self, plane: &Plane, place: Arc<Place>) {
        let owner = place.owner;
        self.starting.insert(owner);
        let folder = plane.config.removal.state_dir.clone();
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            let started = handlers::start_in(place, &folder).await;
            let started = started.map_err(|failed| failed.explain().cause());
            // The engine may have ended.
            let _ = answers.send(Answer::Service(Box::new(Done::Started(owner, started))));
        });
    }

    /// The handler of an owner was started, or could not be.
    pub(super) fn started(
        &mut self,
        plane: &mut Plane,
        owner: Owner,
        started: Result<Started, Cause>,
    ) {
        self.starting.remove(&owner);
        match started {
            Ok(started) => {
                let handler = Arc::new(speaking(started, plane.answers.clone()));
                tracing::info!(
                    pid = handler.pid(),
                    link = handler.place.link,
                    user = owner.uid(),
                    "a handler runs"
                );
                self.handlers.insert(owner, handler);
                self.adopt(plane, owner);
                self.go_on(plane);
            }
            Err(cause) => {
                tracing::error!(user = owner.uid(), "no handler runs: {cause}");
                for slot in self.taken_orphans(owner) {
                    self.end_session(
                        plane,
                        slot,
                        "its handler has ended, and no other one starts",
                    );
                }
                let mut waiting = std::mem::take(&mut self.waiting);
                for slot in self.taken(&mut waiting, owner) {
                    self.refuse(plane, slot, cause.clone());
                }
                self.waiting.append(&mut waiting);
            }
        }
    }

    /// Returns the sessions of an owner whose handler has died, and which wait for the next one. They
    /// wait no longer.
    pub(super) fn taken_orphans(&mut self, owner: Owner) -> Vec<u32> {
        let mut orphans = std::mem::take(&mut self.orphans);
        let taken = self.taken(&mut orphans, owner);
        self.orphans = orphans;
        taken
    }

    /// The handler of an owner has ended. Its sessions of which it had bytes are reset.
    pub(super) fn handler_ended(&mut self, plane: &mut Plane, owner: Owner) {
        let Some(handler) = self.handlers.remove(&owner) else {
            return;
        };
        handler.kill();
        tracing::error!(
            pid = handler.pid(),
            user = owner.uid(),
            "a handler has ended"
        );
        self.unanswered(plane, owner);
        let mut orphaned = false;
        for slot in self.slots_of(owner) {
            if self.lost(plane, slot) {
                self.orphans.push(slot);
                orphaned = true;
            }
        }
        if orphaned {
            return self.start_again(plane, handler.place.clone());
        }
        // The program on the link has let the resets pass, with the numbers of the ends.
        dismissed(plane, &handler);
        self.go_on(plane);
    }

    /// Returns the sessions whose services an owner's handler runs.
    fn slots_of(&self, owner: Owner) -> Vec<u32> {
        let all = self.sessions.iter();
        let own = all.filter(|(_, one)| one.owner == owner);
        own.map(|(slot, _)| *slot).collect()
    }

    /// Ends the handlers of users who run nothing any more.
    pub(super) fn dismiss_idle(&mut self, plane: &Plane) {
        let idle = |owner: Owner| {
            let runs = owner == Owner::System || self.runs.has(owner);
            let needs = |one: &Serviced| one.owner == owner && one.stage != Stage::Direct;
            !runs && !self.sessions.values().any(needs)
        };
        let owners = self.handlers.keys().copied();
        let idle: Vec<Owner> = owners.filter(|owner| idle(*owner)).collect();
        for owner in idle {
            let Some(handler) = self.handlers.remove(&owner) else {
                continue;
            };
            tracing::info!(
                pid = handler.pid(),
                user = owner.uid(),
                "a handler has no sessions any more, and ends"
            );
            self.unanswered(plane, owner);
            dismissed(plane, &handler);
            handler.dismiss();
        }
    }
}

/// Takes the program off the link of a handler that has ended, and forgets it.
fn dismissed(plane: &Plane, handler: &Handler) {
    plane.agent.detach_handler(&handler.place.link);
    handlers::forget(&plane.config.removal.state_dir, &handler.place.link);
}
