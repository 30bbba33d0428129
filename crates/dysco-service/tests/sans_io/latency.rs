//! `latency` delays bytes and ends, and loses nothing.

use std::time::Duration;

use dysco_service::builtin::Latency;
use dysco_service::{Effect, Event, Flow};
use proptest::prelude::*;

use super::{Bench, index};

const DELAY: Duration = Duration::from_millis(50);
const MS: Duration = Duration::from_millis(1);

fn delayed() -> (Bench, dysco_service::LayerId) {
    let mut bench = Bench::new();
    let latency = bench.stack.put(0, Box::new(Latency::new(DELAY))).unwrap();
    (bench, latency)
}

#[test]
fn each_part_leaves_after_the_delay() {
    for flow in Flow::SESSION {
        let (mut bench, _) = delayed();
        bench.data(flow, b"one");
        bench.pass(20 * MS);
        bench.data(flow, b"two");
        bench.event(Event::Fin(flow));
        bench.pass(29 * MS);
        assert!(bench.out[index(flow)].is_empty());
        bench.pass(MS);
        assert_eq!(bench.out[index(flow)], b"one");
        bench.pass(19 * MS);
        assert_eq!(bench.out[index(flow)], b"one");
        assert_eq!(bench.ends[index(flow)], 0);
        bench.pass(MS);
        assert_eq!(bench.out[index(flow)], b"onetwo");
        assert_eq!(bench.ends[index(flow)], 1);
    }
}

#[test]
fn a_part_after_a_pause_is_delayed_too() {
    let (mut bench, _) = delayed();
    bench.data(Flow::Forward, b"one");
    bench.pass(500 * MS);
    bench.data(Flow::Forward, b"two");
    bench.pass(49 * MS);
    assert_eq!(bench.out[0], b"one");
    bench.pass(MS);
    assert_eq!(bench.out[0], b"onetwo");
}

#[test]
fn it_holds_what_it_has_no_room_for() {
    for size in [1, 64 * 1024] {
        let (mut bench, _) = delayed();
        let (part, mut count) = (vec![7; size], 0);
        while !bench.held[0] {
            bench.data(Flow::Forward, &part);
            count += size;
        }
        assert!(count <= 4 << 20, "{count} bytes are in hand");
        assert!(count >= 30_000, "{count} bytes are in hand");
        bench.pass(DELAY);
        assert_eq!(bench.out[0].len(), count);
        assert!(!bench.held[0]);
    }
}

#[test]
fn a_full_element_behind_it_holds_the_source() {
    let (mut bench, _) = delayed();
    bench.event(Event::Full(Flow::Back));
    assert_eq!(bench.held, [false, true]);
    bench.event(Event::Writable(Flow::Back));
    assert_eq!(bench.held, [false; 2]);
}

#[test]
fn it_leaves_with_its_bytes_and_ends_sent_first() {
    let (mut bench, latency) = delayed();
    bench.data(Flow::Forward, b"up");
    bench.data(Flow::Back, b"down");
    bench.event(Event::Fin(Flow::Back));
    bench.to(latency, Event::Leave);
    assert_eq!(bench.out, [b"up".to_vec(), b"down".to_vec()]);
    assert_eq!(bench.ends, [0, 1]);
    assert!(bench.stack.is_empty());
    assert!(matches!(&bench.rest[..], [Effect::Left(left)] if left.delta == [0; 2]));
    bench.data(Flow::Forward, b"later");
    assert_eq!(bench.out[0], b"uplater");
}

proptest! {
    #[test]
    fn it_changes_no_byte(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..400), any::<bool>(), 0u64..80), 1..20),
    ) {
        let (mut bench, _) = delayed();
        let mut sent = [Vec::new(), Vec::new()];
        for (part, back, wait) in parts {
            sent[usize::from(back)].extend_from_slice(&part);
            bench.data(Flow::SESSION[usize::from(back)], &part);
            bench.pass(Duration::from_millis(wait));
        }
        prop_assert_eq!(bench.finish(), sent);
    }
}
