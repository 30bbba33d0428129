//! Answers of tasks about services.

use std::io;
use std::os::fd::OwnedFd;

use dysco_agent::{DetourLink, Start};
use dysco_explain::Cause;
use dysco_proto::pairs::{PairId, Secret};
use dysco_runner::protocol::Report;

use crate::handlers::{Owner, Sockets, Started};

/// Answer of a task.
pub(in crate::engine) enum Done {
    /// A rule with services is in force: a handler will be needed.
    Wanted,
    /// The handler of an owner was started, or could not be.
    Started(Owner, Result<Started, Cause>),
    /// Sockets were made for the session of a slot, or could not be, in this attempt.
    Made(u32, u64, Result<Made, Cause>),
    /// The handler of another host has a connection to the one here, or cannot have one.
    Came(Came),
    /// A report of the handler of an owner, with this pid; nothing if it has ended.
    Report(Owner, i32, Option<Report>),
}

/// Sockets for a session.
pub(in crate::engine) struct Made {
    pub sockets: Sockets,
    pub start: Start,
    pub link: DetourLink,
}

/// A connection that has come, or that was made.
pub(in crate::engine) enum Came {
    /// This host has connected for a pair, or could not.
    Made(PairId, io::Result<OwnedFd>),
    /// A connection with this token.
    Accepted(Secret, OwnedFd),
}
