//! `shape` lets a direction pass at its rate, and loses nothing.

use std::time::Duration;

use bytes::Bytes;
use dysco_api::Rate;
use dysco_service::builtin::{Limits, Null, Shape};
use dysco_service::{Effect, Event, Flow, LayerId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Bench, index};

/// Rate of most tests: a byte a microsecond.
const BITS: u64 = 8_000_000;
const BURST: u64 = 10_000;

fn limits(up: Option<u64>, down: Option<u64>) -> Limits {
    Limits {
        up: Rate(up),
        down: Rate(down),
        burst: Some(BURST),
    }
}

fn shaped(limits: &Limits) -> (Bench, LayerId) {
    let mut bench = Bench::new();
    let shape = bench.stack.put(0, Box::new(Shape::new(limits))).unwrap();
    (bench, shape)
}

fn ask(bench: &mut Bench, shape: LayerId, question: &'static str) -> Value {
    bench.to(shape, Event::Call(Bytes::from_static(question.as_bytes())));
    match bench.rest.pop() {
        Some(Effect::Answer(_, bytes)) => serde_json::from_slice(&bytes).unwrap(),
        Some(Effect::Refuse(_, cause)) => json!({"refused": cause.why}),
        other => panic!("{other:?}"),
    }
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// Sends bytes as a source would that is held: the rest comes once it is released.
fn feed(bench: &mut Bench, flow: Flow, sent: &[u8], part: usize, time: Duration) -> usize {
    let (mut at, end) = (0, bench.now + time);
    while bench.now < end {
        while !bench.held[index(flow)] && at < sent.len() {
            let to = sent.len().min(at + part);
            bench.data(flow, &sent[at..to]);
            at = to;
        }
        bench.pass(Duration::from_micros(100));
    }
    at
}

#[test]
fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
    for flow in Flow::SESSION {
        let (mut bench, _) = shaped(&limits(Some(BITS), Some(BITS)));
        let sent = bytes(200_000);
        feed(&mut bench, flow, &sent, 30_000, Duration::from_millis(100));
        let out = bench.out[index(flow)].len() as u64;
        let due = BURST + 100_000;
        assert!(out <= due && out > due - BURST, "{out} of {due}");
        assert_eq!(bench.out[index(flow)], sent[..out as usize]);
        assert!(bench.held[index(flow)]);
    }
}

#[test]
fn a_direction_without_a_rate_passes_freely() {
    let (mut bench, _) = shaped(&limits(None, Some(BITS)));
    bench.data(Flow::Forward, &bytes(300_000));
    bench.data(Flow::Back, &bytes(300_000));
    assert_eq!(
        bench.out.each_ref().map(Vec::len),
        [300_000, BURST as usize]
    );
    assert_eq!(bench.held, [false, true]);
}

#[test]
fn unused_time_is_not_saved_beyond_the_burst() {
    let (mut bench, _) = shaped(&limits(Some(BITS), None));
    bench.data(Flow::Forward, &bytes(20_000));
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.out[0].len(), 20_000);
    assert!(!bench.held[0]);
    bench.data(Flow::Forward, &bytes(50_000));
    assert_eq!(bench.out[0].len(), 20_000 + BURST as usize);
}

#[test]
fn a_full_element_behind_it_stays_full_when_the_rate_would_allow_more() {
    let (mut bench, _) = shaped(&limits(Some(BITS), None));
    bench.data(Flow::Forward, &bytes(20_000));
    bench.event(Event::Full(Flow::Forward));
    bench.pass(Duration::from_secs(1));
    assert!(bench.held[0]);
    bench.event(Event::Writable(Flow::Forward));
    assert!(!bench.held[0]);
}

#[test]
fn the_end_comes_behind_the_bytes_in_hand() {
    let (mut bench, _) = shaped(&limits(Some(BITS), None));
    bench.data(Flow::Forward, &bytes(30_000));
    bench.event(Event::Fin(Flow::Forward));
    bench.pass(Duration::from_millis(5));
    assert_eq!(bench.ends[0], 0);
    bench.pass(Duration::from_millis(20));
    assert_eq!((bench.out[0].len(), bench.ends[0]), (30_000, 1));
}

