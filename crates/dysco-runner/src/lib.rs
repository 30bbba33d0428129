//! The runner: the process that runs session services on real sockets.
//!
//! `dyscod` puts two connected TCP sockets into the middle of a session, and hands both to a
//! runner. The runner passes the bytes of each direction through the session's services
//! ([`dysco_service::Stack`]). Once the services have left it passes bytes on unchanged, until
//! `dyscod` takes the sockets back.
//!
//! - [`protocol`] has the messages between `dyscod` and a runner.
//! - [`Registry`] makes services from what an operator wrote.

pub mod protocol;
mod registry;
mod spec;

pub use registry::{Kind, Registry};
pub use spec::{Spec, SpecError};
