//! `dyscoctl service`.

mod call;
mod change;
mod list;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use clap::Subcommand;
use dysco_api::{Exit, FILTER_HELP, ServiceSpec, SessionName};
use dysco_explain::Cause;

use super::context::Context;
use super::exit::CliError;

pub(super) use change::{Done, NONE, NONE_TO_TAKE, ask, bare, carry_out, exit, json, part, text};

/// Beginning of a word that names a service.
pub(super) const SERVICE: char = '+';

/// Arguments of `service`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put services into live sessions of this host's programs
    ///
    /// A service handles the bytes of a session. The programs and the other hosts are not changed
    /// and do not notice. The services begin to enter at once, behind those that are there.
    #[command(after_help = FILTER_HELP)]
    Put(change::PutArgs),
    /// Take services out of live sessions: those that are named, or all
    ///
    /// The services begin to leave at once. Those that stay notice nothing.
    #[command(after_help = FILTER_HELP)]
    Take(change::TakeArgs),
    /// List the sessions that have services, or whose numbers are translated because they had some
    #[command(after_help = FILTER_HELP)]
    List(list::Args),
    /// Call a service of a session, and print its answer
    Call(call::Args),
}

/// Word that names a service or a session.
#[derive(Clone, Debug)]
enum Word {
    Service(ServiceSpec),
    Session(SessionName),
}

impl FromStr for Word {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        match s.strip_prefix(SERVICE) {
            Some(service) => service.parse().map(Word::Service),
            None => s.parse().map(Word::Session).map_err(|cause: Cause| {
                let hint = cause.hint.unwrap_or_default();
                Cause::new(cause.why).hint(format!("{hint}; write a service as +NAME"))
            }),
        }
    }
}

/// Puts services into sessions, takes them out, lists them, or calls one.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    match args.command {
        Command::Put(args) => change::put(context, args),
        Command::Take(args) => change::take(context, args),
        Command::List(args) => list::run(context, args),
        Command::Call(args) => call::run(context, args),
    }
}

/// Returns services for one cell, as a command line names them.
fn services(all: &[ServiceSpec]) -> Option<String> {
    let all: Vec<_> = all.iter().map(|spec| format!("{SERVICE}{spec}")).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Returns what services have added to a session, unless that is nothing.
fn delta(delta: [i64; 2]) -> Option<String> {
    let [to_server, to_client] = delta;
    (delta != [0; 2]).then(|| format!("{to_server:+} to server, {to_client:+} to client"))
}
