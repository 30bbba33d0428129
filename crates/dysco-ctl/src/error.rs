//! Errors of commands that do more than ask the daemon.

use std::io;
use std::path::PathBuf;

use dysco_explain::{AS_ROOT, Cause, Explain, Explanation, display_explained, is_of_permission};

use super::shim::{REPORTS_VARIABLE, SHIM, SHIM_VARIABLE};

/// An error while running a program under the shim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The shim was not found.
    NoShim {
        /// Places that were searched.
        places: String,
    },
    /// The daemon does not state the socket that its shims report to.
    NoReports(PathBuf),
    /// The path contains a blank or a colon, which the loader does not accept.
    BadPath(PathBuf),
    /// A word that names no service.
    Service(Cause),
    /// No program follows the services.
    NoProgram,
    /// The program cannot be started.
    Exec {
        /// The program.
        program: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

display_explained!(RunError);

impl Explain for RunError {
    fn explain(&self) -> Explanation {
        match self {
            RunError::NoShim { places } => {
                Explanation::new("find the shim", format!("{SHIM} is not in {places}"))
                    .hint(format!("install it there, or name it with {SHIM_VARIABLE}"))
            }
            RunError::NoReports(socket) => Explanation::new(
                "find where shims report to",
                format!("the dyscod at {} does not tell", socket.display()),
            )
            .hint(format!(
                "start one of dyscoctl's version, or name the socket with {REPORTS_VARIABLE}"
            )),
            RunError::BadPath(path) => Explanation::new(
                format!("load the shim {}", path.display()),
                "the loader accepts no blank or colon in a path",
            )
            .hint("move it"),
            RunError::Service(cause) => cause.clone().of("run the program with services"),
            RunError::NoProgram => Explanation::new("run a program", "the command line names none")
                .hint("write 'dyscoctl run +SERVICE -- PROGRAM ARGUMENTS'"),
            RunError::Exec { program, source } => {
                Explanation::new(format!("run {program}"), source)
                    .hint("see that it is installed, and in PATH")
            }
        }
    }
}

/// An error while uninstalling.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UninstallError {
    /// Sessions would stop.
    Needed(usize),
    /// The daemon cannot be found, or does not stop.
    Runs {
        /// Directory of the pins.
        path: PathBuf,
    },
    /// An error of the data plane.
    Agent(#[from] dysco_agent::AgentError),
    /// An error while releasing ports.
    Ports(#[from] dysco_config::PortsError),
    /// A file cannot be removed.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

display_explained!(UninstallError);

impl Explain for UninstallError {
    fn explain(&self) -> Explanation {
        match self {
            UninstallError::Needed(count) => {
                Explanation::new("uninstall Dysco", format!("{count} sessions need it")).hint(
                    "see them with --dry-run, and wait for their end with --wait, or use --force",
                )
            }
            UninstallError::Runs { path } => Explanation::new(
                "stop dyscod",
                format!("another process has {} and does not end", path.display()),
            )
            .hint("stop it, as with 'systemctl disable --now dyscod'"),
            UninstallError::Agent(error) => {
                let explained = Cause::from(error.explain()).of("uninstall Dysco");
                match is_of_permission(self) {
                    true => explained.hint(AS_ROOT),
                    false => explained,
                }
            }
            UninstallError::Ports(error) => error.explain(),
            UninstallError::File { path, source } => {
                let hint = match is_of_permission(self) {
                    true => AS_ROOT,
                    false => "remove it yourself",
                };
                Explanation::new(format!("remove {}", path.display()), source).hint(hint)
            }
        }
    }
}

/// An error while writing a report.
#[derive(Debug, thiserror::Error)]
pub(crate) struct WriteError {
    /// Path of the file or directory.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

display_explained!(WriteError);

impl Explain for WriteError {
    fn explain(&self) -> Explanation {
        let what = format!("write the report {}", self.path.display());
        Explanation::new(what, &self.source).hint("name another directory with --out")
    }
}
