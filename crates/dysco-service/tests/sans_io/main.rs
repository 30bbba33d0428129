//! Tests of the composition of services, and of the built-in ones, without sockets.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod builtin;
mod comes_and_goes;
mod composition;
mod flow_control;
mod halves;
mod handlers;
mod latency;
#[expect(unreachable_pub, reason = "the page shows a crate of its own")]
mod redact;
mod rekey;
mod shape;
mod tutorial;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use dysco_service::{Effect, Event, Flow, LayerId, Session, Stack, TimerId};

/// A session between two hosts that run `dyscod`.
fn session() -> Session {
    let end = |last: u8, port| SocketAddr::from(([10, 0, 0, last], port));
    Session {
        opener: end(1, 40000),
        other: end(2, 80),
        both_ends: true,
    }
}

/// A stack with what has come out of it.
struct Bench {
    stack: Stack,
    /// Bytes that came out, by direction.
    out: [Vec<u8>; 2],
    /// Number of ends that came out, by direction.
    ends: [usize; 2],
    /// True if the source of each direction was last asked to wait.
    held: [bool; 2],
    /// Timers that run, with the times at which they run out.
    timers: Vec<(Duration, LayerId, TimerId)>,
    now: Duration,
    /// All else.
    rest: Vec<Effect>,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(session())
    }

    fn of(session: Session) -> Bench {
        Bench {
            stack: Stack::new(session),
            out: Default::default(),
            ends: [0; 2],
            held: [false; 2],
            timers: Vec::new(),
            now: Duration::ZERO,
            rest: Vec::new(),
        }
    }

    fn event(&mut self, event: Event) {
        self.stack.event(event);
        self.collect();
    }

    fn data(&mut self, flow: Flow, bytes: &[u8]) {
        self.event(Event::Data {
            flow,
            bytes: Bytes::copy_from_slice(bytes),
        });
    }

    fn to(&mut self, layer: LayerId, event: Event) {
        self.stack.to(layer, event);
        self.collect();
    }

    /// Lets all timers that run now run out, in order.
    fn fire(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.sort();
        for (at, layer, timer) in timers {
            self.set_now(self.now.max(at));
            self.to(layer, Event::Timer(timer));
        }
    }

    /// Lets all timers run out, also those that they start.
    fn settle(&mut self) {
        while !self.timers.is_empty() {
            self.fire();
        }
    }

    fn set_now(&mut self, now: Duration) {
        self.now = now;
        self.stack.set_now(now);
    }

    /// Lets time pass, and timers run out at their times.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.timers.iter().map(|(at, ..)| *at).min()
            && at <= end
        {
            self.set_now(self.now.max(at));
            let due = self.timers.iter().position(|(due, ..)| *due == at).unwrap();
            let (_, layer, timer) = self.timers.remove(due);
            self.to(layer, Event::Timer(timer));
        }
        self.set_now(end);
    }

    fn collect(&mut self) {
        while let Some(effect) = self.stack.effect() {
            match effect {
                Effect::Send(None, flow, bytes) => {
                    assert_eq!(self.ends[index(flow)], 0, "bytes after the end");
                    self.out[index(flow)].extend_from_slice(&bytes);
                }
                Effect::Fin(None, flow) => self.ends[index(flow)] += 1,
                Effect::Hold(None, flow, on) => self.held[index(flow)] = on,
                Effect::Timer(layer, timer, after) => {
                    self.timers.retain(|(_, l, t)| (*l, *t) != (layer, timer));
                    self.timers.push((self.now + after, layer, timer));
                }
                other => self.rest.push(other),
            }
        }
    }

    /// Ends both directions, and returns what came out of both.
    fn finish(mut self) -> [Vec<u8>; 2] {
        for flow in Flow::SESSION {
            self.event(Event::Fin(flow));
            self.event(Event::Writable(flow));
        }
        self.settle();
        assert_eq!(self.ends, [1, 1], "ends that came out");
        assert!(self.rest.is_empty(), "{:?}", self.rest);
        self.out
    }
}

fn index(flow: Flow) -> usize {
    usize::from(flow == Flow::Back)
}
