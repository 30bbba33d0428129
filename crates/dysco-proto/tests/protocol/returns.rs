//! Direct server return: replies go directly to the client, once it is proven that they arrive.

use std::time::Duration;

use dysco_common::Translation;
use dysco_proto::{
    ChangeId, Message, Probe, Progress, Reason, Report, Role, Subsession, Violation,
};
use proptest::prelude::*;

use super::plane::{Refuse, State};
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;
const RIGHT: usize = 2;

/// Returns a world in which the middlebox has left and its host relays.
fn relayed() -> World {
    let mut world = World::new(3, Faults::default());
    world.leave_locally(MIDDLE);
    world.run(HOUR);
    assert!(world.settled_locally(MIDDLE));
    world
}

/// Returns a change to direct server return with these faults.
fn returned(faults: Faults) -> World {
    let mut world = relayed();
    let before = [0, 1, 2].map(|host| world.hosts[host].steps());
    let crashes = faults.crashes.into_iter();
    let crashes = crashes.map(|(host, step, away)| (host, before[host] + step, away));
    world.faults = Faults {
        crashes: crashes.collect(),
        ..faults
    };
    world.request_dsr(MIDDLE);
    world.run(HOUR);
    world
}

/// Checks that nothing is left over, and that either way of a reply is correct. Returns true if the
/// middle has recorded that replies go directly; then they do.
fn settled(world: &World) -> bool {
    world.quiet();
    for link in [0, 1] {
        assert_eq!(world.session(MIDDLE, link).state, State::Relay);
    }
    let right = world.session(RIGHT, 1);
    let relay = world.session(MIDDLE, 0).translation;
    if right.state == State::Return {
        assert_eq!(right.translation, relay.mirrored());
    }
    let knows = !world.hosts[MIDDLE].plane.returned.is_empty();
    assert!(!knows || right.state == State::Return);
    knows
}

fn end(world: &World) -> Option<(Role, Progress)> {
    world.ends(MIDDLE).pop()
}

#[test]
fn replies_go_directly_once_proven() {
    let world = returned(Faults::default());
    assert!(settled(&world));
    assert_eq!(end(&world), Some((Role::Proof, Progress::Removed)));
    assert_eq!(world.sent, ["Prove", "ProveAck", "Return", "ReturnAck"]);
    assert_eq!(world.hosts[RIGHT].plane.proofs, [world.links[0]]);
}

