//! The later removal of a relaying host from a session.

use std::time::Duration;

use dysco_proto::{Progress, Reason, Role};
use proptest::prelude::*;

use super::plane::{Refuse, State};
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

/// Returns a world in which the middlebox has left and its host relays.
fn relayed() -> World {
    let mut world = World::new(3, Faults::default());
    world.leave_locally(MIDDLE);
    world.run(HOUR);
    assert!(world.settled_locally(MIDDLE));
    world
}

/// Returns a bypass of the relaying host with these faults.
fn bypassed(faults: Faults) -> World {
    let mut world = relayed();
    let before = [0, 1, 2].map(|host| world.hosts[host].steps());
    let crashes = faults.crashes.into_iter();
    let crashes = crashes.map(|(host, step, away)| (host, before[host] + step, away));
    world.faults = Faults {
        crashes: crashes.collect(),
        ..faults
    };
    world.leave(MIDDLE);
    world.run(HOUR);
    world
}

fn settled(world: &World) -> bool {
    world.settled_from(State::Relay, MIDDLE)
}

/// Returns the number of steps of a host in the bypass.
fn steps(host: usize) -> u64 {
    let before = relayed().hosts[host].steps();
    bypassed(Faults::default()).hosts[host].steps() - before
}

#[test]
fn its_host_leaves_the_path() {
    let world = bypassed(Faults::default());
    assert!(settled(&world));
    for host in [0, 2] {
        let ends = world.ends(host);
        assert!(matches!(ends[..], [(_, Progress::Removed)]), "{ends:?}");
    }
    let ends = world.ends(MIDDLE);
    let roles = [
        (Role::Local, Progress::Removed),
        (Role::Middle, Progress::Removed),
    ];
    assert_eq!(ends, roles);
}

/// The far end does not notice: numbers and clocks are the same.
#[test]
fn the_anchor_translates_as_the_relay_did() {
    let world = bypassed(Faults::default());
    let relay = world.session(MIDDLE, 0).translation;
    assert_ne!((relay.seq_out, relay.ts_out), (0, 0));
    assert_eq!(world.session(0, 0).translation, relay);
}

#[test]
fn by_itself_its_host_has_left_already() {
    let mut world = relayed();
    world.leave_locally(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert!(world.settled_locally(MIDDLE));
    let last = world.ends(MIDDLE).pop();
    let refused = (Role::Local, Progress::Refused(Reason::AlreadyOut));
    assert_eq!(last, Some(refused));
}

#[test]
fn each_message_lost_in_turn() {
    let sent = bypassed(Faults::default()).sent.len() as u64;
    assert!(sent >= 14);
    for lose in 0..sent {
        let faults = Faults {
            lose: Some(lose),
            ..Faults::default()
        };
        assert!(
            settled(&bypassed(faults)),
            "message {lose} is not made good"
        );
    }
}

#[test]
fn each_daemon_dies_before_each_step() {
    let (mut out, mut kept) = (0, 0);
    for host in 0..3 {
        for step in 0..steps(host) {
            for away in [1, 7, 60] {
                let faults = Faults {
                    crashes: vec![(host, step, Duration::from_secs(away))],
                    ..Faults::default()
                };
                match settled(&bypassed(faults)) {
                    true => out += 1,
                    false => kept += 1,
                }
            }
        }
    }
    assert!(out > 0 && kept > 0, "{out} and {kept}");
}

#[test]
fn each_refusal_leaves_it_relayed() {
    for (host, what) in [
        (0, Refuse::Lock),
        (0, Refuse::Reserve),
        (0, Refuse::Prepare),
        (2, Refuse::Lock),
        (2, Refuse::Prepare),
        (MIDDLE, Refuse::Measure),
    ] {
        let mut world = relayed();
        world.refuse(host, what);
        world.leave(MIDDLE);
        world.run(HOUR);
        assert!(!settled(&world), "{what:?} on {host}");
        world.hosts[host].plane.refuse = None;
        world.leave(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        assert!(settled(&world), "after {what:?} on {host}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_goes_wrong(
        seed in any::<u64>(),
        lost in 0u64..60,
        doubled in 0u64..40,
        slowest in 1u64..3000,
        crashes in prop::collection::vec((0usize..3, 0u64..25, 1u64..40), 0..4),
    ) {
        let crashes = crashes.into_iter();
        let crashes = crashes.map(|(h, s, t)| (h, s, Duration::from_secs(t))).collect();
        let until = Duration::from_secs(300);
        let world = bypassed(Faults { seed, lost, doubled, slowest, until, crashes, ..Faults::default() });
        settled(&world);
        world.nobody_accused();
    }
}
