//! Tests with simulated processes, honest relays and others, whose counts are read at random
//! moments while the processes hold bytes.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::judge::judge;
use super::pairing::{Counts, Found, Kind, MAX_DELTA, Rules, Series};
use super::slow::Limits;
use super::unpaired::Unpaired;
use super::world::{Habit, World, habit, rng, slow};

const RULES: Rules = Rules {
    moments: 8,
    bytes: 4_000,
    window: Duration::from_millis(500),
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every pair that is found is right, for any behaviour of the process.
    #[test]
    fn no_pair_is_wrong(
        seed: [u8; 32],
        habits in prop::collection::vec(habit(), 1..8),
        moments in 20..600u64,
    ) {
        let mut w = World::new(rng(seed), &habits);
        let all = w.all();
        let series = w.watch(moments, &all);
        for (a, verdict) in judge(&series, &RULES) {
            let client = w.own.iter().position(|o| o.0 == a).unwrap();
            if let Ok(found) = verdict {
                prop_assert_eq!(Some(found), w.truth(client, &all));
            }
        }
    }

    /// A full buffer is never mistaken for a constant. If a sink is slow, the process may hold the
    /// same number of bytes at each moment.
    #[test]
    fn no_full_buffer_is_taken_for_a_constant(
        seed: [u8; 32],
        habits in prop::collection::vec(slow(), 1..4),
        (before, moments) in (0..300u64, 100..1_000u64),
    ) {
        let mut w = World::new(rng(seed), &habits);
        let all = w.all();
        w.watch(before, &all);
        let series = w.watch(moments, &all);
        for (client, (_, verdict)) in judge(&series, &RULES).into_iter().enumerate() {
            if let Ok(found) = verdict {
                prop_assert_eq!(Some(found), w.truth(client, &all));
            }
        }
    }

    /// All relays are found after enough data.
    #[test]
    fn relays_are_found(
        seed: [u8; 32],
        headers in prop::collection::vec(0..600i64, 1..6),
    ) {
        let habits: Vec<_> = headers.into_iter().map(Habit::Relay).collect();
        let mut w = World::new(rng(seed), &habits);
        let all = w.all();
        let series = w.watch(3_000, &all);
        for (client, (_, verdict)) in judge(&series, &RULES).into_iter().enumerate() {
            prop_assert_eq!(verdict.ok(), w.truth(client, &all));
        }
    }

    /// The result does not depend on the order in which the kernel lists sockets.
    #[test]
    fn order_means_nothing(
        seed: [u8; 32],
        habits in prop::collection::vec(habit(), 1..6),
        swaps in prop::collection::vec((0..32usize, 0..32usize), 0..16),
    ) {
        let mut w = World::new(rng(seed), &habits);
        let mut order = w.all();
        let n = order.len();
        for (i, j) in swaps {
            order.swap(i % n, j % n);
        }
        let series = w.watch(1_000, &order);
        for (a, verdict) in judge(&series, &RULES) {
            let client = w.own.iter().position(|o| o.0 == order[a]).unwrap();
            if let Ok(found) = verdict {
                prop_assert_eq!(Some(found), w.truth(client, &order));
            }
        }
    }
}

/// Returns the verdict on the first client of a process with these habits.
fn first(habits: &[Habit]) -> Result<Found, Unpaired> {
    let mut w = World::new(rng([7; 32]), habits);
    let all = w.all();
    let series = w.watch(2_000, &all);
    let verdicts = judge(&series, &RULES);
    verdicts.into_iter().next().unwrap().1
}

#[test]
fn each_habit_is_known_by_its_name() {
    assert!(first(&[Habit::Relay(28)]).is_ok());
    assert!(matches!(
        first(&[Habit::Mirror]),
        Err(Unpaired::Ambiguous { .. })
    ));
    assert!(matches!(
        first(&[Habit::Cache]),
        Err(Unpaired::NoPartner { .. })
    ));
    assert!(matches!(
        first(&[Habit::Shrinks]),
        Err(Unpaired::TooLittle { .. })
    ));
    assert!(matches!(
        first(&[Habit::Adds]),
        Err(Unpaired::TooLittle { .. })
    ));
    let pool = [Habit::Relay(0), Habit::Pool];
    assert!(matches!(
        first(&pool),
        Err(Unpaired::NoPartner { .. } | Unpaired::TooLittle { .. } | Unpaired::Pool { .. })
    ));
    assert!(matches!(
        first(&[Habit::Relay(MAX_DELTA + 1)]),
        Err(Unpaired::Reused { older: false, .. })
    ));
}

const LIMITS: Limits = Limits {
    window: 200 << 10,
    buffer: 16 << 10,
    queue: 48 << 10,
    sends: 20_000,
    takes: 3_000,
};

