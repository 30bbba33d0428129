//! The command line of `dyscoctl`, one file a subcommand. It asks `dyscod` over the local
//! API, and looks at files, keys and the kernel by itself where no daemon has to run. The
//! crate awaits nothing, and does not depend on the daemon.

mod adopt;
mod bugreport;
mod completions;
mod context;
mod delta;
mod doctor;
mod drain;
mod drain_report;
mod exit;
mod metrics;
mod monitor;
mod none_found;
mod output;
mod pki;
mod policy;
mod reconfigure;
mod reload;
mod remove;
mod run;
mod sessions;
mod state;
mod status;
mod time;
mod top;
mod uninstall;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dysco_api::EXIT_HELP;

use context::Context;
use output::Format;

/// Take proxies out of live TCP sessions, and see who talks through what.
#[derive(Debug, Parser)]
#[command(name = "dyscoctl", version, after_help = EXIT_HELP, max_term_width = 100)]
struct Cli {
    /// How to print: a table for people, or JSON
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,

    /// The socket of the dyscod to ask; without, DYSCO_API_SOCKET, or
    /// /run/dysco/dyscod.sock
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Is this host all right, in one screen
    Status,
    /// What would stop this host from working, and the mend; with dyscod and without
    Doctor(doctor::Args),
    /// Who talks to whom, through what, how long, how much
    Sessions(sessions::Args),
    /// Show sessions, their goodput and changes as they happen
    Top(top::Args),
    /// Take a middlebox out of live sessions
    RemoveMiddlebox(remove::Args),
    /// Give live sessions another chain of middleboxes
    Reconfigure(reconfigure::Args),
    /// Put a middlebox into live sessions
    InsertMiddlebox(reconfigure::InsertArgs),
    /// Have another middlebox take the place of one, in live sessions
    ReplaceMiddlebox(reconfigure::ReplaceArgs),
    /// Say by how much a middlebox of this host has changed the size of a session's
    /// stream
    ///
    /// For a middlebox in the session's chain that rewrites sequence numbers itself.
    /// From then on it changes the size no more, and what it has put in or taken away
    /// has been acknowledged: then it may leave.
    Delta(delta::Args),
    /// Take a proxy out of all its sessions, as they become removable: then it
    /// may be reloaded or stopped
    ///
    /// Interrupted, it leaves what has begun to dyscod, which finishes it or
    /// takes it back. Asking again goes on.
    Drain(drain::Args),
    /// What this host's firewall knows of a session, and moving it to another
    State(state::Args),
    /// Enter the sessions that were there before dyscod, and that it does not
    /// know yet
    ///
    /// dyscod does so by itself when it starts. Sessions that had no room then,
    /// or whose socket was handed over meanwhile, may be entered later.
    Adopt,
    /// Have dyscod read its configuration, keys and policy again, without a restart
    ///
    /// All is read and checked first; with a fault nothing is changed. Values that only a
    /// restart takes up are named, and the exit code is 5 then.
    Reload(reload::Args),
    /// Which sessions are steered through which hosts
    Policy(policy::Args),
    /// What happens, as it happens, with reasons
    Monitor,
    /// Print the metrics of dyscod, as Prometheus reads them
    Metrics,
    /// Run a proxy under the shim, which tells dyscod what it relays
    #[command(after_help = run::HELP)]
    Run(run::Args),
    /// Make the fleet's authority, and certificates of its hosts
    Pki(pki::Args),
    /// Leave this host as it was: stop dyscod, take its programs off, give back what it
    /// reserved
    ///
    /// Refused while sessions need Dysco, since these would stop. Keys, configuration and
    /// policy stay.
    Uninstall(uninstall::Args),
    /// Write what is known of this host into a directory, for those who help; without keys
    Bugreport(bugreport::Args),
    /// Print completions for a shell
    Completions(completions::Args),
}

/// Returns the command line of `dyscoctl`, as clap has it.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// The whole of `dyscoctl`.
pub fn dyscoctl() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let context = Context::new(cli.socket, cli.output);
    let done = match cli.command {
        Command::Status => status::run(&context),
        Command::Doctor(args) => doctor::run(&context, &args),
        Command::Sessions(args) => sessions::run(&context, args),
        // Its threads have a context of their own.
        Command::Top(args) => top::run(context.clone(), args),
        Command::RemoveMiddlebox(args) => remove::run(&context, args),
        Command::Reconfigure(args) => reconfigure::run(&context, args),
        Command::InsertMiddlebox(args) => reconfigure::insert(&context, args),
        Command::ReplaceMiddlebox(args) => reconfigure::replace(&context, args),
        Command::Delta(args) => delta::run(&context, args),
        Command::Drain(args) => drain::run(&context, &args),
        Command::State(args) => state::run(&context, args),
        Command::Adopt => adopt::run(&context),
        Command::Reload(args) => reload::run(&context, &args),
        Command::Policy(args) => policy::run(&context, args),
        Command::Monitor => monitor::run(&context),
        Command::Metrics => metrics::run(&context),
        Command::Run(args) => run::run(&context, args),
        Command::Pki(args) => pki::run(&context, args),
        Command::Uninstall(args) => uninstall::run(&context, &args),
        Command::Bugreport(args) => bugreport::run(&context, &args),
        Command::Completions(args) => completions::run(&args),
    };
    context.finish(done).into()
}

#[cfg(test)]
mod tests;
