//! `shape`: limits the rate of each direction.

use std::time::Duration;

use bytes::Bytes;
use dysco_api::Rate;
use dysco_explain::Cause;
use serde_json::{Value, json};

use super::no_operation;
use crate::{Event, Flow, Needs, Out, Service, Session, TimerId};

/// Default burst, as the time in which its bytes pass at the rate.
const BURST: Duration = Duration::from_millis(10);

/// Least and greatest number of bytes of the default burst.
const BURSTS: [u64; 2] = [2 * 1460, 1024 * 1024];

/// Names of the rates of the directions, forward and back, and of both.
const NAMES: [&str; 2] = ["up", "down"];
const BOTH: &str = "rate";

/// Limits of the two directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rate to the end that the session was opened to.
    pub up: Rate,
    /// Rate to the end that opened it.
    pub down: Rate,
    /// Bytes that pass at once after a pause. Ten milliseconds of the rate by default.
    pub burst: Option<u64>,
}

/// Limits the rate of each direction by a token bucket. A call of `read` returns the numbers of
/// bytes and the rates. A call of `rate` changes the rates.
#[derive(Debug)]
pub struct Shape {
    lanes: [Lane; 2],
}

/// One direction.
#[derive(Debug)]
struct Lane {
    flow: Flow,
    rate: Rate,
    burst: Option<u64>,
    /// Time at which all bytes so far would have passed at the rate. It is ahead of the present
    /// time by the time that the bucket needs to fill.
    busy_until: Duration,
    /// Bytes in hand. The direction is held until they have been sent.
    rest: Bytes,
    /// True if the next element wants no bytes.
    full: bool,
    passed: u64,
}

impl Shape {
    /// Creates a service with these limits.
    pub fn new(limits: &Limits) -> Shape {
        let lane = |flow, rate| Lane {
            flow,
            rate,
            burst: limits.burst,
            busy_until: Duration::ZERO,
            rest: Bytes::new(),
            full: false,
            passed: 0,
        };
        Shape {
            lanes: [
                lane(Flow::Forward, limits.up),
                lane(Flow::Back, limits.down),
            ],
        }
    }

    fn call(&mut self, question: &[u8], out: &mut Out) {
        let question = String::from_utf8_lossy(question);
        let (verb, argument) = match question.split_once(' ') {
            Some((verb, argument)) => (verb, Some(argument)),
            None => (&*question, None),
        };
        let done = match (verb, argument) {
            ("read", None) => Ok(()),
            ("rate", Some(argument)) => self.set_rates(argument, out),
            ("rate", None) => Err(rate_missing()),
            _ => Err(no_operation(
                "shape",
                question.as_bytes(),
                "read, or rate with a JSON value such as '\"5M\"'",
            )),
        };
        match done {
            Ok(()) => {
                let [up, down] = [&self.lanes[0], &self.lanes[1]].map(Lane::state);
                out.answer(json!({"up": up, "down": down}).to_string());
            }
            Err(cause) => out.refuse(cause),
        }
    }

    fn set_rates(&mut self, argument: &str, out: &mut Out) -> Result<(), Cause> {
        for (lane, rate) in self.lanes.iter_mut().zip(rates(argument)?) {
            if let Some(rate) = rate {
                lane.set_rate(rate, out);
            }
        }
        Ok(())
    }
}

/// Returns the reason for which the operation `rate` is refused without a rate.
pub fn rate_missing() -> Cause {
    Cause::new("the operation rate of shape needs an argument")
        .hint("give a rate as a JSON value, such as '\"5M\"'")
}

/// Reads the rates of the two directions, forward and back, of a call: of both by a string, or by
/// an object with the names of the arguments.
///
/// # Errors
/// If the text is neither.
pub fn rates(argument: &str) -> Result<[Option<Rate>; 2], Cause> {
    let hint = "give a rate such as '\"5M\"', or '{\"up\":\"5M\",\"down\":\"off\"}'";
    let value: Value = serde_json::from_str(argument)
        .map_err(|error| Cause::new(format!("it is no JSON: {error}")).hint(hint))?;
    let rates = match &value {
        Value::Object(fields) if fields.keys().all(|key| is_rate(key)) => {
            NAMES.map(|name| fields.get(name).or_else(|| fields.get(BOTH)))
        }
        Value::String(_) => [Some(&value); 2],
        _ => return Err(Cause::new("it is no rate").hint(hint)),
    };
    let read = |value: Option<&Value>| match value {
        None => Ok(None),
        Some(Value::String(text)) => text.parse::<Rate>().map(Some),
        Some(_) => Err(Cause::new("a rate is a string").hint(hint)),
    };
    let [up, down] = rates.map(read);
    Ok([up?, down?])
}

