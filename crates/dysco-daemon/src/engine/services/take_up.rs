//! Services that an earlier `dyscod` put into sessions, and that are still in them.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use dysco_api::ServiceSpec;
use dysco_common::detour::{Detour, Way, cut, phase};
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
        let owners: HashSet<Owner> = found.iter().map(|one| one.place.owner).collect();
        for found in found {
            let owner = found.place.owner;
            let attached = heavy(|| plane.agent.attach_handler(&found.place.link));
            let found = attached.map(|()| found);
            self.started(plane, owner, found.map_err(|error| error.explain().cause()));
            if let Some(handler) = self.handlers.get(&owner)
                && handler.send(Request::List, &[]).is_ok()
            {
                let own = self.sessions.iter().filter(|(_, one)| one.owner == owner);
                let own = own.filter(|(_, one)| one.stage.is_with_handler());
                let own = own.map(|(slot, one)| (*slot, one.created_ns)).collect();
                self.taking_up.insert(owner, own);
            }
        }
        // Their handler has died while no dyscod ran.
        let without = |one: &Serviced| one.stage.is_with_handler() && !owners.contains(&one.owner);
        let lost = self.sessions.iter().filter(|(_, one)| without(one));
        let lost: Vec<u32> = lost.map(|(slot, _)| *slot).collect();
        for slot in lost {
            self.unlisted(plane, slot);
        }
    }

    /// True if the handler of an owner, which an earlier process has started, has not told all of its
    /// sessions yet.
    pub(super) fn is_taking_up(&self, owner: Owner) -> bool {
        self.taking_up.contains_key(&owner)
    }

    /// The handler of an earlier process has listed some of its sessions.
    pub(super) fn taken_up(
        &mut self,
        plane: &mut Plane,
        owner: Owner,
        sessions: &[State],
        more: bool,
    ) {
        let mut left = self.taking_up.remove(&owner).unwrap_or_default();
        for state in sessions {
            let slot = slot_of(state.session);
            left.remove(&slot);
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
                let id = paired.id;
                one.paired = Some(paired);
                self.remember_pair(id, slot);
                // The earlier process may have been killed before the handler had this request, and
                // the cutoff is not told a second time.
                if plane.agent.detour(slot).is_some_and(|d| is_told(&d.back)) {
                    let session = u64::from(slot);
                    self.tell(owner, Request::Open { session });
                }
                continue;
            }
            if state.services.is_empty() && matches!(one.stage, Stage::In | Stage::Entering) {
                // They left while no dyscod ran.
                self.left(plane, slot, state.delta);
            } else if state.services.is_empty() && one.stage == Stage::Leaving {
                // It may have been killed after it had ordered one direction to leave.
                plane.agent.leave_detour(slot, one.oriented(state.delta));
                if let Some(d) = plane.agent.detour(slot) {
                    one.delta = one.oriented([added(&d.out), added(&d.back)]);
                }
            } else if state.taken && one.stage == Stage::In {
                one.stage = Stage::Asked;
            }
        }
        if more {
            self.taking_up.insert(owner, left);
        } else {
            self.end_unknown(plane, left);
        }
    }

    /// Ends sessions that a handler was to have and has not listed, by slot and start time.
    fn end_unknown(&mut self, plane: &mut Plane, left: HashMap<u32, u64>) {
        for (slot, created_ns) in left {
            let one = self.sessions.get(&slot);
            if one.is_some_and(|one| one.created_ns == created_ns && one.sockets.is_none()) {
                self.unlisted(plane, slot);
            }
        }
    }

    /// Ends a session that no handler has, or forgets it if it ends by itself.
    fn unlisted(&mut self, plane: &mut Plane, slot: u32) {
        let s = plane.agent.session(slot);
        if s.has_ended() && s.life.reset == 0 {
            // Its handler may have closed both sockets in order: the kernel still sends the rest.
            self.sessions.remove(&slot);
            return;
        }
        self.lost(plane, slot);
    }
}

/// True if the other host has told the cutoff from which on its handler is heard in a direction.
const fn is_told(way: &Way) -> bool {
    match way.phase {
        phase::ENTERING => way.cut_set == cut::SET,
        phase::THROUGH | phase::LEAVING => true,
        _ => false,
    }
}

fn serviced(plane: &Plane, slot: u32, d: &Detour, owner: Owner) -> Serviced {
    let s = plane.agent.session(slot);
    let has = |phase| d.out.phase == phase || d.back.phase == phase;
    let all_direct = d.out.phase | d.back.phase == phase::DIRECT;
    // A direction that goes directly beside one that does not has left before.
    let leaves = has(phase::LEAVING) || has(phase::DIRECT) && (!all_direct || d.paired != 0);
    let opened_here = s.life.opened_here != 0;
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
        opened_here,
        job: None,
        since: Instant::now(),
        ordered: Instant::now(),
        delta: match opened_here {
            true => [added(&d.out), added(&d.back)],
            false => [added(&d.back), added(&d.out)],
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

/// Returns the number of bytes that services which have left, or are leaving, have added to a direction.
fn added(way: &Way) -> i64 {
    let shift = match way.phase {
        // The number becomes `shift` once the direction has left.
        phase::LEAVING => way.next_shift,
        _ => way.shift,
    };
    i64::from(shift.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler that does not get this does not read what the other one sends.
    #[test]
    fn the_other_handler_is_heard_from_its_cutoff_on() {
        let way = |phase, cut_set| Way {
            phase,
            cut_set,
            ..Way::default()
        };
        assert!(!is_told(&way(phase::ENTERING, 0)));
        assert!(is_told(&way(phase::ENTERING, cut::SET)));
        assert!(is_told(&way(phase::THROUGH, 0)));
        assert!(is_told(&way(phase::LEAVING, 0)));
        assert!(!is_told(&way(phase::DIRECT, cut::SET)));
    }

    #[test]
    fn bytes_of_services_that_are_leaving_count() {
        let way = |phase| Way {
            phase,
            shift: 3,
            next_shift: 3_u32.wrapping_sub(10),
            ..Way::default()
        };
        assert_eq!(added(&way(phase::THROUGH)), 3);
        assert_eq!(added(&way(phase::LEAVING)), -7);
        assert_eq!(added(&way(phase::DIRECT)), 3);
    }
}
