//! Handlers that change a stream by a function of the whole stream.

use std::time::Duration;

use bytes::Bytes;
use dysco_service::{Event, Flow, Out, Service, TimerId};

use super::index;

/// A function of a stream, computed byte by byte or on the whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    /// Passes everything on.
    Same,
    /// Adds a number that depends on the place.
    Shift(u8),
    /// Repeats each byte.
    Twice,
    /// Drops each third byte.
    Thin,
    /// Sends blocks of so many bytes, and what is left at the end.
    Blocks(usize),
    /// Holds the flow after each event with data, until a timer runs out.
    Slow,
}

impl Function {
    /// The function of the whole stream.
    pub(crate) fn of(self, stream: &[u8]) -> Vec<u8> {
        let place = |(at, byte): (usize, &u8)| (at, *byte);
        let all = stream.iter().enumerate().map(place);
        match self {
            Function::Same | Function::Blocks(_) | Function::Slow => stream.to_vec(),
            Function::Shift(by) => all.map(|(at, byte)| shifted(by, at, byte)).collect(),
            Function::Twice => all.flat_map(|(_, byte)| [byte; 2]).collect(),
            Function::Thin => all
                .filter_map(|(at, b)| (at % 3 != 2).then_some(b))
                .collect(),
        }
    }
}

fn shifted(by: u8, at: usize, byte: u8) -> u8 {
    byte.wrapping_add(by).wrapping_add(at as u8)
}

/// The handler of a function, in both directions.
pub(crate) struct Handler {
    function: Function,
    seen: [usize; 2],
    buffer: [Vec<u8>; 2],
}

impl Handler {
    pub(crate) fn new(function: Function) -> Box<Handler> {
        Box::new(Handler {
            function,
            seen: [0; 2],
            buffer: Default::default(),
        })
    }

    fn byte(&mut self, flow: Flow, byte: u8) -> Vec<u8> {
        let at = self.seen[index(flow)];
        self.seen[index(flow)] += 1;
        match self.function {
            Function::Shift(by) => vec![shifted(by, at, byte)],
            Function::Twice => vec![byte; 2],
            Function::Thin if at % 3 == 2 => vec![],
            _ => vec![byte],
        }
    }

    fn data(&mut self, flow: Flow, bytes: Bytes, out: &mut Out) {
        match self.function {
            Function::Blocks(size) => {
                let buffer = &mut self.buffer[index(flow)];
                buffer.extend_from_slice(&bytes);
                while buffer.len() >= size {
                    out.send(flow, buffer.drain(..size).collect::<Vec<_>>());
                }
            }
            Function::Slow => {
                out.send(flow, bytes);
                out.hold(flow);
                out.timer(TimerId(index(flow) as u32), Duration::from_millis(1));
            }
            _ => {
                let changed = bytes.iter().flat_map(|byte| self.byte(flow, *byte));
                out.send(flow, changed.collect::<Vec<_>>());
            }
        }
    }
}

impl Service for Handler {
    fn name(&self) -> &'static str {
        "test"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } => self.data(flow, bytes, out),
            Event::Timer(TimerId(at)) => out.release(Flow::SESSION[at as usize]),
            // Only its timer releases a direction that it holds.
            Event::Full(_) | Event::Writable(_) if matches!(self.function, Function::Slow) => {}
            Event::Fin(flow) => {
                out.send(flow, std::mem::take(&mut self.buffer[index(flow)]));
                out.fin(flow);
            }
            other => other.pass_on(out),
        }
    }
}
