//! Properties that must hold in every state, and properties that must hold in some state.

use dysco_common::{State, two_paths};
use dysco_proto::{Machine, Phase, Role};
use stateright::Property;

use super::Exploration;
use crate::config::Seen;
use crate::fate::Fate;
use crate::host::{Alone, Ending};
use crate::place::{self, Side};
use crate::plane::Entry;
use crate::world::{Broken, World};

/// True if two segments that share a session are locked at the same time. A left anchor that has
/// received the plan holds the segment from itself to the second host to its right.
pub(super) fn overlapping(world: &World) -> bool {
    let held = |p: Phase| (Phase::Preparing..=Phase::Cutting).contains(&p);
    let lefts = world.hosts().flat_map(|h| {
        let changes = h.machine.iter().flat_map(Machine::changes);
        let changes = changes.filter(move |c| c.role == Role::Left && held(c.phase));
        changes.map(|_| h.place)
    });
    let lefts: Vec<usize> = lefts.collect();
    lefts.windows(2).any(|w| w[1] - w[0] < 2)
}

/// Properties that must hold in every state.
pub fn always() -> Vec<Property<Exploration>> {
    vec![
        Property::always("no overlapping locks", |_, w: &World| {
            !matches!(
                w.broken,
                Some(Broken::Overlap | Broken::Host(crate::host::Wrong::LockedTwice))
            )
        }),
        Property::always("no host breaks a rule of the data plane", |_, w: &World| {
            use crate::host::Wrong;
            !matches!(w.broken, Some(Broken::Host(wrong)) if wrong != Wrong::LockedTwice)
        }),
        Property::always(
            "nothing is acknowledged to a path that never sent it",
            |_, w: &World| w.broken != Some(Broken::Tcp(crate::socket::Harm::AckOfUnsent)),
        ),
        Property::always(
            "no end hears a clean end with bytes missing",
            |_, w: &World| w.broken != Some(Broken::Tcp(crate::socket::Harm::CutShort)),
        ),
        Property::always("whose proxy died both ends hear it", |_, w: &World| {
            w.fate != Fate::HalfDead
        }),
        Property::always("what was lost is not told removed", |_, w: &World| {
            w.fate != Fate::FalselyRemoved
        }),
        Property::always("every byte arrives under its own number", |_, w: &World| {
            w.broken != Some(Broken::Tcp(crate::socket::Harm::WrongBytes))
        }),
        Property::always(
            "no end hears a reset of a path that was never taken",
            |_, w: &World| w.broken != Some(Broken::Tcp(crate::socket::Harm::Rejected)),
        ),
        Property::always("every byte arrives once faults stop", |_, w: &World| {
            w.fate != Fate::Starved || w.is_lost()
        }),
        Property::always("every change ends once faults stop", |_, w: &World| {
            !matches!(w.fate, Fate::Stranded | Fate::Endless) || w.is_lost()
        }),
        Property::always("both anchors and the middlebox agree", |_, w: &World| {
            w.fate != Fate::Disagreement
        }),
        Property::always("nothing is left of a change", |_, w: &World| {
            w.fate != Fate::Leftover
        }),
        Property::always("who asked is told", |_, w: &World| {
            w.fate != Fate::Unreported
        }),
        Property::always("without faults one wins", |_, w: &World| {
            w.fate != Fate::NobodyWon
        }),
    ]
}

fn entry_states(world: &World) -> impl Iterator<Item = &Entry> {
    world
        .hosts()
        .flat_map(|h| Side::BOTH.into_iter().filter_map(|s| h.entry(s)))
}

fn ended(world: &World, wanted: bool) -> bool {
    let mut endings = world.hosts().flat_map(|h| &h.endings);
    let one = |e: &Ending| match e.role {
        Role::Left => true,
        Role::Local => e.removed || e.alone == Some(Alone::TakenBack),
        _ => false,
    };
    endings.any(|e| e.removed == wanted && one(e))
}

