//! How `dyscoctl` and `dyscod` end: documented exit codes.

use std::process::ExitCode;

/// The exit codes, for `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  an internal error
  2  wrong usage, configuration, key or certificate
  3  no dyscod answers
  4  not allowed
  5  a session was refused, rolled back, lost, left or not confirmed; each has its reason
  6  a session timed out, or a host did not answer in time
  7  drain: the time ran out, and the proxy still holds sessions
  8  doctor: a fault keeps this host from working";

/// How a command ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// A fault of this program or of the daemon.
    Internal = 1,
    /// A fault of the command line, of a file or of a key.
    Usage = 2,
    /// No daemon answers.
    NoDaemon = 3,
    /// The user may not.
    NotAllowed = 4,
    /// Refused or rolled back, for some session at least.
    Refused = 5,
    /// It took too long.
    TimedOut = 6,
    /// A drain ran out of time, and sessions are left.
    Left = 7,
    /// A doctor found what stops this host.
    Ill = 8,
}

impl Exit {
    /// For programs, in the words of the local API where it has one.
    pub fn code(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Internal => "internal",
            Exit::Usage => "bad_request",
            Exit::NoDaemon => "no_daemon",
            Exit::NotAllowed => "not_allowed",
            Exit::Refused => "refused",
            Exit::TimedOut => "timed_out",
            Exit::Left => "left",
            Exit::Ill => "ill",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
