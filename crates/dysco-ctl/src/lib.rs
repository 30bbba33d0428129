//! The command line of `dyscoctl`, with one file for each subcommand. A subcommand asks `dyscod`
//! over the local API, or examines files, keys and the kernel itself if no daemon needs to run.
//! The crate is synchronous, and does not depend on the daemon.

mod adopt;
mod bugreport;
mod completions;
mod context;
mod delta;
mod doctor;
mod drain;
mod drain_report;
mod error;
mod exit;
mod metrics;
mod monitor;
mod namespaces;
mod none_found;
mod output;
mod pages;
mod pki;
mod policy;
mod publish;
mod reconfigure;
mod reload;
mod remove;
mod run;
mod service;
mod sessions;
mod shim;
mod state;
mod status;
mod time;
mod top;
mod tune;
mod uninstall;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dysco_api::{EXIT_HELP, Exit};

use context::Context;
use exit::CliError;
use output::Format;

/// Remove proxies from live TCP sessions, and show sessions and their paths.
#[derive(Debug, Parser)]
#[command(name = "dyscoctl", version, after_help = EXIT_HELP, max_term_width = 100)]
struct Cli {
    /// The output format
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,

    /// The socket of dyscod [default: DYSCO_API_SOCKET, or /run/dysco/dyscod.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Ask the dyscod of this network namespace, as 'dyscoctl namespaces' lists it: a name, an
    /// inode, or the beginning of a container's id
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the daemon, its interfaces, peers and counters, after a verdict
    Status,
    /// Check this host, and give a remedy for each fault; dyscod need not run
    Doctor(doctor::Args),
    /// List sessions
    Sessions(sessions::Args),
    /// List the network namespaces of containers and pods that dyscod serves besides its own
    Namespaces,
    /// Show sessions, their goodput and changes as they happen
    Top(top::Args),
    /// Remove a proxy, or a host of a chain, from live sessions
    RemoveMiddlebox(remove::Args),
    /// Give live sessions another chain of middleboxes
    Reconfigure(reconfigure::Args),
    /// Put a middlebox into live sessions
    InsertMiddlebox(reconfigure::InsertArgs),
    /// Replace one middlebox with another in live sessions
    ReplaceMiddlebox(reconfigure::ReplaceArgs),
    /// Set socket options of live programs' sessions, and put them back
    ///
    /// For the sockets of this host's ends of the sessions. The programs are not changed and do not
    /// notice. dyscod remembers what the sockets had.
    Tune(tune::Args),
    /// Put services into live sessions, take them out, list and call them
    ///
    /// A service handles the bytes of a session of this host's programs, which are not changed and
    /// do not notice.
    Service(service::Args),
    /// Declare how many bytes a middlebox of this host added to a session's stream
    ///
    /// For a middlebox in the session's chain that rewrites sequence numbers itself. It must not
    /// change the size any more, and all bytes that it added or removed must have been
    /// acknowledged. Then it can leave.
    Delta(delta::Args),
    /// Remove a proxy from all its sessions as they become removable, so that it can be reloaded or
    /// stopped
    ///
    /// If interrupted, dyscod finishes the removals that have begun, or rolls them back. A new
    /// drain continues.
    Drain(drain::Args),
    /// Show, export, install, move and remove firewall state of a session
    State(state::Args),
    /// Adopt sessions that are older than dyscod and not known yet
    ///
    /// dyscod does this by itself when it starts. Use it for sessions that had no room then, or
    /// whose socket has moved to another process since.
    Adopt,
    /// Reload the configuration, keys and policy of dyscod without a restart
    ///
    /// All files are read and checked first; a fault leaves everything as it was. The exit code is
    /// 5 if values need a restart, which are named.
    Reload(reload::Args),
    /// List, check, apply, publish and explain the policy for new sessions
    Policy(policy::Args),
    /// Print events as they happen, with reasons
    Monitor,
    /// Print the metrics of dyscod in the OpenMetrics format
    Metrics,
    /// Start a proxy under the shim, or any program with services
    ///
    /// The shim reports to dyscod what the proxy relays. With services, each session that the
    /// program and its children open or accept has them from its first byte on, and the shim is not
    /// loaded.
    #[command(after_help = run::HELP)]
    Run(run::Args),
    /// Create the fleet's authority, and issue and revoke certificates
    Pki(pki::Args),
    /// Leave this host as it was: stop dyscod, detach its programs, and restore system settings
    ///
    /// Refused while sessions need Dysco, since they would stop. Keys, configuration and policy
    /// stay. So do the values of tuned sockets: run 'dyscoctl tune --restore --filter tuned=yes'
    /// first.
    Uninstall(uninstall::Args),
    /// Write configuration, status and logs of this host to a directory for a bug report, without
    /// keys
    Bugreport(bugreport::Args),
    /// Print completions for a shell
    Completions(completions::Args),
}

/// Returns the command line of `dyscoctl` for clap.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs `dyscoctl`.
pub fn dyscoctl() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let context = Context::new(cli.socket, cli.output);
    let inner = match &cli.namespace {
        Some(name) => context.in_namespace(name),
        None => Ok(context.clone()),
    };
    let done = inner.and_then(|inner| run(&inner, cli.command));
    context.finish(done).into()
}

fn run(context: &Context, command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Status => status::run(context),
        Command::Doctor(args) => doctor::run(context, &args),
        Command::Sessions(args) => sessions::run(context, args),
        Command::Namespaces => namespaces::run(context),
        // The threads of `top` have their own context.
        Command::Top(args) => top::run(context.clone(), args),
        Command::RemoveMiddlebox(args) => remove::run(context, args),
        Command::Reconfigure(args) => reconfigure::run(context, args),
        Command::InsertMiddlebox(args) => reconfigure::insert(context, args),
        Command::ReplaceMiddlebox(args) => reconfigure::replace(context, args),
        Command::Tune(args) => tune::run(context, args),
        Command::Service(args) => service::run(context, args),
        Command::Delta(args) => delta::run(context, args),
        Command::Drain(args) => drain::run(context, &args),
        Command::State(args) => state::run(context, args),
        Command::Adopt => adopt::run(context),
        Command::Reload(args) => reload::run(context, &args),
        Command::Policy(args) => policy::run(context, args),
        Command::Monitor => monitor::run(context),
        Command::Metrics => metrics::run(context),
        Command::Run(args) => run::run(context, args),
        Command::Pki(args) => pki::run(context, args),
        Command::Uninstall(args) => uninstall::run(context, &args),
        Command::Bugreport(args) => bugreport::run(context, &args),
        Command::Completions(args) => completions::run(&args),
    }
}

#[cfg(test)]
mod tests;
