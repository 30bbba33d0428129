extern crate std;

use proptest::prelude::*;
use std::vec::Vec;

use super::*;

/// A byte a microsecond.
const RATE: u64 = 8_000_000;
const START: u64 = 50 * NANOS;

/// A direction that has used all of its time.
fn lane() -> Lane {
    Lane {
        rate: RATE,
        due: START,
        ..Lane::default()
    }
}

fn size(packets: u32, payload: u32) -> Size {
    Size {
        packets,
        headers: 40,
        payload,
    }
}

#[test]
fn a_direction_without_a_rate_passes_and_is_counted() {
    let mut lane = Lane::default();
    for _ in 0..3 {
        assert_eq!(lane.judge(START, size(2, 2_000), true), Departure::Now);
    }
    assert_eq!((lane.packets, lane.bytes, lane.dropped), (6, 6_000, 0));
}

#[test]
fn packets_leave_one_after_the_other_at_the_rate() {
    let mut lane = lane();
    let departures: Vec<_> = (0..3)
        .map(|_| lane.judge(START, size(1, 960), true))
        .collect();
    let at = |n| Departure::At(START + n * 1_000_000u64);
    assert_eq!(departures, [Departure::Now, at(1), at(2)]);
}

#[test]
fn headers_of_all_packets_count_against_the_rate() {
    let mut lane = lane();
    lane.judge(START, size(3, 2_880), true);
    assert_eq!(lane.due, START + 3_000_000);
}

#[test]
fn without_departure_times_what_is_early_is_dropped() {
    let mut lane = lane();
    assert_eq!(lane.judge(START, size(1, 960), false), Departure::Now);
    assert_eq!(
        lane.judge(START + 999_999, size(1, 960), false),
        Departure::Never
    );
    assert_eq!(
        lane.judge(START + 1_000_000, size(1, 960), false),
        Departure::Now
    );
    assert_eq!((lane.packets, lane.dropped), (2, 1));
}

#[test]
fn unused_time_is_made_up_for_at_most_for_the_burst() {
    let passed = |now, timed| {
        let mut lane = lane();
        let all = core::iter::repeat_with(|| lane.judge(now, size(1, 960), timed));
        all.take_while(|departure| *departure == Departure::Now)
            .count()
    };
    assert_eq!(passed(START, false), 1);
    assert_eq!(passed(START + 1_500_000, true), 2);
    assert_eq!(passed(START + 60 * NANOS, true), 3);
    assert_eq!(passed(START + 60 * NANOS, false), 51);
}

#[test]
fn what_would_leave_beyond_the_horizon_is_dropped() {
    let mut lane = lane();
    while lane.judge(START, size(40, 38_400), true) != Departure::Never {}
    assert!((HORIZON..=HORIZON + 40_000_000).contains(&(lane.due - START)));
}

#[test]
fn a_delay_is_added_to_each_departure() {
    let mut lane = lane();
    lane.delay_ns = 5;
    assert_eq!(
        lane.judge(START, size(1, 960), true),
        Departure::At(START + 5)
    );
    assert_eq!(
        lane.judge(START, size(1, 960), true),
        Departure::At(START + 1_000_005)
    );
    lane.rate = 0;
    assert_eq!(
        lane.judge(START, size(1, 960), true),
        Departure::At(START + 5)
    );
    assert_eq!(
        lane.judge(START, size(1, 960), false),
        Departure::Now,
        "nothing can delay it"
    );
}

proptest! {
    /// However packets come, no more leave in a time than the rate and the burst allow, and one
    /// packet more. Nothing that leaves later leaves before what came first.
    #[test]
    fn the_rate_is_kept(
        packets in prop::collection::vec((0u64..3_000_000, 1u32..20, 0u32..20_000), 1..200),
        rate in 8_000u64..10_000_000_000,
        timed in any::<bool>(),
    ) {
        let mut lane = Lane { rate, ..Lane::default() };
        let burst = if timed { BURST_TIMED } else { BURST };
        let (mut now, mut left) = (START, Vec::new());
        for (pause, packets, payload) in packets {
            now += pause;
            let size = size(packets, payload);
            match lane.judge(now, size, timed) {
                Departure::Now => left.push((now, lane.cost(size))),
                Departure::At(at) => {
                    prop_assert!(timed && at > now && at <= now + HORIZON);
                    left.push((at, lane.cost(size)));
                }
                Departure::Never => {}
            }
        }
        prop_assert!(left.is_sorted_by_key(|(at, _)| *at));
        for first in 0..left.len() {
            let mut cost = 0;
            for (at, one) in &left[first..] {
                prop_assert!(cost <= at - left[first].0 + burst, "{} ns", cost);
                cost += one;
            }
        }
    }
}
