//! Session services: they process the bytes of a session outside of its applications.
//!
//! A [`Service`] is sans-IO. It gets an [`Event`] and answers by an [`Out`]; its host provides
//! sockets, clocks and processes. The same code therefore runs in a separate process, in a test
//! without sockets, and under a model checker. A [`Stack`] composes the services of a session: the
//! output of each service is the input of the next.
//!
//! Four rules hold, as in TESLA (USENIX Annual Technical Conference 2003, section 3):
//!
//! - A write completes. It is never refused and never cut short.
//! - [`Out::hold`] is the only flow control. It reaches the sender through all services between.
//! - A service does not block. It waits by a timer or for an event.
//! - The default of each event is to pass it on ([`Event::pass_on`]), so that a service names
//!   only the events that it changes, and composes with any other.
//!
//! Services come and go while data flows. [`Stack::put`] adds one between two bytes, and
//! [`Out::leave`] removes it between two bytes.

pub mod builtin;
mod event;
mod out;
mod service;
mod stack;

pub use event::{Event, Flow, FlowId, TimerId};
pub use out::Out;
pub use service::{Ends, Needs, Service, Session};
pub use stack::{Change, Effect, Fault, LayerId, Left, Stack};
