//! What every subcommand has: whom to ask, and how to print.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use dysco_api::{Client, DEFAULT_API_SOCKET, Exit, Request};
use serde::Serialize;

use super::exit::CliError;
use super::output::Format;

/// How long an answer that needs no other host may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Names the daemon's socket where no option does; a middlebox's `dysco_delta()` reads
/// it as well.
pub const SOCKET_VARIABLE: &str = "DYSCO_API_SOCKET";

/// Whom to ask, and how to print.
#[derive(Clone, Debug)]
pub struct Context {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Is it another's word than the default?
    pub named: bool,
    /// How to print.
    pub format: Format,
}

impl Context {
    /// The socket is the option's, or that of the environment, or the usual one.
    pub fn new(option: Option<PathBuf>, format: Format) -> Context {
        let variable = || env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        let named = option.or_else(|| variable().map(PathBuf::from));
        Context {
            named: named.is_some(),
            socket: named.unwrap_or_else(|| DEFAULT_API_SOCKET.into()),
            format,
        }
    }

    /// Asks the daemon.
    pub fn ask(&self, request: &Request) -> Result<Client, CliError> {
        let mut client = Client::connect(&self.socket)?;
        client.set_patience(Some(PATIENCE))?;
        client.ask(request)?;
        Ok(client)
    }

    /// Prints a value: as JSON, or as the text that `table` makes of it.
    pub fn print<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let text = match self.format {
            Format::Json => serde_json::to_string_pretty(value)?,
            Format::Table => table(value),
        };
        print_line(&text)
    }

    /// Reports how the command ended.
    pub fn finish(&self, done: Result<Exit, CliError>) -> Exit {
        let error = match done {
            Ok(exit) => return exit,
            Err(error) => error,
        };
        let exit = error.exit();
        if exit != Exit::Done {
            match self.format {
                Format::Json => eprintln!("{}", error.json()),
                Format::Table => eprintln!("error: {error}"),
            }
        }
        exit
    }
}

/// Prints a line, or says that nobody reads it.
pub fn print_line(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}
