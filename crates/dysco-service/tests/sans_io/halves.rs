//! Services at both ends come into a session one by one, and leave it, each half at the same byte.

mod side;

use bytes::Bytes;
use dysco_explain::Cause;
use dysco_service::{Change, Ends, Event, Flow, Needs, Out, Service, Session};
use proptest::prelude::*;

use super::index;
use side::{Side, half};

#[derive(Clone, Debug)]
enum Step {
    /// The program of a side sends.
    Data(usize, Vec<u8>),
    /// Some of what a side has sent arrives.
    Arrives(usize, usize),
    /// The program of a side, or its network, wants no bytes, or wants them again.
    Full(usize, Flow, bool),
    Enter(u8),
    Part(usize),
    /// The program of a side ends its direction.
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let side = || 0..2_usize;
    let flow = prop_oneof![Just(Flow::Forward), Just(Flow::Back)];
    prop_oneof![
        6 => (side(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(s, d)| Step::Data(s, d)),
        6 => (side(), 1..4_usize).prop_map(|(s, n)| Step::Arrives(s, n)),
        2 => (side(), flow, any::<bool>()).prop_map(|(s, f, on)| Step::Full(s, f, on)),
        2 => (1..6_u8).prop_map(Step::Enter),
        2 => (0..3_usize).prop_map(Step::Part),
        1 => (0..40_usize).prop_map(Step::End),
    ]
}

fn arrive(sides: &mut [Side; 2], from: usize, n: usize) {
    for _ in 0..n {
        let flow = sides[from].outward;
        if sides[1 - from].held[index(flow)] {
            return;
        }
        if let Some(item) = sides[from].tunnel.pop_front() {
            sides[1 - from].arrives(item);
        }
    }
}

/// Lets all arrive that is not held.
fn settle(sides: &mut [Side; 2]) {
    let under_way = |sides: &[Side; 2]| sides.iter().map(|side| side.tunnel.len()).sum::<usize>();
    loop {
        let before = under_way(sides);
        (0..2).for_each(|from| arrive(sides, from, 1));
        if before == under_way(sides) {
            return;
        }
    }
}

proptest! {
    #[test]
    fn both_programs_get_what_the_other_one_sent(steps in prop::collection::vec(step(), 0..80)) {
        let mut sides = [Side::new(Flow::Forward), Side::new(Flow::Back)];
        let mut sent = [Vec::new(), Vec::new()];
        // Services that are to be in the session after the change that runs.
        let mut present: Vec<u8> = vec![0];
        let mut closed = [false; 2];
        for step in steps {
            // The host that asks looks at its own side alone.
            let asks = &sides[0];
            let may = asks.is_settled() && asks.halves.len() == present.len() && !asks.closes;
            match step {
                Step::Data(side, bytes) => {
                    let held = sides[side].held[index(sides[side].outward)];
                    if !held && !closed[side] {
                        sent[side].extend_from_slice(&bytes);
                        sides[side].sends(&bytes);
                    }
                }
                Step::Arrives(from, n) => arrive(&mut sides, from, n),
                Step::Full(side, flow, true) => sides[side].event(Event::Full(flow)),
                Step::Full(side, flow, false) => sides[side].event(Event::Writable(flow)),
                // The other host has none of this name, as it tells.
                Step::Enter(key) if may && sides.iter().all(|s| !s.halves.contains_key(&key)) => {
                    present.push(key);
                    sides[0].enter(key, None);
                }
                Step::Part(at) if may && present.len() > 1 => {
                    let key = present.remove(at % present.len());
                    sides[0].part(key);
                }
                Step::End(side @ 0..2) if !closed[side] => {
                    closed[side] = true;
                    sides[side].ends();
                }
                Step::Enter(_) | Step::Part(_) | Step::End(_) => {}
            }
        }
        for side in &mut sides {
            for flow in Flow::SESSION {
                side.event(Event::Writable(flow));
            }
        }
        settle(&mut sides);
        for side in sides.iter().filter(|_| closed == [false; 2]) {
            prop_assert!(side.is_settled(), "a half has not come in");
            let mut known: Vec<u8> = side.halves.keys().copied().collect();
            present.sort_unstable();
            known.sort_unstable();
            prop_assert_eq!(&known, &present, "halves that are in the session");
        }
        for (side, closed) in sides.iter_mut().zip(closed) {
            if !closed {
                side.ends();
            }
        }
        settle(&mut sides);
        for (side, received) in [(0, 1), (1, 0)] {
            prop_assert_eq!(&sides[received].out, &sent[side], "bytes of side {}", side);
            prop_assert_eq!(sides[received].ends, 1);
        }
    }
}

/// Several services come in together, while data is under way in both directions.
#[test]
fn several_halves_come_in_at_one_byte() {
    let mut sides = [Side::new(Flow::Forward), Side::new(Flow::Back)];
    // The program of each side reads nothing, so that bytes wait in front of the first half.
    sides[0].event(Event::Full(Flow::Back));
    sides[1].event(Event::Full(Flow::Forward));
    sides[0].sends(b"before");
    sides[1].sends(b"earlier");
    sides[0].enter(1, None);
    sides[0].enter(2, None);
    sides[0].sends(b" after");
    settle(&mut sides);
    sides[1].sends(b" later");
    settle(&mut sides);
    assert!(!sides[0].is_settled(), "what was under way has not passed");
    sides[0].event(Event::Writable(Flow::Back));
    sides[1].event(Event::Writable(Flow::Forward));
    settle(&mut sides);
    assert!(sides.iter().all(Side::is_settled));
    assert_eq!(sides[1].out, b"before after");
    assert_eq!(sides[0].out, b"earlier later");
}

/// A direction that has ended needs no further byte to leave.
#[test]
fn a_half_leaves_a_direction_that_has_ended() {
    let mut sides = [Side::new(Flow::Forward), Side::new(Flow::Back)];
    sides[0].enter(2, None);
    settle(&mut sides);
    sides[1].ends();
    settle(&mut sides);
    sides[0].part(2);
    assert_eq!(sides[0].halves.len(), 1, "it has nothing more to do");
}

/// The other half asks for the next keys of both directions while this one leaves.
#[test]
fn a_half_that_leaves_sends_no_more() {
    let mut sides = [Side::new(Flow::Forward), Side::new(Flow::Back)];
    sides[0].enter(1, None);
    settle(&mut sides);
    let crypt = sides[1].halves[&1];
    sides[1].stack.to(crypt, Event::Call("rekey".into()));
    sides[1].collect();
    sides[0].part(1);
    settle(&mut sides);
    sides[0].sends(b"plain");
    settle(&mut sides);
    assert_eq!(sides[1].out, b"plain");
    assert!(sides.iter().all(|side| side.halves.len() == 1));
}

/// Keeps bytes back while nothing is wanted, and sends them before it leaves.
struct Keeps {
    kept: Vec<Bytes>,
}

impl Service for Keeps {
    fn name(&self) -> &'static str {
        "keeps"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs {
            ends: Ends::Pair,
            ..Needs::default()
        })
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data {
                flow: Flow::Back,
                bytes,
            } => self.kept.push(bytes),
            Event::Leave => {
                let kept = std::mem::take(&mut self.kept);
                kept.into_iter()
                    .for_each(|bytes| out.send(Flow::Back, bytes));
                out.leave();
            }
            other => other.pass_on(out),
        }
    }
}

