//! State that all subcommands share: the daemon to ask, and the output format.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use dysco_api::{Client, DEFAULT_API_SOCKET, Exit, Request};
use dysco_explain::tame_lines;
use serde::Serialize;

use super::exit::CliError;
use super::output::Format;

/// Time limit for an answer that needs no other host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Variable with the daemon's socket, used if no option names the socket. A middlebox's
/// `dysco_delta()` reads the variable as well.
pub(crate) const SOCKET_VARIABLE: &str = "DYSCO_API_SOCKET";

/// Daemon to ask, and output format.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Path of the daemon's socket.
    pub socket: PathBuf,
    /// True if an option or the environment names the socket.
    pub named: bool,
    /// Output format.
    pub format: Format,
}

impl Context {
    /// Returns a context. The option takes precedence over the environment, and the environment
    /// over the default.
    pub(crate) fn new(option: Option<PathBuf>, format: Format) -> Context {
        let variable = || env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        let named = option.or_else(|| variable().map(PathBuf::from));
        Context {
            named: named.is_some(),
            socket: named.unwrap_or_else(|| DEFAULT_API_SOCKET.into()),
            format,
        }
    }

    /// Sends a request to the daemon.
    pub(crate) fn ask(&self, request: &Request) -> Result<Client, CliError> {
        let mut client = Client::connect(&self.socket)?;
        client.set_patience(Some(PATIENCE))?;
        client.ask(request)?;
        Ok(client)
    }

    /// Prints a value: as JSON, or as the text that `table` returns for it.
    pub(crate) fn print<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let text = match self.format {
            Format::Json => serde_json::to_string_pretty(value)?,
            // It may have texts of other programs and hosts.
            Format::Table => tame_lines(&table(value)),
        };
        print_line(&text)
    }

    /// Reports the result of the command.
    pub(crate) fn finish(&self, done: Result<Exit, CliError>) -> Exit {
        let error = match done {
            Ok(exit) => return exit,
            Err(error) => error,
        };
        let exit = error.exit();
        if exit != Exit::Done {
            match self.format {
                Format::Json => eprintln!("{}", error.json()),
                Format::Table => eprintln!("error: {}", tame_lines(&error.to_string())),
            }
        }
        exit
    }
}

/// Prints a line, or returns an error if nothing reads the output any more.
pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}
