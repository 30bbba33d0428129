//! Sessions that end while they are being changed.

use std::time::Duration;

use proptest::prelude::*;

use super::plane::State;
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

/// Ends of the two sessions: host and link.
const ENDS: [(usize, usize); 4] = [(0, 0), (1, 0), (1, 1), (2, 1)];

fn steps_of_a_removal() -> usize {
    let mut world = World::new(3, Faults::default());
    world.leave(MIDDLE);
    (0..).take_while(|_| world.step(HOUR)).count()
}

/// All ends close at once.
#[test]
fn closed_at_each_step() {
    for steps in 0..steps_of_a_removal() {
        let mut world = World::new(3, Faults::default());
        world.leave(MIDDLE);
        (0..steps).for_each(|_| assert!(world.step(HOUR)));
        ENDS.iter().for_each(|(h, l)| world.session_gone(*h, *l));
        world.run(HOUR);
        world.quiet();
        world.nobody_accused();
    }
}

/// One end closes. The others notice much later.
#[test]
fn one_end_closes_first_at_each_step() {
    for first in ENDS {
        for steps in 0..steps_of_a_removal() {
            let mut world = World::new(3, Faults::default());
            world.leave(MIDDLE);
            (0..steps).for_each(|_| assert!(world.step(HOUR)));
            world.session_gone(first.0, first.1);
            world.run(Duration::from_secs(900));
            for (host, link) in ENDS {
                if !world.session(host, link).gone {
                    world.session_gone(host, link);
                }
            }
            world.run(HOUR);
            world.quiet();
        }
    }
}

/// The data that the client sent before it closed may still be in the middlebox. The server's host
/// must not release the old path before that has drained.
#[test]
fn the_servers_end_drains_though_the_client_is_gone() {
    for steps in 0..steps_of_a_removal() {
        let mut world = World::new(3, Faults::default());
        world.leave(MIDDLE);
        (0..steps).for_each(|_| assert!(world.step(HOUR)));
        world.session_gone(0, 0);
        // The data plane panics if the change completes or closes too early.
        world.run(HOUR);
        let right = world.session(2, 1);
        assert!(matches!(right.state, State::Tracked | State::NewPath));
    }
}

/// The client closes while its daemon is dead. The data that the middlebox still holds reaches the
/// server, with or without the cut.
#[test]
fn the_client_closes_while_its_daemon_is_dead() {
    let mut whole = World::new(3, Faults::default());
    whole.leave(MIDDLE);
    whole.run(HOUR);
    for step in 0..whole.hosts[0].steps() {
        let faults = Faults {
            crashes: vec![(0, step, Duration::from_secs(60))],
            slowest_drain: Duration::from_secs(1000),
            ..Faults::default()
        };
        let mut world = World::new(3, faults);
        world.leave(MIDDLE);
        while world.hosts[0].machine.is_some() && world.step(HOUR) {}
        world.session_gone(0, 0);
        world.run(HOUR);
        for (host, link) in &ENDS[1..] {
            world.session_gone(*host, *link);
        }
        world.run(HOUR);
        world.quiet();
    }
}

/// The server's end drains long after the left anchor has given up on it.
#[test]
fn a_slow_server_outlasts_the_left_anchor() {
    for restart in [false, true] {
        for steps in 0..steps_of_a_removal() {
            let faults = Faults {
                seed: steps as u64,
                slowest_drain: Duration::from_secs(2000),
                ..Faults::default()
            };
            let mut world = World::new(3, faults);
            world.leave(MIDDLE);
            // Some changes take fewer steps.
            for _ in 0..steps {
                world.step(HOUR);
            }
            world.session_gone(0, 0);
            world.session_gone(1, 0);
            world.session_gone(1, 1);
            world.run(Duration::from_secs(300));
            if restart {
                world.restart(0);
            }
            world.run(HOUR);
            world.quiet();
        }
    }
}

/// The ends close over the new path, so that the proxy never notices, and the left anchor gives up
/// before the change is done. The proxy's host must not wait for ever.
#[test]
fn the_proxys_host_does_not_outwait_the_left_anchor() {
    for steps in 0..steps_of_a_removal() {
        let faults = Faults {
            lose_all: vec!["Done"],
            ..Faults::default()
        };
        let mut world = World::new(3, faults);
        world.leave(MIDDLE);
        (0..steps).for_each(|_| assert!(world.step(HOUR)));
        world.session_gone(0, 0);
        world.session_gone(2, 1);
        world.run(HOUR);
        world.quiet();
    }
}

/// All ends have closed, and one kind of message never arrives.
#[test]
fn nothing_outlives_its_session_for_long() {
    for name in [
        "SetUpAck", "Switched", "Drained", "Done", "DoneAck", "Cancel",
    ] {
        for steps in 0..steps_of_a_removal() {
            let faults = Faults {
                lose_all: vec![name],
                ..Faults::default()
            };
            let mut world = World::new(3, faults);
            world.leave(MIDDLE);
            for _ in 0..steps {
                world.step(Duration::from_secs(100));
            }
            ENDS.iter().for_each(|(h, l)| world.session_gone(*h, *l));
            let before = world.now;
            world.run(HOUR);
            world.quiet();
            assert!(world.now - before < Duration::from_secs(600), "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn ends_close_in_any_order_under_loss_and_crashes(
        seed in any::<u64>(),
        lost in 0u64..40,
        order in Just(ENDS.to_vec()).prop_shuffle(),
        pauses in prop::collection::vec(0usize..25, 4),
        crash in (0usize..3, 0u64..25, 1u64..300),
    ) {
        let faults = Faults {
            seed,
            lost,
            doubled: 20,
            slowest: 500,
            until: Duration::from_secs(30),
            crashes: vec![(crash.0, crash.1, Duration::from_secs(crash.2))],
            ..Faults::default()
        };
        let mut world = World::new(3, faults);
        world.leave(MIDDLE);
        for ((host, link), pause) in order.into_iter().zip(pauses) {
            for _ in 0..pause {
                world.step(HOUR);
            }
            world.session_gone(host, link);
        }
        world.run(HOUR * 2);
        world.quiet();
    }
}

/// The middlebox has closed one half, or its process has died. An end has received a FIN that the
/// other end has not sent, and would acknowledge it on a new path as well.
#[test]
fn a_fin_of_the_middlebox_keeps_the_session_with_it() {
    for (host, link) in [(0, 0), (2, 1)] {
        let mut world = World::new(3, Faults::default());
        world.session_mut(host, link).fins.heard = true;
        world.leave(MIDDLE);
        world.run(HOUR);
        world.quiet();
        for (host, link) in ENDS {
            assert_eq!(world.session(host, link).state, State::Tracked);
        }
    }
}

#[test]
fn a_session_that_is_half_closed_loses_its_middlebox() {
    for (heard, sent) in [(0, 2), (2, 0)] {
        let mut world = World::new(3, Faults::default());
        world.session_mut(heard, heard / 2).fins.heard = true;
        world.session_mut(sent, sent / 2).fins.sent = true;
        world.leave(MIDDLE);
        world.run(HOUR);
        world.quiet();
        assert_eq!(world.session(0, 0).state, State::NewPath);
        assert_eq!(world.session(2, 1).state, State::NewPath);
    }
}