#[test]
fn a_half_sends_what_it_has_before_it_leaves_its_second_direction() {
    let mut side = Side::new(Flow::Forward);
    let keeps = Keeps { kept: Vec::new() };
    let layer = side
        .stack
        .enter(Box::new(keeps), Flow::Forward, Some(0))
        .unwrap();
    side.halves.insert(9, layer);
    side.collect();
    side.part(9);
    // The first half changes the byte back.
    let bytes = Bytes::from_static(&[8]);
    side.event(Event::Data {
        flow: Flow::Back,
        bytes,
    });
    assert_eq!(side.out, b"");
    side.stack
        .told(layer, Flow::Forward, Change::Leaves, 1)
        .unwrap();
    side.collect();
    assert_eq!((&side.out[..], side.halves.len()), (&[7][..], 1));
}

/// A byte that has passed cannot be the first or the last one of a half. A service for one end has no
/// other half.
#[test]
fn what_cannot_fit_the_other_half_is_refused() {
    let mut side = Side::new(Flow::Forward);
    side.event(Event::Data {
        flow: Flow::Back,
        bytes: Bytes::from_static(b"abc"),
    });
    let refused = side
        .stack
        .enter(half(2, Flow::Forward), Flow::Forward, Some(2));
    assert!(refused.unwrap_err().why.contains("has passed"));
    let null = Box::new(dysco_service::builtin::Null);
    let refused = side.stack.enter(null, Flow::Forward, None);
    assert!(refused.unwrap_err().why.contains("for one end"));
    let mut told = |at| {
        let first = side.halves[&0];
        side.stack.told(first, Flow::Forward, Change::Leaves, at)
    };
    assert!(told(2).is_err());
    assert_eq!(told(3), Ok(()));
}
