//! Properties that hold in each world, and events that each exploration has to see.

use dysco_proto::{Machine, Message, Phase, Role};
use stateright::Property;

use super::Exploration;
use crate::chain::configuration::{LEFT, Seen};
use crate::chain::fate::Fate;
use crate::chain::host::Host;
use crate::chain::place::{LEFTWARDS, RIGHTWARDS};
use crate::chain::world::{Broken, World};

/// Properties that must hold in every state.
pub fn always() -> Vec<Property<Exploration>> {
    let mut all = in_each_step();
    all.extend(in_the_end());
    all
}

/// Rules that each step keeps.
fn in_each_step() -> Vec<Property<Exploration>> {
    vec![
        Property::always("one change at a time holds a segment", |_, w: &World| {
            w.broken != Some(Broken::Overlap)
        }),
        Property::always(
            "who asks for another segment is not refused",
            |_, w: &World| w.broken != Some(Broken::Refused),
        ),
        Property::always(
            "what an anchor sends is heard, and known on its way",
            |_, w: &World| w.broken != Some(Broken::Void),
        ),
        Property::always(
            "a path leads through no firewall that has not been given the state",
            |_, w: &World| w.broken != Some(Broken::Stateless),
        ),
        Property::always(
            "a path makes up for what those that leave have changed, once, and those that remain have changed nothing",
            |_, w: &World| w.broken != Some(Broken::Delta),
        ),
        Property::always(
            "no firewall drops anything while nothing goes wrong",
            |_, w: &World| w.broken != Some(Broken::Invalid),
        ),
        Property::always(
            "TCP hears of nothing that was never sent",
            |_, w: &World| !matches!(w.broken, Some(Broken::Tcp(_))),
        ),
        Property::always("no host breaks a rule of the two paths", |_, w: &World| {
            !matches!(w.broken, Some(Broken::Host(_)))
        }),
    ]
}

/// The outcome once faults have stopped.
fn in_the_end() -> Vec<Property<Exploration>> {
    vec![
        Property::always(
            "every byte and FIN arrives, and is acknowledged",
            |_, w: &World| w.fate != Fate::Starved,
        ),
        Property::always(
            "every change of a chain ends once faults stop",
            |_, w: &World| !matches!(w.fate, Fate::Stranded | Fate::Endless),
        ),
        Property::always("both anchors end on one path that lives", |_, w: &World| {
            w.fate != Fate::Disagreement
        }),
        Property::always("no lock, record or path is left", |_, w: &World| {
            w.fate != Fate::Leftover
        }),
        Property::always("hosts that are left out forget", |_, w: &World| {
            w.fate != Fate::Remembered
        }),
        Property::always(
            "no state is left in firewalls that are left out",
            |_, w: &World| w.fate != Fate::StateLeft,
        ),
        Property::always(
            "a session can always get another chain again",
            |_, w: &World| w.fate != Fate::Stuck,
        ),
        Property::always("who asked for a chain is told", |_, w: &World| {
            w.fate != Fate::Unreported
        }),
        Property::always("without faults one who asked wins", |_, w: &World| {
            w.fate != Fate::NobodyWon
        }),
    ]
}

/// True if no daemon is down or at work.
fn quiet(world: &World) -> bool {
    let waits = |m: &Machine| m.waits().next().is_some();
    let busy = |h: &Host| h.machine.as_ref().is_none_or(waits);
    let events = |h: &Host| !h.events.is_empty();
    world.net.is_empty() && !world.hosts().any(|h| busy(h) || events(h))
}

fn ended(world: &World, changed: bool) -> usize {
    let endings = world.hosts().flat_map(|h| &h.endings);
    let wanted = endings.filter(|e| e.changed == changed && e.role == Role::Head);
    wanted.count()
}

/// True if a change is cancelled whose two anchors have both taken the new path.
fn back_from_new(w: &World) -> bool {
    let mut links = w.net.iter();
    let cancels = links.any(|l| matches!(l.message, Message::Cancel { .. }));
    let between = w.accepted.iter().any(|a| {
        let [left, right] = a.anchors().map(|at| w.host(at));
        let (here, there) = (left.planes[RIGHTWARDS], right.planes[LEFTWARDS]);
        let taken = there.current.is_some() && right.hears(LEFTWARDS, here.current);
        taken && here.current != there.current
    });
    cancels && between
}

/// True if a change is cancelled that has moved a firewall's state.
fn state_is_taken_back(w: &World) -> bool {
    let begun = w.accepted.iter().any(|a| !a.state.is_empty());
    let new = |h: &Host| h.state && h.knows.is_empty();
    let back = |m: &Machine| m.changes().any(|c| c.phase == Phase::Cancelling);
    begun && w.hosts().any(new) && w.host(LEFT).machine.as_ref().is_some_and(back)
}

pub(super) fn sometimes(seen: &Seen) -> Property<Exploration> {
    match seen {
        Seen::Changed => Property::sometimes("a session has another chain", |_, w: &World| {
            ended(w, true) > 0 && quiet(w)
        }),
        Seen::RollBack => Property::sometimes("a chain is rolled back", |_, w: &World| {
            ended(w, false) > 0 && quiet(w)
        }),
        Seen::BackFromNew => {
            Property::sometimes("both go back from a path that both took", |_, w: &World| {
                back_from_new(w)
            })
        }
        Seen::Twice => Property::sometimes("one chain after another", |_, w: &World| {
            ended(w, true) > 1 && quiet(w)
        }),
        Seen::AfterBack => Property::sometimes(
            "a chain comes after one that came to nothing",
            |_, w: &World| ended(w, true) > 0 && ended(w, false) > 0 && quiet(w),
        ),
        Seen::Locked => Property::sometimes("of two requests one is refused", |_, w: &World| {
            w.refused != 0 && ended(w, true) > 0
        }),
        Seen::Followed => Property::sometimes("the right anchor follows", |_, w: &World| {
            w.followed && ended(w, true) > 0
        }),
        Seen::StateMoved => {
            Property::sometimes("state moves, and all is taken back", |_, w: &World| {
                state_is_taken_back(w)
            })
        }
        Seen::Split => Property::sometimes("a segment is split", |_, w: &World| {
            w.streams.as_ref().is_some_and(|s| s.split)
        }),
        Seen::Repeated => Property::sometimes(
            "what was sent before is said again by a new path",
            |_, w: &World| w.streams.as_ref().is_some_and(|s| s.repeated),
        ),
        Seen::ClosedBetween => {
            Property::sometimes("both ends close between two paths", |_, w: &World| {
                w.has_closed_between()
            })
        }
        Seen::AtOnce => Property::sometimes("two segments change at once", |_, w: &World| {
            let both = |h: &Host| h.planes.iter().all(|p| p.other.is_some_and(|o| o.before));
            w.hosts().any(both)
        }),
        Seen::GoneOn => {
            Property::sometimes("a chain's change outlives a daemon", |_, w: &World| {
                ended(w, true) > 0 && w.hosts().any(|h| h.life > 0) && quiet(w)
            })
        }
    }
}
