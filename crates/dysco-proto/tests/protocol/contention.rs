//! Two changes that need the same session.

use std::time::Duration;

use dysco_proto::{Limits, Machine, Message, Progress, Reason, Role, Subsession};
use proptest::prelude::*;

use super::plane::State;
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);

fn removed(world: &World, middle: usize) -> bool {
    world.session(middle, middle).state == State::Tombstone
}

#[test]
fn a_second_request_names_the_first() {
    let mut world = World::new(3, Faults::default());
    let first = world.leave(1).unwrap().unwrap();
    let second = world.leave(1).unwrap().unwrap_err();
    assert_eq!(second, Reason::LockedByAnother(first));
    world.run(HOUR);
    assert!(world.settled(1));
}

/// Both neighbours ask while the operator does: one removal, three answers.
#[test]
fn neighbours_ask_and_get_an_answer() {
    for asker in [0, 2] {
        let mut world = World::new(3, Faults::default());
        let middlebox = world.hosts[1].addresses[0];
        let which = world.links[asker / 2];
        let asked = world.input(asker, |m, now| m.request_ask(now, middlebox, which));
        asked.unwrap().unwrap();
        world.run(HOUR);
        assert!(world.settled(1), "asked by host {asker}");
        let ends = world.ends(asker);
        assert!(ends.contains(&(Role::Asker, Progress::Removed)), "{ends:?}");
    }
}

#[test]
fn an_ask_for_a_locked_session_is_refused() {
    let mut world = World::new(3, Faults::default());
    let first = world.leave(1).unwrap().unwrap();
    let middlebox = world.hosts[1].addresses[0];
    let which = world.links[0];
    world.input(0, |m, now| m.request_ask(now, middlebox, which));
    world.run(HOUR);
    assert!(world.settled(1));
    let refused = Progress::Refused(Reason::LockedByAnother(first));
    assert!(world.ends(0).contains(&(Role::Asker, refused)));
}

/// The middlebox's daemon dies when it is done, before it sends its answer, and the asker repeats
/// the question. The left anchor still gets its answer.
#[test]
fn asked_again_after_the_end_by_one_that_did_not_hear_of_it() {
    for asker in [0, 2] {
        let ask = |faults| {
            let mut world = World::new(3, faults);
            let middlebox = world.hosts[1].addresses[0];
            let which = world.links[asker / 2];
            let asked = world.input(asker, |m, now| m.request_ask(now, middlebox, which));
            asked.unwrap().unwrap();
            world
        };
        let mut whole = ask(Faults::default());
        whole.run(HOUR);
        for step in 0..whole.hosts[1].steps() {
            let mut world = ask(Faults {
                crashes: vec![(1, step, Duration::from_secs(3))],
                ..Faults::default()
            });
            world.run(HOUR);
            world.settled(1);
            world.nobody_accused();
        }
    }
}

/// The asker does not wait, is an anchor of the change, and receives the answer.
#[test]
fn an_answer_that_comes_too_late_accuses_nobody() {
    for asker in [0, 2] {
        for steps in 0..12 {
            let mut world = World::new(3, Faults::default());
            let middlebox = world.hosts[1].addresses[0];
            let which = world.links[asker / 2];
            let asked = world.input(asker, |m, now| m.request_ask(now, middlebox, which));
            let change = asked.unwrap().unwrap();
            (0..steps).for_each(|_| assert!(world.step(HOUR)));
            world.input(asker, |m, now| m.cancel(now, change));
            world.run(HOUR);
            world.settled(1);
            world.nobody_accused();
        }
    }
}

#[test]
fn nobody_answers_an_ask() {
    let mut world = World::new(3, Faults::default());
    let nobody = "192.0.2.99".parse().unwrap();
    let which = world.links[0];
    world.input(0, |m, now| m.request_ask(now, nobody, which));
    world.run(HOUR);
    world.quiet();
    let refused = Progress::Refused(Reason::NoAnswer(nobody));
    assert_eq!(world.ends(0), [(Role::Asker, refused)]);
}

/// Neighbouring middleboxes ask to leave at the same time. Their segments overlap, so that one of
/// them may leave, and one does.
fn contend(count: usize, delays: &[usize], faults: Faults) -> usize {
    let mut world = World::new(count, faults);
    for (middle, delay) in (1..count - 1).zip(delays) {
        for _ in 0..*delay {
            world.step(Duration::from_millis(1020));
        }
        world.leave(middle);
    }
    world.run(HOUR);
    world.quiet();
    let out: Vec<bool> = (1..count - 1).map(|m| removed(&world, m)).collect();
    assert!(
        out.windows(2).all(|w| !(w[0] && w[1])),
        "two overlapping changes won: {out:?}"
    );
    out.iter().filter(|o| **o).count()
}

#[test]
fn of_two_neighbours_one_wins() {
    for delay in 0..40 {
        assert_eq!(contend(4, &[0, delay], Faults::default()), 1, "{delay}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn of_many_neighbours_one_wins(
        seed in any::<u64>(),
        count in 4usize..8,
        slowest in 1u64..100,
        doubled in 0u64..50,
        delays in prop::collection::vec(0usize..6, 6),
    ) {
        let until = Duration::from_secs(60);
        let faults = Faults { seed, slowest, doubled, until, ..Faults::default() };
        prop_assert!(contend(count, &delays, faults) >= 1);
    }

    #[test]
    fn neighbours_contend_under_loss(
        seed in any::<u64>(),
        lost in 0u64..50,
        count in 4usize..6,
        delays in prop::collection::vec(0usize..10, 6),
        crash in (0usize..4, 0u64..20, 1u64..30),
    ) {
        let crashes = vec![(crash.0, crash.1, Duration::from_secs(crash.2))];
        let until = Duration::from_secs(30);
        let faults = Faults {
            seed, lost, doubled: 20, slowest: 400, until, crashes, ..Faults::default()
        };
        contend(count, &delays, faults);
    }
}

#[test]
fn no_more_than_the_limits() {
    let me = "10.0.0.1".parse().unwrap();
    let peer = "10.0.0.2".parse().unwrap();
    let limits = Limits {
        changes: 5,
        per_peer: 3,
    };
    let mut machine = Machine::new(vec![me], || [0; 16]).with_limits(limits);
    let mut leave = |n: u8| {
        let mut link = World::new(3, Faults::default()).links[0];
        link.left = (me, 1000 + u16::from(n)).into();
        link.right = (peer, 80).into();
        let change = dysco_proto::ChangeId([n; 16]);
        let message = Message::Leave {
            change,
            subsession: link,
            beyond: Subsession {
                left: (peer, 40_000).into(),
                right: ([10, 0, 0, 3], 80).into(),
            },
        };
        machine.handle_message(Duration::ZERO, &[peer], message);
        machine.poll_transmit()
    };
    for n in 0..3 {
        assert_eq!(leave(n), None);
    }
    let refused = leave(3);
    assert!(
        matches!(&refused, Some((to, Message::NackLock { reason: Reason::Busy(host), .. }))
            if *to == peer && *host == me),
        "{refused:?}"
    );
    assert_eq!(machine.stats().changes, 3);
    assert_eq!(machine.stats().busy, 1);
}
