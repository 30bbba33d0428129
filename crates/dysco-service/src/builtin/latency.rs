//! `latency`: delays bytes.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use dysco_explain::Cause;

use crate::{Event, Flow, Needs, Out, Service, Session, TimerId};

/// Number of bytes in hand from which a direction is held.
const MOST: usize = 4 * 1024 * 1024;

/// Load of a part besides its bytes, so that many short parts do not take much memory.
const PART: usize = 128;

/// Delays each byte and each end by the same time, without a change of their order.
#[derive(Debug)]
pub struct Latency {
    delay: Duration,
    /// Forward and back.
    lanes: [Lane; 2],
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    /// Parts in hand, with the time at which each leaves. An end has no bytes.
    queue: VecDeque<(Duration, Option<Bytes>)>,
    load: usize,
    /// True if the next element wants no bytes.
    full: bool,
}

impl Latency {
    /// Creates a service that delays each direction by this time.
    pub fn new(delay: Duration) -> Latency {
        Latency {
            delay,
            lanes: Default::default(),
        }
    }

    fn take(&mut self, flow: Flow, part: Option<Bytes>, out: &mut Out) {
        let due = out.now() + self.delay;
        let lane = &mut self.lanes[number(flow)];
        if lane.queue.is_empty() {
            out.timer(timer(flow), self.delay);
        }
        lane.load += load(part.as_ref());
        lane.queue.push_back((due, part));
        lane.control(flow, out);
    }
}

impl Lane {
    /// Sends all parts that are due by this time.
    fn send(&mut self, flow: Flow, until: Duration, out: &mut Out) {
        while let Some((due, _)) = self.queue.front()
            && *due <= until
            && let Some((_, part)) = self.queue.pop_front()
        {
            self.load -= load(part.as_ref());
            match part {
                Some(bytes) => out.send(flow, bytes),
                None => out.fin(flow),
            }
        }
    }

    /// Holds the direction, or releases it.
    fn control(&self, flow: Flow, out: &mut Out) {
        match self.full || self.load >= MOST {
            true => out.hold(flow),
            false => out.release(flow),
        }
    }
}

fn load(part: Option<&Bytes>) -> usize {
    PART + part.map_or(0, Bytes::len)
}

fn number(flow: Flow) -> usize {
    usize::from(flow == Flow::Back)
}

fn timer(flow: Flow) -> TimerId {
    TimerId(number(flow) as u32)
}

impl Service for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs::of_observer())
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } if flow.is_session() => self.take(flow, Some(bytes), out),
            Event::Fin(flow) if flow.is_session() => self.take(flow, None, out),
            Event::Timer(TimerId(at)) => {
                let Some(flow) = Flow::SESSION.get(at as usize).copied() else {
                    return;
                };
                let lane = &mut self.lanes[number(flow)];
                lane.send(flow, out.now(), out);
                if let Some((due, _)) = lane.queue.front() {
                    out.timer(timer(flow), due.saturating_sub(out.now()));
                }
                lane.control(flow, out);
            }
            Event::Full(flow) | Event::Writable(flow) if flow.is_session() => {
                let lane = &mut self.lanes[number(flow)];
                lane.full = matches!(event, Event::Full(_));
                lane.control(flow, out);
            }
            Event::Leave => {
                for flow in Flow::SESSION {
                    self.lanes[number(flow)].send(flow, Duration::MAX, out);
                }
                out.leave();
            }
            other => other.pass_on(out),
        }
    }
}
