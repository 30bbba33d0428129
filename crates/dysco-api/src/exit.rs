//! The documented exit codes of `dyscoctl` and `dyscod`.

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
  8  doctor: a fault keeps this host from working
  9  doctor: a certificate expires within 30 days";

/// Result of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// A fault of this program or of the daemon occurred.
    Internal = 1,
    /// The command line, a file or a key is wrong.
    Usage = 2,
    /// No daemon answers.
    NoDaemon = 3,
    /// The user has no permission.
    NotAllowed = 4,
    /// At least one session was refused or rolled back.
    Refused = 5,
    /// The command timed out.
    TimedOut = 6,
    /// A drain timed out, and the proxy still holds sessions.
    Left = 7,
    /// `dyscoctl doctor` found a fault that keeps this host from working.
    Ill = 8,
    /// `dyscoctl doctor` found a certificate that expires within 30 days, and no fault.
    Expiring = 9,
}

impl Exit {
    /// Returns the code as a word for programs, which is that of the local API if the API has
    /// one.
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
            Exit::Expiring => "expiring",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
