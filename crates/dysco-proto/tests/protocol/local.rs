//! The removal of a middlebox by its host alone.

use std::time::Duration;

use dysco_proto::{Progress, Reason, Report, Role};
use proptest::prelude::*;

use super::plane::{Refuse, State};
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

fn removal(faults: Faults) -> World {
    let mut world = World::new(3, faults);
    world.leave_locally(MIDDLE);
    world.run(HOUR);
    world
}

#[test]
fn without_faults_it_leaves_and_nobody_is_asked() {
    let world = removal(Faults::default());
    assert!(world.settled_locally(MIDDLE));
    let ends = world.ends(MIDDLE);
    assert_eq!(ends, [(Role::Local, Progress::Removed)]);
    assert!(world.sent.is_empty(), "{:?}", world.sent);
}

/// The data that one end sends from its cutoff on is the data that the other end gets from there.
#[test]
fn cutoffs_are_converted() {
    let world = removal(Faults::default());
    let (a, b) = (world.session(MIDDLE, 0), world.session(MIDDLE, 1));
    let forward = a.cut_out.unwrap().wrapping_sub(a.facts.remote.isn);
    let arrived = b.cut_in.unwrap().wrapping_sub(b.facts.local.isn);
    assert_eq!(arrived, forward.wrapping_add(28));
    let reverse = b.cut_out.unwrap().wrapping_sub(b.facts.remote.isn);
    let arrived = a.cut_in.unwrap().wrapping_sub(a.facts.local.isn);
    assert_eq!(arrived, reverse.wrapping_sub(3));
}

#[test]
fn the_daemon_dies_before_each_step() {
    let whole = removal(Faults::default());
    let steps = whole.hosts[MIDDLE].steps();
    assert!(steps > 10);
    let mut out = 0;
    for step in 0..steps {
        for second in 0..steps {
            let crashes = [step, step + 1 + second];
            let crashes = crashes.map(|s| (MIDDLE, s, Duration::from_secs(2)));
            let faults = Faults {
                crashes: crashes.into(),
                ..Faults::default()
            };
            out += usize::from(removal(faults).settled_locally(MIDDLE));
        }
    }
    assert!(out > 0, "none went on after a crash");
}

