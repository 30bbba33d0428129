//! Result of a command: errors with cause and remedy, and their exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use dysco_api::{ClientError, Exit, FailureCode, HostName};
use dysco_config::ConfigError;
use dysco_config::policy::PolicyError;
use dysco_pki::PkiError;
use serde_json::{Value, json};

use super::bugreport::WriteError;
use super::run::RunError;
use super::uninstall::UninstallError;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// An error while asking the daemon.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of keys or certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// An error of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An error of a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An error while starting a program.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The daemon sent a reply of another kind than the request expects.
    #[error(
        "failed to understand dyscod: it answered something else; use dyscoctl of the same version"
    )]
    Unexpected,
    /// An error while uninstalling.
    #[error(transparent)]
    Uninstall(#[from] UninstallError),
    /// An error while writing a bug report.
    #[error(transparent)]
    Report(#[from] WriteError),
    /// A file cannot be read.
    #[error(
        "failed to read {path}: {source}; name a file that 'dyscoctl state export' wrote, or '-'"
    )]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is no JSON.
    #[error(
        "failed to read {path}: {source}; name a file that 'dyscoctl state export' wrote, or '-'"
    )]
    NoJson {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// Standard output cannot be written.
    #[error("failed to print: {0}")]
    Print(#[from] io::Error),
    /// There is no terminal to draw on.
    #[error(
        "failed to show sessions: standard input or output is no terminal, or JSON is asked for; use 'dyscoctl sessions', with --watch to repeat it"
    )]
    NoTerminal,
    /// An answer cannot be printed as JSON.
    #[error("failed to print: {0}")]
    Json(#[from] serde_json::Error),
    /// The host is unknown.
    #[error(
        "failed to find the middlebox {0}: no session of this host passes it, and its dyscod has not met it; see 'dyscoctl sessions' and 'dyscoctl status' for the hosts that it knows"
    )]
    Unmet(HostName),
}

impl CliError {
    /// Returns the exit code of the error.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Client(error) => client_exit(error),
            CliError::Pki(PkiError::Generate { .. }) => Exit::Internal,
            CliError::Pki(_)
            | CliError::Config(_)
            | CliError::Policy(_)
            | CliError::Run(_)
            | CliError::NoTerminal
            | CliError::Report(_)
            | CliError::Read { .. }
            | CliError::NoJson { .. } => Exit::Usage,
            CliError::Unmet(_)
            | CliError::Uninstall(UninstallError::Needed(_) | UninstallError::Runs { .. }) => {
                Exit::Refused
            }
            CliError::Uninstall(_) => Exit::Internal,
            // The reader of the output has closed it.
            CliError::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            CliError::Json(error) if error.io_error_kind() == Some(io::ErrorKind::BrokenPipe) => {
                Exit::Done
            }
            CliError::Unexpected | CliError::Print(_) | CliError::Json(_) => Exit::Internal,
        }
    }

    /// Returns the error for programs, in the shape that all errors have.
    pub fn json(&self) -> Value {
        let exit = self.exit();
        let code = match self {
            CliError::Client(ClientError::Failure(failure)) => json!(failure.code),
            CliError::Unmet(_) => json!(FailureCode::NotFound),
            _ => json!(exit.code()),
        };
        shape(exit, &code, self.told().each_ref().map(String::as_str))
    }

    /// Returns the attempt, the cause and the remedy.
    pub fn told(&self) -> [String; 3] {
        if let CliError::Client(ClientError::Failure(failure)) = self {
            return [&failure.what, &failure.why, &failure.mend].map(Clone::clone);
        }
        let text = self.to_string();
        let [what, why, mend] = parts(&text);
        let of_file = matches!(self, CliError::Policy(_) | CliError::Config(_));
        let (why, mend) = match why.rsplit_once(": ") {
            _ if !of_file || !mend.is_empty() => (why, mend),
            // An error with a place usually ends with the remedy.
            Some(parts) => parts,
            None => (why, "mend it there"),
        };
        [what, why, mend].map(str::to_owned)
    }
}

/// Returns an error as JSON: the attempt, the cause and the remedy.
fn shape(exit: Exit, code: &Value, [what, why, mend]: [&str; 3]) -> Value {
    let exit = exit as u8;
    json!({ "error": { "exit": exit, "code": code, "what": what, "why": why, "mend": mend } })
}

/// Splits "failed to WHAT: WHY; MEND", which is the form of all error texts.
pub fn parts(text: &str) -> [&str; 3] {
    let text = text.strip_prefix("failed to ").unwrap_or(text);
    let (what, rest) = text.split_once(": ").unwrap_or(("", text));
    let (why, mend) = rest.split_once("; ").unwrap_or((rest, ""));
    [what, why, mend]
}

