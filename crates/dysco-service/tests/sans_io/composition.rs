//! Any composition of services equals the composition of their functions on the whole stream, for
//! any segmentation, holds and writable events.

use dysco_service::{Event, Flow};
use proptest::prelude::*;

use super::Bench;
use super::handlers::{Function, Handler};

/// Something that happens while bytes flow.
#[derive(Clone, Debug)]
enum Step {
    Data(bool, Vec<u8>),
    Full(bool),
    Writable(bool),
    Timers,
}

fn function() -> impl Strategy<Value = Function> {
    prop_oneof![
        Just(Function::Same),
        any::<u8>().prop_map(Function::Shift),
        Just(Function::Twice),
        Just(Function::Thin),
        (1..9_usize).prop_map(Function::Blocks),
        Just(Function::Slow),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), prop::collection::vec(any::<u8>(), 1..20))
            .prop_map(|(back, bytes)| Step::Data(back, bytes)),
        1 => any::<bool>().prop_map(Step::Full),
        1 => any::<bool>().prop_map(Step::Writable),
        1 => Just(Step::Timers),
    ]
}

fn flow(back: bool) -> Flow {
    Flow::SESSION[usize::from(back)]
}

proptest! {
    #[test]
    fn a_composition_is_that_of_the_functions(
        functions in prop::collection::vec(function(), 0..5),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut bench = Bench::new();
        for (at, function) in functions.iter().enumerate() {
            bench.stack.put(at, Handler::new(*function)).unwrap();
        }
        let mut sent: [Vec<u8>; 2] = Default::default();
        for step in steps {
            match step {
                Step::Data(back, bytes) => {
                    sent[usize::from(back)].extend_from_slice(&bytes);
                    bench.data(flow(back), &bytes);
                }
                Step::Full(back) => bench.event(Event::Full(flow(back))),
                Step::Writable(back) => bench.event(Event::Writable(flow(back))),
                Step::Timers => bench.fire(),
            }
        }
        let [forward, back] = bench.finish();
        let [sent_forward, sent_back] = sent;
        let expected = functions.iter().fold(sent_forward, |bytes, f| f.of(&bytes));
        prop_assert_eq!(forward, expected);
        let expected = functions.iter().rev().fold(sent_back, |bytes, f| f.of(&bytes));
        prop_assert_eq!(back, expected);
    }
}
