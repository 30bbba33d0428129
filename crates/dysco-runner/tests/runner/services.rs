//! Services for tests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use dysco_explain::Cause;
use dysco_runner::{Half, Kind, Registry, Spec};
use dysco_service::{Event, Flow, FlowId, Out, Service, TimerId};

/// The byte that [`Mark`] adds.
pub(crate) const MARK: u8 = 0xff;

pub(crate) fn registry() -> Registry {
    let kind = |name, arguments, make| Kind {
        name,
        arguments,
        make,
    };
    Registry::builtin()
        .with(kind("double", &[], |_, _| Ok(Box::new(Double))))
        .with(kind("number", &[], |_, _| Ok(Box::new(Number([0; 2])))))
        .with(kind("mark", &[], |_, _| Ok(Box::new(Mark([0; 2])))))
        .with(kind("stuck", &[], |_, _| Ok(Box::new(Stuck))))
        .with(kind("fail", &[], |_, _| Ok(Box::new(Fail))))
        .with(kind("clock", &[], |_, _| Ok(Box::new(Clock))))
        .with(kind("detour", &["to"], detour))
        .with(kind("flood", &[], |_, _| Ok(Box::new(Flood))))
}

/// Sends each byte twice.
struct Double;

pub(crate) fn double(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [*byte; 2]).collect()
}

impl Service for Double {
    fn name(&self) -> &str {
        "double"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } => out.send(flow, double(&bytes)),
            other => other.pass_on(out),
        }
    }
}

/// Adds to each byte its place in the direction.
struct Number([u8; 2]);

pub(crate) fn number(bytes: &[u8], from: &mut u8) -> Vec<u8> {
    let mut next = || {
        *from = from.wrapping_add(1);
        *from
    };
    bytes.iter().map(|byte| byte.wrapping_add(next())).collect()
}

impl Service for Number {
    fn name(&self) -> &str {
        "number"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } => {
                let from = &mut self.0[usize::from(flow == Flow::Back)];
                out.send(flow, number(&bytes, from));
            }
            other => other.pass_on(out),
        }
    }
}

/// Adds a [`MARK`] behind every hundredth byte.
struct Mark([u64; 2]);

impl Service for Mark {
    fn name(&self) -> &str {
        "mark"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } => {
                let seen = &mut self.0[usize::from(flow == Flow::Back)];
                let mut marked = Vec::new();
                for byte in bytes {
                    marked.push(byte);
                    *seen += 1;
                    if seen.is_multiple_of(100) {
                        marked.push(MARK);
                    }
                }
                out.send(flow, marked);
            }
            other => other.pass_on(out),
        }
    }
}

/// Service that does not return once it gets a byte.
struct Stuck;

impl Service for Stuck {
    fn name(&self) -> &str {
        "stuck"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { .. } => loop {
                std::thread::park();
            },
            other => other.pass_on(out),
        }
    }
}

/// Fails at the first byte.
struct Fail;

impl Service for Fail {
    fn name(&self) -> &str {
        "fail"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { .. } => out.fail("it does not like bytes"),
            other => other.pass_on(out),
        }
    }
}

/// Holds what the opener sends until a timer has run out twice.
struct Clock;

impl Service for Clock {
    fn name(&self) -> &str {
        "clock"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Open => {
                out.hold(Flow::Forward);
                // The second replaces the first.
                out.timer(TimerId(1), Duration::from_secs(3600));
                out.timer(TimerId(1), Duration::from_millis(5));
            }
            Event::Timer(TimerId(1)) => {
                out.notify("once");
                out.timer(TimerId(2), Duration::ZERO);
            }
            Event::Timer(TimerId(2)) => {
                out.notify("twice");
                out.release(Flow::Forward);
            }
            other => other.pass_on(out),
        }
    }
}

/// Sends what the opener sends to another host, and the answers of that host to the opener.
struct Detour(SocketAddr, FlowId);

fn detour(spec: &Spec, _: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    let to = spec.argument("to").unwrap().parse().unwrap();
    Ok(Box::new(Detour(to, FlowId(0))))
}

impl Service for Detour {
    fn name(&self) -> &str {
        "detour"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        let own = Flow::Own(self.1);
        match event {
            Event::Open => {
                out.hold(Flow::Forward);
                self.1 = out.open(self.0);
            }
            Event::Opened(_) => {
                out.notify("opened");
                out.release(Flow::Forward);
            }
            Event::Failed(_) => {
                out.notify("failed");
                out.release(Flow::Forward);
                out.leave();
            }
            Event::Data { flow, bytes } => match flow {
                Flow::Forward => out.send(own, bytes),
                Flow::Own(_) => out.send(Flow::Back, bytes),
                Flow::Back => {}
            },
            Event::Full(flow) => out.hold(opposite(flow, own)),
            Event::Writable(flow) => out.release(opposite(flow, own)),
            Event::Fin(Flow::Forward) => {
                out.fin(own);
                out.fin(Flow::Forward);
            }
            Event::Fin(Flow::Own(_)) => out.fin(Flow::Back),
            _ => {}
        }
    }
}

/// Source of what the detour writes to a flow.
fn opposite(flow: Flow, own: Flow) -> Flow {
    match flow {
        Flow::Back => own,
        _ => Flow::Forward,
    }
}

/// Ignores that a flow is full, and makes one more of each part.
struct Flood;

impl Service for Flood {
    fn name(&self) -> &str {
        "flood"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } => {
                out.send(flow, Bytes::clone(&bytes));
                out.send(flow, bytes);
            }
            Event::Full(_) | Event::Writable(_) => {}
            other => other.pass_on(out),
        }
    }
}
