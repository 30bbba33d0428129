//! A hold reaches the source through all services between.

use dysco_service::builtin::Null;
use dysco_service::{Event, Flow};

use super::handlers::{Function, Handler};
use super::{Bench, index};

#[test]
fn a_full_end_holds_the_source_at_once() {
    for flow in Flow::SESSION {
        let mut bench = Bench::new();
        for at in 0..3 {
            bench.stack.put(at, Box::new(Null)).unwrap();
        }
        bench.event(Event::Full(flow));
        assert!(bench.held[index(flow)]);
        bench.data(flow, b"late");
        bench.event(Event::Writable(flow));
        assert!(!bench.held[index(flow)]);
        assert_eq!(bench.out[index(flow)], b"late");
    }
}

#[test]
fn a_service_that_holds_gets_nothing_and_loses_nothing() {
    let mut bench = Bench::new();
    bench.stack.put(0, Box::new(Null)).unwrap();
    bench.stack.put(1, Handler::new(Function::Slow)).unwrap();
    bench.data(Flow::Forward, b"first");
    assert!(
        bench.held[0],
        "the source is held through the first service"
    );
    bench.data(Flow::Forward, b"second");
    assert_eq!(bench.out[0], b"first");
    bench.data(Flow::Back, b"the other direction goes on");
    assert_eq!(bench.out[1], b"the other direction goes on");
    bench.fire();
    assert_eq!(bench.out[0], b"firstsecond");
}

#[test]
fn a_service_that_leaves_takes_its_hold_along() {
    let mut bench = Bench::new();
    let slow = bench.stack.put(0, Handler::new(Function::Slow)).unwrap();
    bench.data(Flow::Forward, b"first");
    bench.data(Flow::Forward, b"second");
    assert!(bench.held[0]);
    bench.to(slow, Event::Leave);
    assert!(!bench.held[0]);
    assert_eq!(bench.out[0], b"firstsecond");
}

#[test]
fn a_service_that_comes_before_a_full_element_holds_as_well() {
    let mut bench = Bench::new();
    bench.event(Event::Full(Flow::Forward));
    let null = bench.stack.put(0, Box::new(Null)).unwrap();
    bench.collect();
    assert!(bench.held[0]);
    bench.to(null, Event::Leave);
    assert!(bench.held[0], "the element behind it is still full");
    bench.event(Event::Writable(Flow::Forward));
    assert!(!bench.held[0]);
}

#[test]
fn a_full_element_behind_a_service_that_came_wakes_the_source() {
    let mut bench = Bench::new();
    bench.event(Event::Full(Flow::Forward));
    bench.stack.put(0, Box::new(Null)).unwrap();
    bench.event(Event::Writable(Flow::Forward));
    assert!(!bench.held[0]);
}

#[test]
fn a_service_that_takes_bytes_for_a_full_element_wakes_the_source() {
    let mut bench = Bench::new();
    bench.event(Event::Full(Flow::Forward));
    bench.stack.put(0, Handler::new(Function::Slow)).unwrap();
    bench.collect();
    assert!(!bench.held[0]);
}

#[test]
fn bytes_that_wait_for_a_service_that_leaves_reach_the_next_one_in_order() {
    for (flow, slow) in [(Flow::Forward, 0), (Flow::Back, 1)] {
        let mut bench = Bench::new();
        bench
            .stack
            .put(0, Handler::new(Function::Shift(7)))
            .unwrap();
        let slow = bench.stack.put(slow, Handler::new(Function::Slow)).unwrap();
        bench.data(flow, b"first");
        bench.data(flow, b"second");
        bench.to(slow, Event::Leave);
        bench.data(flow, b"third");
        let expected = Function::Shift(7).of(b"firstsecondthird");
        assert_eq!(bench.out[index(flow)], expected, "{flow:?}");
    }
}