/// Before the middlebox leaves nothing changes. The proof shows only whether the mode is possible.
#[test]
fn it_can_be_proven_first() {
    let mut world = World::new(3, Faults::default());
    world.request_dsr(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    world.quiet();
    assert_eq!(end(&world), Some((Role::Proof, Progress::Removed)));
    assert_eq!(world.sent, ["Prove", "ProveAck"]);
    assert_eq!(world.session(RIGHT, 1).state, State::Tracked);
    // The session is free for the next change.
    world.leave_locally(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert!(world.settled_locally(MIDDLE));
}

#[test]
fn a_client_that_is_not_reached_is_distinguished() {
    let unheard = Faults {
        unheard: usize::MAX,
        ..Faults::default()
    };
    let world = returned(unheard);
    assert!(!settled(&world));
    assert!(!world.sent.contains(&"Return"));
    let refused = matches!(
        end(&world),
        Some((Role::Proof, Progress::Refused(Reason::NotProven(_))))
    );
    assert!(refused, "{:?}", end(&world));
    // The segment is sent more than once.
    assert!(world.hosts[RIGHT].plane.proofs.len() > 2);
    let late = Faults {
        unheard: 2,
        ..Faults::default()
    };
    assert!(settled(&returned(late)));
    let silent = Faults {
        lose_all: vec!["Prove"],
        ..Faults::default()
    };
    let world = returned(silent);
    let nobody = Progress::Refused(Reason::NoAgent(world.links[1].right.ip()));
    assert_eq!(end(&world), Some((Role::Proof, nobody)));
}

#[test]
fn each_message_lost_in_turn() {
    let sent = returned(Faults::default()).sent.len() as u64;
    for lose in 0..sent {
        let faults = Faults {
            lose: Some(lose),
            ..Faults::default()
        };
        assert!(
            settled(&returned(faults)),
            "message {lose} is not made good"
        );
    }
}

#[test]
fn each_daemon_dies_before_each_step() {
    for host in [MIDDLE, RIGHT] {
        let before = relayed().hosts[host].steps();
        let steps = returned(Faults::default()).hosts[host].steps() - before;
        assert!(steps > 2);
        for step in 0..steps {
            for away in [1, 60] {
                let faults = Faults {
                    crashes: vec![(host, step, Duration::from_secs(away))],
                    ..Faults::default()
                };
                let mut world = returned(faults);
                settled(&world);
                // The mode can be requested again.
                world.request_dsr(MIDDLE).unwrap().unwrap();
                world.run(HOUR);
                assert!(settled(&world), "{host} died before {step}");
            }
        }
    }
}

#[test]
fn each_refusal_leaves_it_relayed() {
    for (host, what) in [
        (MIDDLE, Refuse::Watch),
        (RIGHT, Refuse::Prove),
        (RIGHT, Refuse::Return),
    ] {
        let mut world = relayed();
        world.refuse(host, what);
        world.request_dsr(MIDDLE);
        world.run(HOUR);
        assert!(!settled(&world), "{what:?}");
        assert!(matches!(end(&world), Some((_, Progress::Refused(_)))));
        world.hosts[host].plane.refuse = None;
        world.request_dsr(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        assert!(settled(&world), "after {what:?}");
    }
}

#[test]
fn a_bypass_may_follow() {
    let mut world = returned(Faults::default());
    assert!(settled(&world));
    world.leave(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert!(world.settled_from(State::Relay, MIDDLE));
}

/// The server's host is not asked before there is a left anchor, because it would stop its direct
/// replies.
#[test]
fn a_bypass_that_has_no_left_anchor_leaves_replies_alone() {
    let mut world = returned(Faults::default());
    world.faults.lose_all = vec!["Leave"];
    world.leave(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert_eq!(world.session(2, 1).state, State::Return);
    assert!(!world.sent.contains(&"Introduce"));
}

#[test]
fn one_change_of_a_session_at_a_time() {
    let mut world = relayed();
    world.request_dsr(MIDDLE).unwrap().unwrap();
    let second = world.leave(MIDDLE);
    assert!(matches!(second, Some(Err(Reason::LockedByAnother(_)))));
    world.run(HOUR);
    assert!(settled(&world));
}

/// No peer can make this host send packets under an address that is not the peer's own.
#[test]
fn only_own_addresses_are_lent() {
    let (a, b) = {
        let world = World::new(3, Faults::default());
        (world.links[0], world.links[1])
    };
    let stranger = "10.9.9.9:80".parse().unwrap();
    let probe = Probe {
        end: 1,
        ack: 1,
        clock: None,
        len: 1,
    };
    let path = |right| Subsession { right, ..a };
    let change = ChangeId([7; 16]);
    let prove = |path| Message::Prove {
        change,
        subsession: b,
        path,
        probe,
        translation: None,
    };
    let returns = |path| Message::Return {
        change,
        subsession: b,
        path,
        translation: Translation::default(),
    };
    let foreign = [prove(path(stranger)), returns(path(stranger))];
    for (from, message, violation) in [
        (MIDDLE, foreign[0].clone(), Violation::ForeignPath),
        (MIDDLE, foreign[1].clone(), Violation::ForeignPath),
        (0, prove(a), Violation::NotItsSubsession),
        (0, returns(a), Violation::NotItsSubsession),
    ] {
        let mut world = World::new(3, Faults::default());
        let from = world.hosts[from].addresses.clone();
        world.input(RIGHT, |m, now| m.handle_message(now, &from, message));
        world.run(HOUR);
        assert_eq!(world.session(RIGHT, 1).state, State::Tracked);
        assert!(world.hosts[RIGHT].plane.proofs.is_empty());
        assert!(world.sent.is_empty(), "answered {:?}", world.sent);
        let accused = world.hosts[RIGHT].reports.iter();
        let accused = accused
            .filter(|r| matches!(r, Report::Violation { violation: v, .. } if *v == violation));
        assert_eq!(accused.count(), 1, "{violation:?}");
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
        unheard in 0usize..6,
        crashes in prop::collection::vec((1usize..3, 0u64..12, 1u64..40), 0..4),
    ) {
        let crashes = crashes.into_iter();
        let crashes = crashes.map(|(h, s, t)| (h, s, Duration::from_secs(t))).collect();
        let until = Duration::from_secs(300);
        let world = returned(Faults { seed, lost, doubled, slowest, unheard, until, crashes, ..Faults::default() });
        settled(&world);
        world.nobody_accused();
    }
}