impl Lane {
    fn burst(&self, bits: u64) -> u64 {
        let [least, most] = BURSTS;
        self.burst
            .unwrap_or_else(|| bytes_in(BURST, bits).clamp(least, most))
    }

    /// Sends the bytes in hand that may pass now, and waits to send the rest.
    fn pass(&mut self, out: &mut Out) {
        while !self.rest.is_empty() {
            let allowed = match self.rate.0 {
                None => u64::MAX,
                Some(bits) => self.allowed(bits, out.now()),
            };
            let len = allowed.min(self.rest.len() as u64);
            if len == 0 {
                self.wait(out);
                break;
            }
            self.passed += len;
            if let Some(bits) = self.rate.0 {
                self.busy_until = self.busy_until.max(out.now()) + time_of(len, bits);
            }
            out.send(self.flow, self.rest.split_to(len as usize));
        }
        match self.full || !self.rest.is_empty() {
            true => out.hold(self.flow),
            false => out.release(self.flow),
        }
    }

    /// Number of bytes that may pass now.
    fn allowed(&self, bits: u64, now: Duration) -> u64 {
        let full = time_of(self.burst(bits), bits);
        let empty = self.busy_until.saturating_sub(now);
        bytes_in(full.saturating_sub(empty), bits)
    }

    /// Waits until half a burst, or all bytes in hand, may pass. To send a few bytes at a time
    /// would take many timers.
    fn wait(&self, out: &mut Out) {
        let Some(bits) = self.rate.0 else {
            return;
        };
        let burst = self.burst(bits);
        let wanted = (burst / 2).clamp(1, self.rest.len() as u64);
        let room = time_of(burst, bits).saturating_sub(time_of(wanted, bits));
        let after = self.busy_until.saturating_sub(out.now() + room);
        out.timer(TimerId(number(self.flow) as u32), after);
    }

    fn set_rate(&mut self, rate: Rate, out: &mut Out) {
        let now = out.now();
        let owed = match self.rate.0 {
            None => 0,
            Some(bits) => bytes_in(self.busy_until.saturating_sub(now), bits),
        };
        self.rate = rate;
        self.busy_until = match rate.0 {
            None => Duration::ZERO,
            // A bucket is at most empty.
            Some(bits) => now + time_of(owed.min(self.burst(bits)), bits),
        };
        self.pass(out);
    }

    fn state(&self) -> Value {
        json!({"bytes": self.passed, "waiting": self.rest.len(), "rate": self.rate.to_string()})
    }
}

/// Time that this number of bytes takes at a rate in bits per second.
///
/// A part of a nanosecond is rounded up, so that [`bytes_in`] of it is never less than the bytes.
fn time_of(bytes: u64, bits: u64) -> Duration {
    let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(bits.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Number of whole bytes that pass in a time at a rate in bits per second.
fn bytes_in(time: Duration, bits: u64) -> u64 {
    let bytes = time.as_nanos() * u128::from(bits.max(1)) / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn is_rate(key: &str) -> bool {
    key == BOTH || NAMES.contains(&key)
}

fn number(flow: Flow) -> usize {
    usize::from(flow == Flow::Back)
}

impl Service for Shape {
    fn name(&self) -> &'static str {
        "shape"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs::of_observer())
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            // No data arrives while bytes are in hand: the direction is held.
            Event::Data { flow, bytes } if flow.is_session() => {
                let lane = &mut self.lanes[number(flow)];
                lane.rest = bytes;
                lane.pass(out);
            }
            Event::Full(flow) | Event::Writable(flow) if flow.is_session() => {
                let lane = &mut self.lanes[number(flow)];
                lane.full = matches!(event, Event::Full(_));
                lane.pass(out);
            }
            Event::Timer(TimerId(at)) => {
                if let Some(lane) = self.lanes.get_mut(at as usize) {
                    lane.pass(out);
                }
            }
            Event::Call(question) => self.call(&question, out),
            Event::Leave => {
                for lane in &mut self.lanes {
                    out.send(lane.flow, std::mem::take(&mut lane.rest));
                }
                out.leave();
            }
            other => other.pass_on(out),
        }
    }
}
