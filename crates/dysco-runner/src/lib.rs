//! The runner: the process that runs session services on real sockets.
//!
//! `dyscod` puts two connected TCP sockets into the middle of a session, and hands both to a
//! runner. The runner passes the bytes of each direction through the session's services
//! ([`dysco_service::Stack`]). Once the services have left it passes bytes on unchanged, until
//! `dyscod` takes the sockets back.
//!
//! - [`protocol`] has the messages between `dyscod` and a runner.
//! - [`Registry`] makes services from the operator's words ([`Spec`]).
//! - [`run`] is the loop: one thread, and for each session a bounded number of bytes.
//! - [`watch`] ends the process if a service does not return.
//! - [`confine`] takes from the process what the loop does not need.

mod confine;
mod control;
mod engine;
mod error;
mod host;
pub mod protocol;
mod registry;
mod requests;
mod session;
mod spec;
mod timers;
mod watchdog;

pub use confine::confine;
pub use dysco_service::Session;
pub use dysco_service::builtin::{Limits, rate_missing, rates};
pub use dysco_service::{Ends, Needs};
pub use engine::{run, run_with};
pub use error::Error;
pub use registry::{Half, Kind, Registry, delay, limits};
pub use spec::{Spec, SpecError};
pub use watchdog::{STUCK, watch};