/// Returns the verdict on a session that is watched after its buffers have settled.
fn of_later(forward: bool, limits: Limits) -> Result<Found, Unpaired> {
    let mut w = World::new(rng([7; 32]), &[Habit::Slow(7, forward, limits)]);
    let all = w.all();
    w.watch(200, &all);
    let series = w.watch(2_000, &all);
    judge(&series, &RULES)[0].1.clone()
}

#[test]
fn a_buffer_that_is_always_full_is_reported_with_its_direction() {
    for forward in [true, false] {
        let full = Err(Unpaired::MayHold { forward });
        assert_eq!(of_later(forward, LIMITS), full);
        let stands = Limits { takes: 0, ..LIMITS };
        assert_eq!(of_later(forward, stands), full, "nothing moves that way");
        let fast = Limits {
            takes: 40_000,
            ..LIMITS
        };
        assert!(of_later(forward, fast).is_ok());
    }
}

/// Sessions in step met the bytes that a mirror had written to its second server by chance, and
/// so often that they seemed to explain these bytes.
#[test]
fn a_copy_is_not_explained_by_chance() {
    let seed = [
        57, 146, 111, 109, 40, 229, 224, 107, 23, 39, 91, 125, 152, 159, 148, 167, 163, 62, 211,
        126, 228, 218, 139, 221, 197, 231, 179, 197, 14, 163, 244, 161,
    ];
    let mut habits = [Habit::Relay(0); 7];
    habits[2] = Habit::Mirror;
    let mut w = World::new(rng(seed), &habits);
    let series = w.watch(105, &w.all());
    let mirror = w.own[2].0;
    let verdicts: HashMap<_, _> = judge(&series, &RULES).into_iter().collect();
    assert!(verdicts[&mirror].is_err(), "{:?}", verdicts[&mirror]);
}

/// A mirror sent few bytes to either server, and the first server answered with many.
#[test]
fn a_copy_of_little_is_a_copy() {
    let seed = [
        60, 158, 204, 31, 152, 119, 117, 175, 23, 27, 69, 124, 88, 213, 140, 115, 200, 31, 177,
        253, 169, 248, 164, 58, 50, 199, 80, 201, 37, 238, 49, 81,
    ];
    let (relay, mirror) = (Habit::Relay(0), Habit::Mirror);
    let habits = [Habit::Cache, mirror, relay, mirror, relay, mirror, relay];
    let mut w = World::new(rng(seed), &habits);
    let series = w.watch(119, &w.all());
    for (client, (_, verdict)) in judge(&series, &RULES).into_iter().enumerate() {
        let is_mirror = habits[client] == mirror;
        assert!(!is_mirror || verdict.is_err(), "{client}: {verdict:?}");
    }
}

#[test]
fn one_direction_that_is_silent_is_enough_with_the_other() {
    let kind = |accepted| Kind {
        accepted,
        port: 80,
        born: None,
    };
    let mut series = Series::new(vec![kind(true), kind(false)]);
    for i in 0..200 {
        let at = series.moment(Duration::from_millis(5 * i), false);
        let bytes = 100 * i as i64;
        for (socket, read, written) in [(0, 77, bytes + 9), (1, bytes, 77)] {
            series.reading(socket, read, written);
            series.still(
                at,
                socket,
                Counts {
                    read: Some(read),
                    written: Some(written),
                    no_input: true,
                    has_room: true,
                },
            );
        }
    }
    let verdict = judge(&series, &RULES)[0].1.clone();
    let found = Found {
        a: 0,
        b: 1,
        forward: 0,
        reverse: 9,
    };
    assert_eq!(verdict, Ok(found));
}

#[test]
fn a_pool_that_was_used_before_and_one_with_too_few_are_seen() {
    let relay = |accepted: usize, born: [u64; 2]| {
        let kind = |accepted, born| Kind {
            accepted,
            port: 80,
            born: Some(born),
        };
        let mut kinds = vec![kind(true, born[0]), kind(false, born[1])];
        kinds.resize(1 + accepted, kind(true, 9));
        let mut series = Series::new(kinds);
        for i in 0..200 {
            let at = series.moment(Duration::from_millis(5 * i), false);
            let bytes = 100 * i as i64;
            for (socket, read, written) in [(0, bytes, 0), (1, 0, bytes)] {
                series.reading(socket, read, written);
                series.still(
                    at,
                    socket,
                    Counts {
                        read: Some(read),
                        written: Some(written),
                        no_input: true,
                        has_room: true,
                    },
                );
            }
        }
        judge(&series, &RULES)[0].1.clone()
    };
    assert!(relay(1, [1, 2]).is_ok());
    assert!(matches!(
        relay(1, [2, 1]),
        Err(Unpaired::Reused { older: true, .. })
    ));
    assert!(matches!(
        relay(2, [1, 2]),
        Err(Unpaired::Pool {
            accepted: 2,
            opened: 1
        })
    ));
}
