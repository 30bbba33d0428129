//! A new path that dies while two paths are in use.

use std::time::Duration;

use dysco_proto::{HostEvent, Progress, Reason, Role};
use proptest::prelude::*;

use super::faults::crashes;
use super::plane::{Refuse, State};
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;
const LEFT: usize = 0;
const RIGHT: usize = 2;

/// Returns a world in which the new path carries nothing once both anchors have cut, so that the
/// right anchor never drains.
fn silent(faults: Faults) -> World {
    let faults = Faults {
        stuck: vec![RIGHT],
        ..faults
    };
    let mut world = World::new(3, faults);
    world.hosts[LEFT].plane.silent = true;
    world.leave(MIDDLE);
    world
}

fn said(world: &World, name: &str) -> usize {
    world.sent.iter().filter(|n| **n == name).count()
}

#[test]
fn the_old_path_is_taken_again() {
    let mut world = silent(Faults::default());
    world.run(HOUR);
    assert!(!world.settled(MIDDLE));
    let right = world.hosts[RIGHT].addresses[0];
    let why = Progress::RolledBack(Reason::NewPathSilent(right));
    for (host, role) in [
        (LEFT, Role::Left),
        (MIDDLE, Role::Middle),
        (RIGHT, Role::Right),
    ] {
        assert_eq!(world.ends(host), [(role, why.clone())]);
    }
    // The middlebox can leave later, after the cause is removed.
    world.hosts[LEFT].plane.silent = false;
    world.faults.stuck.clear();
    world.leave(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
}

#[test]
fn a_path_that_answers_is_not_suspected() {
    let mut world = World::new(
        3,
        Faults {
            slowest_drain: Duration::from_secs(600),
            ..Faults::default()
        },
    );
    world.leave(MIDDLE);
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
    assert_eq!(said(&world, "Suspect"), 0);
}

/// A failure that kills a path mostly stops messages on the same way as well. The middlebox's host
/// forwards them.
#[test]
fn the_anchors_do_not_reach_each_other() {
    let cut = |world: &mut World| {
        while said(world, "Switched") < 3 {
            assert!(world.step(HOUR));
        }
        world.faults.parted = Some((world.now, HOUR));
    };
    let mut world = silent(Faults::default());
    cut(&mut world);
    world.run(HOUR);
    assert!(!world.settled(MIDDLE));
    let ends = world.ends(RIGHT);
    assert!(matches!(
        ends[..],
        [(_, Progress::RolledBack(Reason::NewPathSilent(_)))]
    ));
    // If the path cannot be taken back, the anchors are notified, and go on.
    let mut world = silent(Faults::default());
    cut(&mut world);
    world.hosts[RIGHT].plane.carried = true;
    world.run(HOUR);
    for (at, link) in [(LEFT, 0), (RIGHT, 1)] {
        let s = world.session(at, link);
        assert_eq!((s.state, s.muted), (State::TwoPaths, false), "host {at}");
    }
}

/// The last awaited event arrives while the path is suspected.
#[test]
fn what_is_suspected_is_not_completed() {
    let mut world = silent(Faults::default());
    world.faults.stuck = vec![LEFT];
    while said(&world, "Suspect") == 0 {
        assert!(world.step(HOUR));
    }
    assert_ne!(said(&world, "Drained"), 0);
    let link = world.links[0];
    world.hosts[LEFT]
        .plane
        .sessions
        .get_mut(&link)
        .unwrap()
        .drained = true;
    let change = world.hosts[LEFT].machine.as_ref().unwrap().changes().next();
    let change = change.unwrap().change;
    world.input(LEFT, |m, now| {
        m.handle_event(now, HostEvent::Drained { change });
    });
    world.run(HOUR);
    assert!(!world.settled(MIDDLE));
}

/// An end that has received an acknowledgement of this data will not send it again, so that the
/// middlebox would never get it.
#[test]
fn what_was_carried_is_not_taken_back() {
    for host in [LEFT, RIGHT] {
        let mut world = silent(Faults::default());
        world.hosts[host].plane.carried = true;
        world.hosts[LEFT].plane.silent = true;
        world.run(HOUR);
        for (at, link) in [(LEFT, 0), (RIGHT, 1)] {
            let s = world.session(at, link);
            assert_eq!((s.state, s.muted), (State::TwoPaths, false), "host {at}");
        }
        // The awaited data arrives after all.
        world.faults.stuck.clear();
        world.restart(RIGHT);
        world.run(HOUR);
        assert!(world.settled(MIDDLE));
    }
}

#[test]
fn each_message_lost_in_turn() {
    let mut whole = silent(Faults::default());
    whole.run(HOUR);
    for lose in 0..whole.sent.len() as u64 {
        let mut world = silent(Faults {
            lose: Some(lose),
            ..Faults::default()
        });
        world.run(HOUR);
        assert!(!world.settled(MIDDLE), "without message {lose}");
    }
}

#[test]
fn each_kind_of_answer_lost_for_ever() {
    for name in ["CancelAck", "Switched"] {
        let mut world = silent(Faults {
            lose_all: vec![name],
            ..Faults::default()
        });
        world.run(HOUR);
        assert!(!world.settled(MIDDLE), "without any {name}");
    }
}

#[test]
fn each_daemon_dies_before_each_step() {
    let mut whole = silent(Faults::default());
    whole.run(HOUR);
    for host in 0..3 {
        for step in 0..whole.hosts[host].steps() {
            for away in [1, 7, 60] {
                let mut world = silent(Faults {
                    crashes: vec![(host, step, Duration::from_secs(away))],
                    ..Faults::default()
                });
                world.run(HOUR);
                assert!(!world.settled(MIDDLE), "host {host} before step {step}");
                world.nobody_accused();
            }
        }
    }
}

#[test]
fn both_anchors_die() {
    let mut whole = silent(Faults::default());
    whole.run(HOUR);
    for step in 0..whole.hosts[LEFT].steps() {
        for second in 0..whole.hosts[RIGHT].steps() {
            let mut world = silent(Faults {
                crashes: vec![
                    (LEFT, step, Duration::from_secs(2)),
                    (RIGHT, second, Duration::from_secs(9)),
                ],
                ..Faults::default()
            });
            world.run(HOUR);
            assert!(!world.settled(MIDDLE), "steps {step} and {second}");
        }
    }
}

/// No host depends on a state that cannot be recorded.
#[test]
fn a_record_that_cannot_be_written() {
    for (host, after) in [(LEFT, "Drained"), (LEFT, "Muted"), (RIGHT, "Drained")] {
        let mut world = silent(Faults::default());
        world.faults.stuck = vec![LEFT];
        while said(&world, after) == 0 {
            assert!(world.step(HOUR));
        }
        world.refuse(host, Refuse::SecondPersist);
        world.run(Duration::from_secs(60));
        for (at, link) in [(LEFT, 0), (RIGHT, 1)] {
            let s = world.session(at, link);
            assert_eq!((s.state, s.muted), (State::TwoPaths, false), "host {at}");
        }
        world.nobody_accused();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Both anchors end alike, whether the path is alive or not.
    #[test]
    fn fair_loss_and_crashes(
        seed in any::<u64>(),
        lost in 0u64..60,
        doubled in 0u64..60,
        slowest in 1u64..4000,
        lives in any::<bool>(),
        parted in prop::option::of(2u64..30),
        crashes in crashes(),
    ) {
        let faults = Faults {
            seed,
            lost,
            doubled,
            slowest,
            until: Duration::from_secs(60),
            slowest_drain: Duration::from_secs(20),
            crashes,
            parted: parted.map(|at| (Duration::from_secs(at), Duration::from_secs(600))),
            ..Faults::default()
        };
        let mut world = silent(faults);
        if lives {
            world.faults.stuck.clear();
        }
        world.run(HOUR);
        world.settled(MIDDLE);
        world.nobody_accused();
    }
}