/// Ends the program with an error of the command line, in the requested format.
pub fn usage(error: &clap::Error) -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    // Help is no error.
    if !error.use_stderr() || !wants_json(&words.collect::<Vec<_>>()) {
        error.exit();
    }
    eprintln!("{}", usage_json(&error.to_string()));
    Exit::Usage.into()
}

/// Returns true if the command line requests JSON. A command line with errors may do so too.
fn wants_json(words: &[String]) -> bool {
    let joined = |word: &String| matches!(word.as_str(), "-ojson" | "-o=json" | "--output=json");
    let apart = |two: &[String]| matches!(two[0].as_str(), "-o" | "--output") && two[1] == "json";
    words.iter().any(joined) || words.windows(2).any(apart)
}

fn usage_json(text: &str) -> Value {
    // The first paragraph is the error. The usage and hints for people follow.
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<_> = first.split_whitespace().collect();
    let why = words.join(" ");
    let why = why.strip_prefix("error: ").unwrap_or(&why);
    let parts = ["understand the command line", why, "see --help"];
    shape(Exit::Usage, &json!(Exit::Usage.code()), parts)
}

fn client_exit(error: &ClientError) -> Exit {
    match error {
        // The daemon existed, and does not exist any more.
        ClientError::NoDaemon { .. } | ClientError::Lost { .. } => Exit::NoDaemon,
        ClientError::NotAllowed { .. } => Exit::NotAllowed,
        ClientError::TimedOut { .. } => Exit::TimedOut,
        ClientError::Malformed(_) => Exit::Internal,
        ClientError::Failure(failure) => match failure.code {
            FailureCode::BadRequest => Exit::Usage,
            FailureCode::NotAllowed => Exit::NotAllowed,
            FailureCode::NotFound | FailureCode::Refused | FailureCode::Busy => Exit::Refused,
            FailureCode::TimedOut => Exit::TimedOut,
            FailureCode::Internal => Exit::Internal,
        },
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::Failure;

    use super::*;

    #[test]
    fn all_errors_have_one_shape() {
        let of_daemon = CliError::Client(ClientError::Failure(Failure {
            code: FailureCode::NotFound,
            what: "find the session".into(),
            why: "there is none; really".into(),
            mend: "see 'dyscoctl sessions'".into(),
        }));
        let no_daemon = CliError::Client(ClientError::NoDaemon {
            socket: "/run/s".into(),
            source: io::ErrorKind::NotFound.into(),
        });
        let source = io::Error::from(io::ErrorKind::NotFound).to_string();
        let error = |exit: u8, code: &str, what: &str, why: &str, mend: &str| {
            let fields = json!({
                "exit": exit, "code": code, "what": what, "why": why, "mend": mend,
            });
            json!({ "error": fields })
        };
        assert_eq!(
            of_daemon.json(),
            error(
                5,
                "not_found",
                "find the session",
                "there is none; really",
                "see 'dyscoctl sessions'"
            )
        );
        assert_eq!(
            no_daemon.json(),
            error(
                3,
                "no_daemon",
                "reach dyscod at /run/s",
                &source,
                "start it, or name its socket with --socket"
            )
        );
        let usage =
            "error: the following required arguments were not provided:\n  <ID>\n\nUsage: x";
        assert_eq!(
            usage_json(usage),
            error(
                2,
                "bad_request",
                "understand the command line",
                "the following required arguments were not provided: <ID>",
                "see --help"
            )
        );
    }

    /// The remedy is present for every fault at a place in a file.
    #[test]
    fn a_place_in_a_policy_has_a_mend() {
        for (text, why, mend) in [
            (
                "[[rule]]\nchain = [\"10.0.0.1\", \"10.0.0.1\"]",
                "the chain holds 10.0.0.1 twice, and a session passes a host once",
                "leave one out",
            ),
            (
                "[[rule]]\nchain = []\nports = \"90-80\"",
                "'90-80' is empty",
                "did you mean 80-90?",
            ),
            (
                "[[rule]]\nchain = []\ncolour = 1",
                "unknown field `colour`, expected one of `name`, `source`, `destination`, `ports`, `chain`, `otherwise`",
                "mend it there",
            ),
        ] {
            let error = dysco_config::policy::Policy::parse("p.toml".as_ref(), text).unwrap_err();
            let told = CliError::Policy(error).json();
            assert_eq!(told["error"]["why"], why, "{told:#}");
            assert_eq!(told["error"]["mend"], mend, "{told:#}");
        }
    }

    #[test]
    fn json_is_asked_for_in_several_ways() {
        let wants = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            wants_json(&words)
        };
        for line in ["x -o json", "-o json x", "x -ojson", "x --output=json"] {
            assert!(wants(line), "{line}");
        }
        for line in ["", "json", "x -o table", "x -o"] {
            assert!(!wants(line), "{line}");
        }
    }
}