#[test]
fn each_refusal_leaves_all_as_it_was() {
    for what in [
        Refuse::Measure,
        Refuse::SecondMeasure,
        Refuse::LockPair,
        Refuse::Join,
        Refuse::Persist,
        Refuse::SecondPersist,
    ] {
        let mut world = World::new(3, Faults::default());
        world.refuse(MIDDLE, what);
        world.leave_locally(MIDDLE);
        world.run(HOUR);
        assert!(!world.settled_locally(MIDDLE), "{what:?} was ignored");
        assert_eq!(world.ends(MIDDLE).len(), 1, "{what:?}");
        // The removal can be tried again after the cause is removed.
        world.hosts[MIDDLE].plane.refuse = None;
        world.leave_locally(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        assert!(world.settled_locally(MIDDLE), "after {what:?}");
    }
}

/// After the cut neither a record that cannot be written nor a failed close stops the change.
#[test]
fn past_the_cut_it_goes_on() {
    for what in [Refuse::ThirdPersist, Refuse::Close] {
        let mut world = World::new(3, Faults::default());
        world.refuse(MIDDLE, what);
        world.leave_locally(MIDDLE);
        world.run(HOUR);
        assert!(world.settled_locally(MIDDLE), "{what:?}");
        let is_trouble = |r: &&Report| matches!(r, Report::Trouble { .. });
        let troubles = world.hosts[MIDDLE].reports.iter().filter(is_trouble);
        assert!(troubles.count() > 0, "{what:?} was not told");
    }
}

#[test]
fn a_session_ends_at_each_step() {
    let mut whole = World::new(3, Faults::default());
    whole.leave_locally(MIDDLE);
    let steps = (0..).take_while(|_| whole.step(HOUR)).count();
    for links in [&[0][..], &[1], &[0, 1]] {
        for at in 0..steps {
            let mut world = World::new(3, Faults::default());
            world.leave_locally(MIDDLE);
            (0..at).for_each(|_| assert!(world.step(HOUR)));
            links.iter().for_each(|l| world.session_gone(MIDDLE, *l));
            world.run(HOUR);
            world.quiet();
            let end = &world.ends(MIDDLE)[..];
            assert!(matches!(end, [(Role::Local, _)]), "{end:?}");
        }
    }
}

#[test]
fn cancelled_at_each_step() {
    let mut whole = World::new(3, Faults::default());
    whole.leave_locally(MIDDLE);
    let steps = (0..).take_while(|_| whole.step(HOUR)).count();
    let mut kept = 0;
    for at in 0..steps {
        let mut world = World::new(3, Faults::default());
        let change = world.leave_locally(MIDDLE).unwrap().unwrap();
        (0..at).for_each(|_| assert!(world.step(HOUR)));
        world.input(MIDDLE, |m, now| m.cancel(now, change));
        world.run(HOUR);
        let out = world.settled_locally(MIDDLE);
        let cut = world.session(MIDDLE, 0).cut_out.is_some();
        assert_eq!(out, cut, "cancelled at {at}");
        kept += usize::from(!out);
    }
    assert!(kept > 2 && kept < steps);
}

/// A session has one change at a time, whichever host makes it.
#[test]
fn it_contends_with_a_bypass() {
    for local_first in [true, false] {
        let mut world = World::new(3, Faults::default());
        let second = match local_first {
            true => {
                world.leave_locally(MIDDLE);
                world.leave(MIDDLE)
            }
            false => {
                world.leave(MIDDLE);
                world.leave_locally(MIDDLE)
            }
        };
        assert!(matches!(second, Some(Err(Reason::LockedByAnother(_)))));
        world.run(HOUR);
        match local_first {
            true => assert!(world.settled_locally(MIDDLE)),
            false => assert!(world.settled(MIDDLE)),
        }
    }
}

/// A bypass that the neighbours refuse leaves the sessions free for this mode.
#[test]
fn it_follows_a_refused_bypass_at_once() {
    for refusal in [Refuse::Lock, Refuse::Prepare] {
        for host in [0, 2] {
            let mut world = World::new(3, Faults::default());
            world.refuse(host, refusal);
            world.leave(MIDDLE);
            while world.ends(MIDDLE).is_empty() {
                assert!(world.step(HOUR));
            }
            world.leave_locally(MIDDLE).unwrap().unwrap();
            world.run(HOUR);
            assert!(world.settled_locally(MIDDLE), "{refusal:?} on {host}");
            let end = |host: usize, link| world.session(host, link).state;
            assert_eq!([end(0, 0), end(2, 1)], [State::Tracked; 2]);
        }
    }
}

/// A neighbour that asks gets the outcome, also from a daemon that has died meanwhile.
#[test]
fn a_neighbour_may_ask_for_it() {
    for asker in [0, 2] {
        for crash in [None, Some(9)] {
            let crashes = crash.map(|step| (MIDDLE, step, Duration::from_secs(1)));
            let faults = Faults {
                crashes: crashes.into_iter().collect(),
                ..Faults::default()
            };
            let mut world = World::new(3, faults);
            world.input(MIDDLE, |m, _| m.answer_asks_locally(true));
            let link = world.links[asker / 2];
            let host = world.hosts[MIDDLE].addresses[0];
            world.input(asker, |m, now| m.request_ask(now, host, link));
            world.run(HOUR);
            let out = world.settled_locally(MIDDLE);
            let end = world.ends(asker);
            let reported = matches!(end[..], [(Role::Asker, Progress::Removed)]);
            assert_eq!(reported, out, "{asker} {crash:?} {end:?}");
            assert!(out || crash.is_some());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn crashes_and_ends_at_any_time(
        seed in any::<u64>(),
        crashes in prop::collection::vec((0u64..30, 1u64..40), 0..4),
        ends in prop::collection::vec((0usize..2, 0usize..20), 0..3),
    ) {
        let crashes = crashes.into_iter();
        let crashes = crashes.map(|(s, t)| (MIDDLE, s, Duration::from_secs(t))).collect();
        let mut world = World::new(3, Faults { seed, crashes, ..Faults::default() });
        world.leave_locally(MIDDLE);
        for (link, steps) in &ends {
            for _ in 0..*steps {
                world.step(HOUR);
            }
            world.session_gone(MIDDLE, *link);
        }
        world.run(HOUR);
        world.quiet();
        if ends.is_empty() {
            world.settled_locally(MIDDLE);
        }
    }
}
