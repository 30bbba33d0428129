//! A middlebox that dies between two paths, with bytes that it had acknowledged.

use std::time::Duration;

use dysco_proto::{HostEvent, Progress, Reason, Role};

use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const LEFT: usize = 0;
const MIDDLE: usize = 1;
const RIGHT: usize = 2;
const BYTES: u32 = 4711;

fn lost() -> Progress {
    Progress::Lost(Reason::MiddleboxDied(BYTES))
}

/// Returns a removal that is about to drain for ever, after this number of `Switched`.
fn draining(switched: usize, faults: Faults) -> World {
    let faults = Faults {
        stuck: vec![LEFT, RIGHT],
        ..faults
    };
    let mut world = World::new(3, faults);
    world.leave(MIDDLE);
    while world.sent.iter().filter(|n| **n == "Switched").count() < switched {
        assert!(world.step(HOUR));
    }
    world
}

/// Notifies a host's machine of the middlebox's end, as its data plane does.
fn dies(world: &mut World, host: usize) {
    let machine = world.hosts[host].machine.as_ref();
    let Some(c) = machine.and_then(|m| m.changes().next()) else {
        return;
    };
    let change = c.change;
    let bytes = BYTES;
    world.input(host, |m, now| {
        m.handle_event(now, HostEvent::Broken { change, bytes });
    });
}

/// Checks that all hosts report the loss and both ends get a reset.
fn both_are_reset(world: &World, what: &str) {
    for (host, role) in [
        (LEFT, Role::Left),
        (MIDDLE, Role::Middle),
        (RIGHT, Role::Right),
    ] {
        assert_eq!(world.ends(host), [(role, lost())], "{what}");
    }
    let reset = [(LEFT, 0), (RIGHT, 1)].map(|(at, link)| world.session(at, link).reset);
    assert_eq!(reset, [true; 2], "{what}");
    world.nobody_accused();
    for host in &world.hosts {
        let machine = host.machine.as_ref().unwrap();
        assert_eq!(machine.changes().count(), 0, "{what}");
        assert!(host.plane.records.is_empty(), "{what}");
        assert!(host.plane.locked.is_empty(), "{what}");
    }
}

#[test]
fn whoever_sees_it_the_other_end_is_reset() {
    for by in [LEFT, RIGHT] {
        for switched in [2, 3, 4] {
            let mut world = draining(switched.min(3), Faults::default());
            if switched == 4 {
                world.run(Duration::from_secs(20));
            }
            dies(&mut world, by);
            world.run(HOUR);
            both_are_reset(&world, &format!("by {by} after {switched}"));
        }
    }
}

/// The right anchor does not take the loss for the end of an attempt that was given up.
#[test]
fn the_right_anchor_sees_it_before_it_hears_of_the_cut() {
    let mut world = draining(1, Faults::default());
    dies(&mut world, RIGHT);
    world.run(HOUR);
    both_are_reset(&world, "before Switched has come");
}

#[test]
fn each_message_lost_in_turn() {
    for by in [LEFT, RIGHT] {
        let mut whole = draining(3, Faults::default());
        let before = whole.sent.len();
        dies(&mut whole, by);
        whole.run(HOUR);
        for lose in before..whole.sent.len() {
            let faults = Faults {
                lose: Some(lose as u64),
                ..Faults::default()
            };
            let mut world = draining(3, faults);
            dies(&mut world, by);
            world.run(HOUR);
            both_are_reset(&world, &format!("by {by}, without message {lose}"));
        }
    }
}

/// A left anchor that restarts continues its cut, and is notified of the loss.
#[test]
fn the_other_daemons_die_before_each_step() {
    let mut whole = draining(3, Faults::default());
    dies(&mut whole, RIGHT);
    whole.run(HOUR);
    for host in [LEFT, MIDDLE] {
        for step in 0..whole.hosts[host].steps() {
            let faults = Faults {
                crashes: vec![(host, step, Duration::from_secs(2))],
                ..Faults::default()
            };
            let faults = Faults {
                stuck: vec![LEFT, RIGHT],
                ..faults
            };
            let mut world = World::new(3, faults);
            world.leave(MIDDLE);
            world.run(Duration::from_secs(1));
            dies(&mut world, RIGHT);
            world.run(HOUR);
            world.nobody_accused();
            for host in &world.hosts {
                let machine = host.machine.as_ref().unwrap();
                let left: Vec<_> = machine.changes().collect();
                assert!(left.is_empty(), "at step {step}: {left:?}");
            }
            let reported = [LEFT, MIDDLE, RIGHT].map(|h| world.ends(h));
            let removed = reported
                .iter()
                .flatten()
                .any(|(_, p)| *p == Progress::Removed);
            assert!(!removed, "at step {step}: {reported:?}");
        }
    }
}

#[test]
fn before_the_cut_it_is_the_sessions_own_end() {
    for by in [LEFT, RIGHT] {
        let mut world = World::new(3, Faults::default());
        world.leave(MIDDLE);
        while !world.sent.contains(&"RequestLock") {
            assert!(world.step(HOUR));
        }
        dies(&mut world, by);
        world.run(HOUR);
        assert!(!world.settled(MIDDLE));
        let is_lost = |(_, p): &(Role, Progress)| matches!(p, Progress::Lost(_));
        assert!(!world.ends(MIDDLE).iter().any(is_lost));
    }
}

#[test]
fn a_host_that_is_both_anchors_resets_both_ends() {
    let faults = Faults {
        stuck: vec![MIDDLE],
        ..Faults::default()
    };
    let mut world = World::new(3, faults);
    world.leave_locally(MIDDLE);
    world.run(Duration::from_secs(20));
    dies(&mut world, MIDDLE);
    world.run(HOUR);
    assert_eq!(world.ends(MIDDLE), [(Role::Local, lost())]);
    for link in [0, 1] {
        assert!(world.session(MIDDLE, link).reset, "{link}");
    }
    assert!(world.hosts[MIDDLE].plane.records.is_empty());
}
