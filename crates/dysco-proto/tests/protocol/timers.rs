//! Timers without a clock have the same effect as passing time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use dysco_proto::{Machine, Message};

use super::world::{Faults, World};

fn digest(machine: &Machine) -> u64 {
    let mut hasher = DefaultHasher::new();
    machine.hash(&mut hasher);
    hasher.finish()
}

fn said(machine: &mut Machine) -> Vec<Message> {
    std::iter::from_fn(|| machine.poll_transmit())
        .map(|(_, m)| m)
        .collect()
}

/// Returns a proxy's host that has asked its left neighbour, and receives no answer.
fn leaving() -> (Machine, Duration) {
    let mut world = World::new(
        3,
        Faults {
            lose_all: vec!["Leave"],
            ..Faults::default()
        },
    );
    world.leave(1).unwrap().unwrap();
    while world.sent.is_empty() {
        assert!(world.step(Duration::from_secs(9)));
    }
    (world.hosts[1].machine.clone().unwrap(), world.now)
}

#[test]
fn a_repetition_says_the_same_and_changes_nothing() {
    let (mut machine, now) = leaving();
    let waits = machine.waits().next().unwrap();
    assert!(waits.has_pending && waits.deadline > Some(now));
    let before = digest(&machine);
    machine.repeat(now, waits.timer);
    let by_hand = said(&mut machine);
    assert_eq!(digest(&machine), before);
    let due = machine.poll_timeout().unwrap();
    machine.handle_timeout(due);
    assert_eq!(by_hand, said(&mut machine));
    assert!(matches!(
        by_hand[..],
        [Message::Leave { .. }, Message::Introduce { .. }]
    ));
}

#[test]
fn who_is_reached_again_hears_at_once_what_it_did_not_answer() {
    let (mut machine, now) = leaving();
    let left = "10.0.0.2".parse().unwrap();
    // The message was sent once, and is under way.
    machine.handle_connected(now, left);
    assert_eq!(said(&mut machine), []);
    let due = machine.poll_timeout().unwrap();
    machine.handle_timeout(due);
    assert_eq!(said(&mut machine).len(), 2);
    machine.handle_connected(due, "10.0.0.3".parse().unwrap());
    assert_eq!(said(&mut machine), []);
    machine.handle_connected(due, left);
    machine.handle_timeout(due);
    let again = said(&mut machine);
    assert!(matches!(again[..], [Message::Leave { .. }]), "{again:?}");
}

#[test]
fn a_deadline_by_hand_ends_what_the_clock_would_have_ended() {
    let (mut machine, now) = leaving();
    let mut other = machine.clone();
    assert_eq!(digest(&other), digest(&machine));
    // The deadlines of the request to leave, and of its cancel.
    for _ in 0..2 {
        let waits = machine.waits().next().unwrap();
        machine.expire(now, waits.timer);
    }
    while let Some(due) = other.poll_timeout() {
        other.handle_timeout(due);
    }
    assert_eq!(machine.waits().count(), 0);
    let ends = |m: &mut Machine| -> Vec<_> { std::iter::from_fn(|| m.poll_report()).collect() };
    assert_eq!(ends(&mut machine), ends(&mut other));
}
