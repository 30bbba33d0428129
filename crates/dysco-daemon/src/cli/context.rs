//! What every subcommand has: whom to ask, and how to print.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::exit::{CliError, Exit};
use super::output::Format;
use crate::api::{Client, Request};

/// How long an answer that needs no other host may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Whom to ask, and how to print.
#[derive(Debug)]
pub struct Context {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// How to print.
    pub format: Format,
}

impl Context {
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
