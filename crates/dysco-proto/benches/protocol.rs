//! Benchmarks of the state machine without sockets and clocks: a whole removal on all three hosts
//! in the simulated world of the tests, and the decoding of messages.

#![allow(missing_docs, reason = "the macros make functions without docs")]
#![allow(dead_code, reason = "the tests use more of the pretended world")]
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

#[path = "../tests/protocol/checks.rs"]
mod checks;
#[path = "../tests/protocol/plane.rs"]
mod plane;
#[path = "../tests/protocol/world.rs"]
mod world;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use dysco_proto::{ChangeId, Message, Plan, Subsession};

use world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

fn machine(c: &mut Criterion) {
    c.bench_function("a removal, three machines and their world", |b| {
        b.iter(|| {
            let mut world = World::new(3, Faults::default());
            world.leave(MIDDLE);
            world.run(HOUR);
            world
        });
    });
    c.bench_function("that world alone", |b| {
        b.iter(|| World::new(3, Faults::default()));
    });
}

fn messages(c: &mut Criterion) {
    let subsession = Subsession {
        left: "[2001:db8::1]:40000".parse().unwrap(),
        right: "[2001:db8::2]:443".parse().unwrap(),
    };
    let message = Message::AckLock {
        change: ChangeId([7; 16]),
        attempt: [0; 16],
        plan: Plan {
            subsession,
            translation: Default::default(),
        },
    };
    let bytes = message.encode().unwrap();
    c.bench_function("a message written", |b| {
        b.iter(|| black_box(&message).encode())
    });
    c.bench_function("a message read", |b| {
        b.iter(|| Message::decode(black_box(&bytes)))
    });
    c.bench_function("a message refused", |b| {
        b.iter(|| Message::decode(black_box(&bytes[..bytes.len() - 1])));
    });
}

criterion_group!(benches, machine, messages);
criterion_main!(benches);