fn is_cut(e: &Entry) -> bool {
    matches!(e.state(), State::TwoPaths | State::RelayTwoPaths) && e.s.two.cut_set != 0
}

fn middle_ended(world: &World, removed: bool) -> bool {
    let mut endings = world.hosts().flat_map(|h| &h.endings);
    endings.any(|e| e.removed == removed && matches!(e.role, Role::Middle | Role::Asker))
}

/// True if the client's data before the cutoff is not acknowledged.
fn repeats_old_data(world: &World) -> bool {
    let una = world.host(0).sockets[Side::Right as usize].una;
    let base = place::base(0, Side::Right, 3).map_or(0, |b| b.out);
    let una = base.wrapping_add(u32::from(una));
    // Entry of the anchor, whichever host is the anchor.
    let anchors = [(0, Side::Right), (1, Side::Left)];
    let mut entries = anchors
        .into_iter()
        .filter_map(|(at, side)| world.host(at).entry(side));
    let anchor = entries.next();
    anchor.is_some_and(|e| is_cut(e) && dysco_common::seq::before(una, e.s.cut_out))
}

pub(super) fn sometimes(seen: &Seen) -> Property<Exploration> {
    match seen {
        Seen::Removal => Property::sometimes("a middlebox is removed", |_, w: &World| {
            ended(w, true) && w.hosts().all(|h| h.quiet())
        }),
        Seen::RollBack => {
            Property::sometimes("a change is rolled back", |_, w: &World| ended(w, false))
        }
        Seen::SecondAttempt => Property::sometimes("a second attempt succeeds", |_, w: &World| {
            let failed = |e: &Ending| !e.removed && e.alone != Some(Alone::Already);
            ended(w, true) && w.hosts().flat_map(|h| &h.endings).any(failed)
        }),
        Seen::Already => Property::sometimes("refused, since it is out", |_, w: &World| {
            let mut endings = w.hosts().flat_map(|h| &h.endings);
            endings.any(|e| e.alone == Some(Alone::Already))
        }),
        Seen::OneOfTwo => Property::sometimes("one of two contenders wins", |_, w: &World| {
            middle_ended(w, true) && middle_ended(w, false)
        }),
        Seen::ClosedInTwoPaths => {
            Property::sometimes("both ends close in two paths", |_, w: &World| {
                entry_states(w).any(|e| is_cut(e) && e.s.life.fin_in & e.s.life.fin_out != 0)
            })
        }
        Seen::ResetInTwoPaths => Property::sometimes("a reset in two paths", |_, w: &World| {
            entry_states(w).any(|e| is_cut(e) && e.s.life.reset != 0)
        }),
        Seen::OldDataAfterCut => {
            Property::sometimes("old data is repeated after the cut", |_, w: &World| {
                repeats_old_data(w)
            })
        }
        Seen::TakenBack => {
            Property::sometimes("a path that has died is taken back", |_, w: &World| {
                w.dead != [false; 2] && ended(w, false) && w.hosts().all(|h| h.quiet())
            })
        }
        Seen::CaughtUp => Property::sometimes(
            "the old path catches up with the new one",
            |_, w: &World| {
                let behind = |e: &Entry| two_paths::is_taken_back(&e.s);
                entry_states(w).any(|e| e.state() == State::TwoPaths && behind(e))
            },
        ),
        Seen::Lost => Property::sometimes("a session is lost with its proxy", |_, w: &World| {
            w.cut && w.has_died() && w.ends().into_iter().all(|s| s.reset)
        }),
        Seen::Outlived => Property::sometimes("a session outlives its proxy", |c, w: &World| {
            let all = c.config.whole();
            let [client, server] = w.ends();
            let got = (server.rcv, client.rcv) == (all[0], all[1]);
            w.has_died() && got && ended(w, true) && w.hosts().all(|h| h.quiet())
        }),
        Seen::GoneOn => Property::sometimes("a change outlives a daemon", |_, w: &World| {
            ended(w, true) && w.hosts().any(|h| h.life > 0) && w.hosts().all(|h| h.quiet())
        }),
    }
}
