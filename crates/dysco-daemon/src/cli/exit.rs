//! How a command ends: documented exit codes, and errors that say what, why
//! and what to do.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::run::RunError;
use crate::api::{ClientError, FailureCode};
use crate::config::ConfigError;
use crate::pki::PkiError;
use crate::policy::PolicyError;

/// The exit codes, for `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  an internal error
  2  wrong usage, configuration, key or certificate
  3  no dyscod answers
  4  not allowed
  5  refused or rolled back, for some session at least; each says why
  6  timed out
  7  drain: the time ran out and the proxy holds sessions still; lists them";

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
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// About the daemon.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// About keys and certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// About the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// About a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// About a program to run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The daemon answered what was not asked.
    #[error(
        "failed to understand dyscod: it answered something else; use dyscoctl of the same version"
    )]
    Unexpected,
    /// A file to read.
    #[error(
        "failed to read {path}: {source}; name a file that 'dyscoctl state export' wrote, or '-'"
    )]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is no JSON.
    #[error(
        "failed to read {path}: {source}; name a file that 'dyscoctl state export' wrote, or '-'"
    )]
    NoJson {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Standard output.
    #[error("failed to print: {0}")]
    Print(#[from] io::Error),
    /// An answer that is no JSON.
    #[error("failed to print: {0}")]
    Json(#[from] serde_json::Error),
    /// The daemon's engine.
    #[error("failed to run dyscod: {0:#}")]
    Engine(anyhow::Error),
    /// The runtime.
    #[error("failed to start the runtime: {0}")]
    Runtime(io::Error),
}

impl CliError {
    /// The exit code it ends with.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Client(error) => client_exit(error),
            CliError::Pki(PkiError::Generate { .. }) => Exit::Internal,
            CliError::Pki(_)
            | CliError::Config(_)
            | CliError::Policy(_)
            | CliError::Run(_)
            | CliError::Read { .. }
            | CliError::NoJson { .. } => Exit::Usage,
            // Who reads has had enough.
            CliError::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            CliError::Unexpected
            | CliError::Print(_)
            | CliError::Json(_)
            | CliError::Engine(_)
            | CliError::Runtime(_) => Exit::Internal,
        }
    }

    /// The error for programs.
    pub fn json(&self) -> Value {
        match self {
            CliError::Client(ClientError::Failure(failure)) => json!({ "error": failure }),
            _ => json!({ "error": { "why": self.to_string(), "exit": self.exit() as u8 } }),
        }
    }
}

fn client_exit(error: &ClientError) -> Exit {
    match error {
        ClientError::NoDaemon { .. } => Exit::NoDaemon,
        ClientError::NotAllowed { .. } => Exit::NotAllowed,
        ClientError::TimedOut { .. } => Exit::TimedOut,
        ClientError::Lost { .. } | ClientError::Malformed(_) => Exit::Internal,
        ClientError::Failure(failure) => match failure.code {
            FailureCode::BadRequest => Exit::Usage,
            FailureCode::NotAllowed => Exit::NotAllowed,
            FailureCode::NotFound | FailureCode::Refused | FailureCode::Busy => Exit::Refused,
            FailureCode::TimedOut => Exit::TimedOut,
            FailureCode::Internal => Exit::Internal,
        },
    }
}