#[test]
fn it_leaves_with_its_bytes_sent_first() {
    let (mut bench, shape) = shaped(&limits(Some(BITS), Some(BITS)));
    let sent = bytes(30_000);
    for flow in Flow::SESSION {
        bench.data(flow, &sent);
        bench.data(flow, b"waits in front of it");
    }
    bench.to(shape, Event::Leave);
    let all = [&sent[..], b"waits in front of it"].concat();
    assert!(bench.out.iter().all(|out| *out == all));
    assert!(bench.stack.is_empty());
    assert_eq!(bench.held, [false; 2]);
    assert!(matches!(&bench.rest[..], [Effect::Left(left)] if left.delta == [0; 2]));
}

#[test]
fn a_call_tells_what_has_passed_and_changes_the_rates() {
    let (mut bench, shape) = shaped(&limits(Some(BITS), None));
    bench.data(Flow::Forward, &bytes(30_000));
    let read = ask(&mut bench, shape, "read");
    let up = json!({"bytes": BURST, "waiting": 20_000, "rate": "8M"});
    let down = json!({"bytes": 0, "waiting": 0, "rate": "off"});
    assert_eq!(read, json!({"up": up, "down": down}));

    let changed = ask(&mut bench, shape, r#"rate {"down":"5M"}"#);
    assert_eq!(changed["up"]["rate"], "8M");
    assert_eq!(changed["down"]["rate"], "5M");
    let changed = ask(&mut bench, shape, r#"rate {"rate":"2M","up":"1M"}"#);
    assert_eq!(
        [&changed["up"]["rate"], &changed["down"]["rate"]],
        ["1M", "2M"]
    );
    let changed = ask(&mut bench, shape, r#"rate "off""#);
    assert_eq!(
        changed["up"],
        json!({"bytes": 30_000, "waiting": 0, "rate": "off"})
    );
    assert_eq!(
        bench.out[0].len(),
        30_000,
        "what was in hand passes at once"
    );
    assert!(!bench.held[0]);
    for bad in [
        "rate",
        "rate 5",
        "rate fast",
        r#"rate "5X""#,
        r#"rate {"in":"5M"}"#,
        "write",
    ] {
        assert!(ask(&mut bench, shape, bad)["refused"].is_string(), "{bad}");
    }
    let missing = ask(&mut bench, shape, "rate");
    assert_eq!(
        missing["refused"],
        "the operation rate of shape needs an argument"
    );
    assert_eq!(ask(&mut bench, shape, "read")["up"]["rate"], "off");
}

#[test]
fn a_burst_of_one_byte_passes_at_a_rate_whose_time_for_it_is_no_whole_number() {
    let mut limits = limits(Some(999_999), None);
    limits.burst = Some(1);
    let (mut bench, _) = shaped(&limits);
    bench.data(Flow::Forward, &bytes(20));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.out[0], bytes(20));
}

#[test]
fn a_slower_rate_takes_effect_at_once() {
    let (mut bench, shape) = shaped(&limits(Some(BITS), None));
    bench.data(Flow::Forward, &bytes(60_000));
    ask(&mut bench, shape, r#"rate "800K""#);
    let before = bench.out[0].len();
    bench.pass(Duration::from_millis(100));
    let passed = bench.out[0].len() - before;
    assert!((5_000..=10_000).contains(&passed), "{passed}");
}

proptest! {
    #[test]
    fn it_changes_no_byte(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..400), any::<bool>(), 0u64..400), 1..20),
        rates in [8_000u64..1_000_000, 8_000..1_000_000],
        burst in 1u64..300,
        beside in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        let [up, down] = rates.map(|bits| Rate(Some(bits)));
        let shape = Shape::new(&Limits { up, down, burst: Some(burst) });
        bench.stack.put(0, Box::new(shape)).unwrap();
        if beside {
            bench.stack.put(1, Box::new(Null)).unwrap();
        }
        let mut sent = [Vec::new(), Vec::new()];
        for (part, back, wait) in parts {
            let flow = Flow::SESSION[usize::from(back)];
            sent[usize::from(back)].extend_from_slice(&part);
            bench.data(flow, &part);
            bench.pass(Duration::from_micros(wait));
        }
        prop_assert_eq!(bench.finish(), sent);
    }
}
