//! Faults of the network and of daemons: a change ends in any case, and both anchors end alike.

use std::time::Duration;

use dysco_proto::{Message, Progress, Report};
use proptest::prelude::*;

use super::plane::{Refuse, State};
use super::world::{Faults, World, rejected};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

fn removal(faults: Faults) -> World {
    let mut world = World::new(3, faults);
    world.leave(MIDDLE);
    world.run(HOUR);
    world
}

#[test]
fn without_faults_the_middlebox_leaves() {
    let world = removal(Faults::default());
    assert!(world.settled(MIDDLE));
    for host in 0..3 {
        let ends = world.ends(host);
        assert!(matches!(ends[..], [(_, Progress::Removed)]), "{ends:?}");
    }
    let names = [
        "AckLock",
        "Introduce",
        "Introduced",
        "Leave",
        "RequestLock",
        "SetUp",
        "SetUpAck",
        "Switched",
        "Switched",
        "Switched",
    ];
    // Some messages are sent in parallel. `SetUp` may be repeated together with the plan.
    let until_drained = world.sent.iter().take_while(|name| **name != "Drained");
    let mut sent: Vec<_> = until_drained.copied().collect();
    sent.sort_unstable();
    let twice = |name: &&str| ["SetUp", "SetUpAck"].contains(name);
    sent.dedup_by(|a, b| a == b && twice(a));
    assert_eq!(sent, names, "nothing else is said twice");
}

/// The anchors' cutoffs name the same bytes in different numbers.
#[test]
fn cutoffs_are_converted() {
    let world = removal(Faults::default());
    let (left, right) = (world.session(0, 0), world.session(2, 1));
    let (a, b) = (world.session(1, 0).facts, world.session(1, 1).facts);
    // The distance of a byte from the opening is the same on both sessions, except for the bytes
    // that the middlebox added before it (28 forward, -3 in reverse).
    let forward = left.cut_out.unwrap().wrapping_sub(a.remote.isn);
    let arrived = right.cut_in.unwrap().wrapping_sub(b.local.isn);
    assert_eq!(arrived, forward.wrapping_add(28));
    let reverse = right.cut_out.unwrap().wrapping_sub(b.remote.isn);
    let arrived = left.cut_in.unwrap().wrapping_sub(a.local.isn);
    assert_eq!(arrived, reverse.wrapping_sub(3));
}

/// The right anchor receives the reset, and the left anchor is notified by a message. No host waits
/// for an answer that does not come.
#[test]
fn what_the_right_anchor_hears_ends_the_trial_at_once() {
    let faults = Faults {
        rejects: true,
        ..Faults::default()
    };
    let mut world = World::new(3, faults);
    world.leave(MIDDLE);
    world.run(Duration::from_secs(1));
    assert!(!world.settled(MIDDLE));
    for host in 0..3 {
        let ends = world.ends(host);
        let why = ends.iter().map(|(_, progress)| progress);
        let reported: Vec<_> = why.collect();
        assert_eq!(reported, [&Progress::RolledBack(rejected())], "{host}");
    }
}

#[test]
fn each_message_lost_in_turn() {
    let sent = removal(Faults::default()).sent.len() as u64;
    assert!(sent >= 14);
    for lose in 0..sent {
        let faults = Faults {
            lose: Some(lose),
            ..Faults::default()
        };
        let world = removal(faults);
        assert!(world.settled(MIDDLE), "message {lose} is not made good");
    }
}

#[test]
fn each_kind_of_message_lost_for_ever() {
    let names = [
        "Leave",
        "Introduce",
        "Introduced",
        "RequestLock",
        "AckLock",
        "SetUp",
        "SetUpAck",
    ];
    for name in names {
        let faults = Faults {
            lose_all: vec![name],
            ..Faults::default()
        };
        let world = removal(faults);
        assert!(!world.settled(MIDDLE), "removed without any {name}");
    }
}

#[test]
fn each_daemon_dies_before_each_step() {
    let whole = removal(Faults::default());
    for host in 0..3 {
        for step in 0..whole.hosts[host].steps() {
            for away in [1, 7, 60] {
                let faults = Faults {
                    crashes: vec![(host, step, Duration::from_secs(away))],
                    ..Faults::default()
                };
                let world = removal(faults);
                world.settled(MIDDLE);
            }
        }
    }
}

#[test]
fn two_daemons_die() {
    let whole = removal(Faults::default());
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        for step in 0..whole.hosts[one].steps() {
            for second in 0..whole.hosts[other].steps() {
                let faults = Faults {
                    crashes: vec![
                        (one, step, Duration::from_secs(2)),
                        (other, second, Duration::from_secs(9)),
                    ],
                    ..Faults::default()
                };
                removal(faults).settled(MIDDLE);
            }
        }
    }
}

