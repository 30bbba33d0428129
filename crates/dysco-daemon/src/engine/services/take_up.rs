//! Services that an earlier `dyscod` put into sessions, and that are still in them.

use std::time::Instant;

use dysco_api::ServiceSpec;
use dysco_common::detour::{Detour, phase};
use dysco_explain::Explain;
use dysco_runner::protocol::{Request, State};
use dysco_scheduling::heavy;

use super::handler::{mirror, slot_of};
use super::pair::Paired;
use super::{Rests, Serviced, Services, Stage};
use crate::engine::Plane;
use crate::handlers::{self, Owner};

impl Services {
    /// Takes up the handlers of an earlier process, and the sessions whose numbers are changed.
    pub(in crate::engine) fn take_up(&mut self, plane: &mut Plane) {
        let found = handlers::find(&plane.config.removal.state_dir);
        let owner_at = |link: u32| {
            let led = found.iter().find(|one| one.place.index == link);
            led.map_or(Owner::System, |one| one.place.owner)
        };
        for d in plane.agent.detours() {
            let slot = d.slot.wrapping_sub(1);
            let lives = slot < plane.agent.capacity() && plane.agent.session(slot).has_detour();
            // A detour may be over, and its record not. The other host of a pair has to hear of it.
            if lives && (d.paired != 0 || !plane.agent.end_detour(slot)) {
                let one = serviced(plane, slot, &d, owner_at(d.handler));
                self.sessions.insert(slot, one);
            }
        }
        for found in found {
            let owner = found.place.owner;
            let attached = heavy(|| plane.agent.attach_handler(&found.place.link));
            let found = attached.map(|()| found);
            self.started(plane, owner, found.map_err(|error| error.explain().cause()));
            if let Some(handler) = self.handlers.get(&owner)
                && handler.send(Request::List, &[]).is_ok()
            {
                self.taking_up.insert(owner);
            }
        }
    }

    /// The handler of an earlier process has listed some of its sessions.
    pub(super) fn taken_up(
        &mut self,
        plane: &mut Plane,
        owner: Owner,
        sessions: &[State],
        more: bool,
    ) {
        if !more {
            self.taking_up.remove(&owner);
        }
        for state in sessions {
            let slot = slot_of(state.session);
            let led = self.sessions.get_mut(&slot);
            let Some(one) = led.filter(|one| one.owner == owner) else {
                // It was never led there.
                let release = Request::Release {
                    session: state.session,
                    reset: true,
                };
                self.tell(owner, release);
                continue;
            };
            let names = state
                .services
                .iter()
                .filter_map(|name| name.parse::<ServiceSpec>().ok());
            one.services = names.collect();
            if let Some(name) = state.pair {
                mirror(&mut one.services, true, one.opened_here);
                let paired = Paired::found(name);
                self.pairs.insert(paired.id, slot);
                one.paired = Some(paired);
                continue;
            }
            if state.services.is_empty() && matches!(one.stage, Stage::In | Stage::Entering) {
                // They left while no dyscod ran.
                self.left(plane, slot, state.delta);
            } else if state.taken && one.stage == Stage::In {
                one.stage = Stage::Asked;
            }
        }
    }
}

fn serviced(plane: &Plane, slot: u32, d: &Detour, owner: Owner) -> Serviced {
    let s = plane.agent.session(slot);
    let has = |phase| d.out.phase == phase || d.back.phase == phase;
    let all_direct = d.out.phase | d.back.phase == phase::DIRECT;
    // A direction that goes directly beside one that does not has left before.
    let leaves = has(phase::LEAVING) || has(phase::DIRECT) && (!all_direct || d.paired != 0);
    let stage = if leaves {
        Stage::Leaving
    } else if has(phase::ENTERING) {
        Stage::Entering
    } else if has(phase::THROUGH) {
        Stage::In
    } else {
        Stage::Direct
    };
    Serviced {
        session: plane.session_id(slot, &s),
        key: s.key,
        created_ns: s.created_ns,
        // The handler tells their names.
        services: Vec::new(),
        owner,
        stage,
        sockets: None,
        attempt: 0,
        opened_here: s.life.opened_here != 0,
        job: None,
        since: Instant::now(),
        ordered: Instant::now(),
        delta: if s.life.opened_here != 0 {
            [added(d.out.shift), added(d.back.shift)]
        } else {
            [added(d.back.shift), added(d.out.shift)]
        },
        left: None,
        lost: false,
        paired: None,
        held: None,
        silent: false,
        probe: None,
        partial: None,
        rests: Rests::default(),
    }
}

/// Returns the number of bytes that shifts numbers so.
fn added(shift: u32) -> i64 {
    i64::from(shift.cast_signed())
}
