//! Result of a command: errors with cause and hint, and their exit codes.

use std::error::Error as _;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ContextKind;
use dysco_api::{ClientError, Exit, FailureCode, HostName};
use dysco_config::ConfigError;
use dysco_config::policy::PolicyError;
use dysco_explain::{Cause, Explain, Explanation, display_explained, is_of_permission};
use dysco_pki::PkiError;
use serde_json::{Value, json};

use super::error::{RunError, UninstallError, WriteError};

/// Operation that a wrong command line makes fail.
const READ_LINE: &str = "understand the command line";

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// An error while asking the daemon.
    Client(#[from] ClientError),
    /// An error of keys or certificates.
    Pki(#[from] PkiError),
    /// An error of the configuration.
    Config(#[from] ConfigError),
    /// An error of a policy.
    Policy(#[from] PolicyError),
    /// An error while starting a program.
    Run(#[from] RunError),
    /// The command line contradicts itself, or lacks something.
    Usage(Cause),
    /// The daemon sent a reply of another kind than the request expects.
    Unexpected,
    /// An error while uninstalling.
    Uninstall(#[from] UninstallError),
    /// An error while writing a bug report.
    Report(#[from] WriteError),
    /// A file cannot be read.
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is no JSON.
    NoJson {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// Standard output cannot be written.
    Print(#[from] io::Error),
    /// There is no terminal to draw on.
    NoTerminal,
    /// An answer cannot be printed as JSON.
    Json(#[from] serde_json::Error),
    /// The host is unknown.
    Unmet(HostName),
    /// No instance serves this network namespace.
    Namespace {
        /// Word that the user gave.
        name: String,
        /// Cause.
        why: Cause,
    },
}

impl CliError {
    /// Returns the exit code of the error.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            CliError::Client(error) => client_exit(error),
            CliError::Pki(PkiError::Generate { .. }) => Exit::Internal,
            CliError::Config(error) if error.is_of_permission() => Exit::NotAllowed,
            CliError::Uninstall(error) if is_of_permission(error) => Exit::NotAllowed,
            CliError::Pki(_)
            | CliError::Config(_)
            | CliError::Policy(_)
            | CliError::Run(_)
            | CliError::NoTerminal
            | CliError::Usage(_)
            | CliError::Report(_)
            | CliError::Read { .. }
            | CliError::NoJson { .. } => Exit::Usage,
            CliError::Unmet(_)
            | CliError::Namespace { .. }
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
    pub(crate) fn json(&self) -> Value {
        let exit = self.exit();
        let code = match self {
            CliError::Client(ClientError::Failure(failure)) => json!(failure.code),
            CliError::Unmet(_) | CliError::Namespace { .. } => json!(FailureCode::NotFound),
            _ => json!(exit.code()),
        };
        shape(exit, &code, &self.explain())
    }
}

display_explained!(CliError);

impl Explain for CliError {
    fn explain(&self) -> Explanation {
        let read = |path: &Path, why: &dyn Display| {
            Explanation::new(format!("read {}", path.display()), why)
                .hint("name a file that 'dyscoctl state export' wrote, or '-'")
        };
        match self {
            CliError::Client(error) => error.explain(),
            CliError::Pki(error) => error.explain(),
            CliError::Config(error) => error.explain(),
            CliError::Policy(error) => error.explain(),
            CliError::Run(error) => error.explain(),
            CliError::Uninstall(error) => error.explain(),
            CliError::Report(error) => error.explain(),
            CliError::Usage(cause) => cause.clone().of(READ_LINE),
            CliError::Unexpected => {
                Explanation::new("understand dyscod", "it answered something else")
                    .hint("use dyscoctl of the same version")
            }
            CliError::Read { path, source } => read(path, source),
            CliError::NoJson { path, source } => read(path, source),
            CliError::Print(source) => Explanation::new("print", source),
            CliError::Json(source) => Explanation::new("print", source),
            CliError::NoTerminal => Explanation::new(
                "show sessions",
                "standard input or output is no terminal, or JSON is requested",
            )
            .hint("use 'dyscoctl sessions', with --watch to repeat it"),
            CliError::Unmet(host) => Explanation::new(
                format!("find the middlebox {host}"),
                "no session of this host passes it, and its dyscod has not met it",
            )
            .hint("see 'dyscoctl sessions' and 'dyscoctl status' for the hosts that it knows"),
            CliError::Namespace { name, why } => {
                (why.clone()).of(format!("ask the dyscod of the network namespace {name}"))
            }
        }
    }
}

/// Returns an error as JSON: the attempt, the cause and the hint.
fn shape(exit: Exit, code: &Value, explanation: &Explanation) -> Value {
    let Explanation { what, why, hint } = explanation;
    let (exit, hint) = (exit as u8, hint.as_deref().unwrap_or_default());
    json!({ "error": { "exit": exit, "code": code, "what": what, "why": why, "hint": hint } })
}

/// Ends the program with an error of the command line, in the requested format.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    // Help is no error.
    if !error.use_stderr() || !wants_json(&words.collect::<Vec<_>>()) {
        error.exit();
    }
    eprintln!("{}", usage_json(error));
    Exit::Usage.into()
}

/// Returns true if the command line requests JSON. A command line with errors may do so too.
fn wants_json(words: &[String]) -> bool {
    let joined = |word: &String| matches!(word.as_str(), "-ojson" | "-o=json" | "--output=json");
    let apart = |two: &[String]| matches!(two[0].as_str(), "-o" | "--output") && two[1] == "json";
    words.iter().any(joined) || words.windows(2).any(apart)
}

fn usage_json(error: &clap::Error) -> Value {
    let cause = error.source().and_then(|source| source.downcast_ref());
    let cause = match cause {
        Some(cause) => of_value(error, cause),
        None => Cause::new(first_paragraph(&error.to_string())).hint("see --help"),
    };
    let reported = cause.of(READ_LINE);
    shape(Exit::Usage, &json!(Exit::Usage.code()), &reported)
}

/// Returns the cause for which the value of an argument was refused.
fn of_value(error: &clap::Error, cause: &Cause) -> Cause {
    let part = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, argument) = (
        part(ContextKind::InvalidValue),
        part(ContextKind::InvalidArg),
    );
    let cause = cause.clone();
    cause.after(format_args!("invalid value '{value}' for '{argument}'"))
}

/// Returns the error in clap's words. The usage and hints for people follow in other paragraphs;
/// clap gives the error itself only with them.
fn first_paragraph(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or(text);
    let first = first.strip_prefix("error: ").unwrap_or(first);
    first.split_whitespace().collect::<Vec<_>>().join(" ")
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
            hint: "see 'dyscoctl sessions'".into(),
        }));
        let no_daemon = CliError::Client(ClientError::NoDaemon {
            socket: "/run/s".into(),
            source: io::ErrorKind::NotFound.into(),
        });
        let source = io::Error::from(io::ErrorKind::NotFound).to_string();
        let error = |exit: u8, code: &str, what: &str, why: &str, hint: &str| {
            let fields = json!({
                "exit": exit, "code": code, "what": what, "why": why, "hint": hint,
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
        let id = clap::Arg::new("ID").value_parser(clap::value_parser!(HostName));
        let command = clap::Command::new("x").arg(id.required(true));
        let usage = |words: &[&str]| command.clone().try_get_matches_from(words).unwrap_err();
        assert_eq!(
            usage_json(&usage(&["x", "a b"])),
            error(
                2,
                "bad_request",
                "understand the command line",
                "invalid value 'a b' for '<ID>': 'a b' names no host",
                "give 'self', an address, or a host name"
            )
        );
        assert_eq!(
            usage_json(&usage(&["x"])),
            error(
                2,
                "bad_request",
                "understand the command line",
                "the following required arguments were not provided: <ID>",
                "see --help"
            )
        );
    }

    #[test]
    fn who_lacks_a_permission_is_not_allowed() {
        let remove = |kind: io::ErrorKind| {
            CliError::Uninstall(UninstallError::File {
                path: "/run/dysco/state".into(),
                source: kind.into(),
            })
        };
        let denied = remove(io::ErrorKind::PermissionDenied);
        assert_eq!(denied.exit(), Exit::NotAllowed);
        assert_eq!(
            denied.explain().hint.as_deref(),
            Some(dysco_explain::AS_ROOT)
        );
        assert_eq!(remove(io::ErrorKind::Other).exit(), Exit::Internal);
    }

    /// A hint is present for every fault at a place in a file.
    #[test]
    fn a_place_in_a_policy_has_a_hint() {
        for (text, why, hint) in [
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
                "unknown field `colour`, expected one of `name`, `source`, `destination`, `ports`, `user`, `cgroup`, `chain`, `otherwise`",
                "correct it there",
            ),
        ] {
            let error = dysco_config::policy::Policy::parse("p.toml".as_ref(), text).unwrap_err();
            let reported = CliError::Policy(error).json();
            assert_eq!(reported["error"]["why"], why, "{reported:#}");
            assert_eq!(reported["error"]["hint"], hint, "{reported:#}");
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
