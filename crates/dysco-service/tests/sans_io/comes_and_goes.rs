//! Services come into a session and leave it between two bytes.

use dysco_service::{Effect, Event, Fault, Flow, LayerId, Left, Out, Service};
use proptest::prelude::*;

use super::Bench;
use super::handlers::{Function, Handler};

#[derive(Clone, Debug)]
enum Step {
    Data(Vec<u8>),
    Put(usize, u8),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 1..20).prop_map(Step::Data),
        1 => (0..4_usize, any::<u8>()).prop_map(|(at, by)| Step::Put(at, by)),
        1 => (0..4_usize).prop_map(Step::Take),
    ]
}

/// A service as the test expects it: its key, and the bytes that it was given.
struct Expected {
    layer: LayerId,
    by: u8,
    given: Vec<u8>,
}

impl Expected {
    /// Returns what the service makes of the next bytes.
    fn change(&mut self, bytes: &[u8]) -> Vec<u8> {
        let before = self.given.len();
        self.given.extend_from_slice(bytes);
        Function::Shift(self.by).of(&self.given).split_off(before)
    }
}

proptest! {
    #[test]
    fn each_changes_exactly_what_passed_it(steps in prop::collection::vec(step(), 0..40)) {
        let mut bench = Bench::new();
        let mut there: Vec<Expected> = Vec::new();
        let mut expected = Vec::new();
        for step in steps {
            match step {
                Step::Data(bytes) => {
                    bench.data(Flow::Forward, &bytes);
                    expected.extend(there.iter_mut().fold(bytes, |bytes, s| s.change(&bytes)));
                }
                Step::Put(at, by) => {
                    let at = at.min(there.len());
                    let layer = bench.stack.put(at, Handler::new(Function::Shift(by))).unwrap();
                    there.insert(at, Expected { layer, by, given: Vec::new() });
                }
                Step::Take(at) if at < there.len() => {
                    let layer = there.remove(at).layer;
                    bench.to(layer, Event::Leave);
                    let left = Effect::Left(Left { layer, delta: [0; 2] });
                    prop_assert_eq!(std::mem::take(&mut bench.rest), vec![left]);
                }
                Step::Take(_) => {}
            }
        }
        prop_assert_eq!(bench.finish()[0].clone(), expected);
    }
}

#[test]
fn a_service_that_left_has_the_delta_of_what_it_did() {
    let mut bench = Bench::new();
    let layer = bench.stack.put(0, Handler::new(Function::Twice)).unwrap();
    bench.data(Flow::Forward, b"abc");
    bench.data(Flow::Back, b"12345");
    bench.to(layer, Event::Leave);
    let delta = [3, 5];
    assert_eq!(bench.rest, [Effect::Left(Left { layer, delta })]);
    assert!(bench.stack.is_empty());
}

/// Ends a direction by itself, and does things that it may not.
struct Wrong;

impl Service for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Call(_) => {
                out.leave();
                out.send(Flow::Forward, &b"after"[..]);
            }
            Event::Data { flow, .. } => {
                out.fin(flow);
                out.send(flow, &b"after"[..]);
                out.fin(flow);
            }
            other => other.pass_on(out),
        }
    }
}

#[test]
fn what_a_service_may_not_do_is_ignored_and_told() {
    let mut bench = Bench::new();
    let first = bench.stack.put(0, Box::new(Wrong)).unwrap();
    bench.to(first, Event::Call("".into()));
    let left = Left {
        layer: first,
        delta: [0; 2],
    };
    assert_eq!(
        bench.rest,
        [Effect::Fault(first, Fault::AfterLeave), Effect::Left(left)]
    );
    bench.rest.clear();

    let second = bench.stack.put(0, Box::new(Wrong)).unwrap();
    bench.data(Flow::Forward, b"x");
    bench.to(second, Event::Leave);
    let faults = [Fault::AfterFin, Fault::AfterFin, Fault::LeftEnded];
    assert_eq!(bench.rest, faults.map(|fault| Effect::Fault(second, fault)));
    assert_eq!((bench.ends, bench.stack.len()), ([1, 0], 1));
    assert!(bench.out[0].is_empty(), "{:?}", bench.out);
}