/// Commands that can fail before the cut, and their hosts.
const REFUSALS: [(usize, Refuse); 12] = [
    (MIDDLE, Refuse::Measure),
    (MIDDLE, Refuse::SecondMeasure),
    (MIDDLE, Refuse::Persist),
    (0, Refuse::Lock),
    (0, Refuse::Reserve),
    (0, Refuse::Prepare),
    (0, Refuse::Try),
    (0, Refuse::Persist),
    (0, Refuse::SecondPersist),
    (2, Refuse::Lock),
    (2, Refuse::Prepare),
    (2, Refuse::Persist),
];

fn refused(host: usize, what: Refuse, faults: Faults) -> World {
    let mut world = World::new(3, faults);
    world.refuse(host, what);
    world.leave(MIDDLE).unwrap().unwrap();
    world
}

#[test]
fn each_refusal_leaves_all_as_it_was() {
    for (host, what) in REFUSALS {
        let mut world = refused(host, what, Faults::default());
        world.run(HOUR);
        assert!(
            !world.settled(MIDDLE),
            "{what:?} on host {host} was ignored"
        );
        let ends = world.ends(MIDDLE);
        assert_eq!(ends.len(), 1, "{what:?} on host {host}: {ends:?}");
        // The removal can be tried again after the cause is removed.
        world.hosts[host].plane.refuse = None;
        world.leave(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        assert!(world.settled(MIDDLE), "after {what:?} on host {host}");
    }
}

/// No host waits for a lock to expire or for a question.
#[test]
fn a_refusal_is_known_everywhere_at_once() {
    for (host, what) in REFUSALS {
        let mut world = refused(host, what, Faults::default());
        world.run(Duration::from_secs(1));
        assert!(!world.settled(MIDDLE), "{what:?} on host {host}");
        let said = |name| world.sent.iter().filter(|n| **n == name).count();
        assert_eq!(said("Query"), 0);
        if (host, what) == (MIDDLE, Refuse::Persist) {
            assert_eq!(said("AckLock"), 0, "a plan without a record went on");
        }
    }
}

#[test]
fn each_message_of_each_refusal_lost_in_turn() {
    for (host, what) in REFUSALS {
        for lose in 0..20 {
            let faults = Faults {
                lose: Some(lose),
                ..Faults::default()
            };
            let mut world = refused(host, what, faults);
            world.run(HOUR);
            assert!(!world.settled(MIDDLE), "{what:?} on {host}, without {lose}");
        }
    }
}

/// Faults of a daemon that takes several inputs before their messages leave.
fn several_inputs(seed: u64) -> Faults {
    Faults {
        seed,
        held: 5_000,
        ..Faults::default()
    }
}

#[test]
fn a_record_that_cannot_be_written_does_not_hold_back_earlier_messages() {
    for seed in 0..50 {
        for (host, what) in REFUSALS {
            let mut world = refused(host, what, several_inputs(seed));
            world.run(Duration::from_secs(3));
            assert!(!world.settled(MIDDLE), "{what:?} on host {host}, {seed}");
            let said = |name| world.sent.iter().filter(|n| **n == name).count();
            assert_eq!(said("Query"), 0, "{what:?} on host {host}, {seed}");
        }
    }
}

#[test]
fn each_daemon_that_takes_several_inputs_dies_before_each_step() {
    for seed in 0..5 {
        let whole = removal(several_inputs(seed));
        assert!(whole.settled(MIDDLE));
        for host in 0..3 {
            for step in 0..whole.hosts[host].steps() {
                let faults = Faults {
                    crashes: vec![(host, step, Duration::from_secs(7))],
                    ..several_inputs(seed)
                };
                removal(faults).settled(MIDDLE);
            }
        }
    }
}

/// A late copy of a request must not begin the change again that its left anchor has just taken
/// back and, with its process, forgotten.
#[test]
fn a_left_anchor_that_dies_rolling_back_does_not_begin_again() {
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    while world.hosts[0].machine.as_ref().unwrap().changes().count() == 0 {
        assert!(world.step(HOUR));
    }
    world.input(0, |m, now| m.cancel(now, change));
    world.restart(0);
    let from = world.hosts[MIDDLE].addresses.clone();
    let subsession = world.links[0];
    let said = world.sent.len();
    let again = Message::Leave {
        change,
        subsession,
        beyond: world.links[1],
    };
    world.input(0, |m, now| m.handle_message(now, &from, again));
    assert!(world.sent[said..].iter().all(|name| *name != "RequestLock"));
    world.run(HOUR);
    assert!(!world.settled(MIDDLE));
    world.nobody_accused();
}

/// A cancel that no host acknowledges is not repeated for ever.
#[test]
fn nobody_acknowledges_a_cancel() {
    let faults = Faults {
        lose_all: vec!["SetUpAck", "CancelAck"],
        ..Faults::default()
    };
    assert!(!removal(faults).settled(MIDDLE));
}

/// The left anchor dies for good after the right one is set up, and the middle gives up. The left
/// anchor cannot have cut without a plan.
#[test]
fn the_right_anchor_does_not_wait_for_a_left_one_without_a_plan() {
    let faults = Faults {
        lose_all: vec!["RequestLock"],
        ..Faults::default()
    };
    let mut world = World::new(3, faults);
    let change = world.leave(MIDDLE).unwrap().unwrap();
    while !world.sent.contains(&"SetUpAck") {
        assert!(world.step(HOUR));
    }
    world.hosts[0].machine = None;
    world.input(MIDDLE, |m, now| m.cancel(now, change));
    world.run(Duration::from_secs(1));
    let machine = world.hosts[2].machine.as_ref().unwrap();
    assert_eq!(machine.changes().count(), 0);
    assert_eq!(world.session(2, 1).state, State::Tracked);
}

/// A left neighbour that has not answered before may run no daemon. No other host is locked until
/// that is known.
#[test]
fn the_right_anchor_is_left_alone_until_the_left_one_is_known() {
    let asked = |lose_all| {
        let faults = Faults {
            lose_all,
            ..Faults::default()
        };
        let mut world = World::new(3, faults);
        world.hosts[MIDDLE].plane.left_is_unknown = true;
        world.leave(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        world.settled(MIDDLE);
        world
    };
    let silent = asked(vec!["Leave"]);
    assert!(!silent.sent.contains(&"Introduce"));
    let answers = asked(Vec::new());
    let at = |name| answers.sent.iter().position(|sent| *sent == name);
    assert!(at("RequestLock") < at("Introduce"));
    assert_eq!(answers.session(MIDDLE, 0).state, State::Tombstone);
}

/// A daemon that cannot restore its session still decides nothing alone.
#[test]
fn a_restored_right_anchor_cannot_prepare() {
    let steps = removal(Faults::default()).hosts[2].steps();
    for step in 0..steps {
        for lose in [None, Some(7), Some(8)] {
            let faults = Faults {
                lose,
                crashes: vec![(2, step, Duration::from_secs(2))],
                ..Faults::default()
            };
            let mut world = World::new(3, faults);
            world.leave(MIDDLE);
            while world.hosts[2].machine.is_some() && world.step(HOUR) {}
            world.refuse(2, Refuse::Prepare);
            world.run(HOUR);
            world.settled(MIDDLE);
        }
    }
}

#[test]
fn closing_that_fails_is_tried_again_and_reported() {
    let mut world = World::new(3, Faults::default());
    world.refuse(MIDDLE, Refuse::Close);
    world.leave(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    world.quiet();
    let is_trouble = |r: &&Report| matches!(r, Report::Trouble { .. });
    let troubles = world.hosts[MIDDLE].reports.iter().filter(is_trouble);
    // Five failures, and the report that it gives up.
    assert_eq!(troubles.count(), 6);
}

prop_compose! {
    /// Returns crashes of the three hosts' daemons: host, step and duration.
    pub fn crashes()(
        list in prop::collection::vec((0usize..3, 0u64..50, 1u64..40), 0..5),
    ) -> Vec<(usize, u64, Duration)> {
        list.into_iter().map(|(h, s, t)| (h, s, Duration::from_secs(t))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fair_loss_and_crashes(
        seed in any::<u64>(),
        lost in 0u64..60,
        doubled in 0u64..60,
        slowest in 1u64..4000,
        until in 0u64..60,
        crashes in crashes(),
    ) {
        let until = Duration::from_secs(until);
        let faults = Faults { seed, lost, doubled, slowest, until, crashes, ..Faults::default() };
        let world = removal(faults);
        world.settled(MIDDLE);
        world.nobody_accused();
    }

    #[test]
    fn cancelled_at_any_moment(
        seed in any::<u64>(),
        lost in 0u64..40,
        host in 0usize..3,
        steps in 0usize..60,
    ) {
        let until = Duration::from_secs(20);
        let faults = Faults { seed, lost, doubled: 30, slowest: 300, until, ..Faults::default() };
        let mut world = World::new(3, faults);
        let change = world.leave(MIDDLE).unwrap().unwrap();
        for _ in 0..steps {
            world.step(HOUR);
        }
        world.input(host, |m, now| m.cancel(now, change));
        world.run(HOUR);
        world.settled(MIDDLE);
        world.nobody_accused();
    }
}
