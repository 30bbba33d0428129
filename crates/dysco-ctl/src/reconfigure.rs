//! `dyscoctl reconfigure`, `insert-middlebox` and `replace-middlebox`.

use clap::ArgGroup;
use dysco_api::{
    ChainChange, ChangeRate, Exit, FILTER_HELP, Filter, HostName, Reconfigure, Reply, Request,
    SessionName, StateKind, Which,
};
use dysco_explain::Cause;

use super::context::Context;
use super::exit::CliError;
use super::remove;
use elements::{Elements, HostOrService};
use result::{Done, exit, json, text};

mod elements;
mod result;
mod with_services;

/// Separator of hosts or kinds in one word.
const WORDS: char = ',';

/// Arguments that all commands of this file have.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Sessions that this host has opened and that match, such as port=443: see below. If this host
    /// itself leaves, sessions that pass it
    #[arg(long, value_name = "FILTER", conflicts_with_all = ["all", "through"])]
    filter: Option<Filter>,

    /// All sessions that this host has opened and that pass this one; `self` for all
    /// that pass the host asked
    #[arg(long, value_name = "HOST", conflicts_with = "all")]
    through: Option<HostName>,

    /// All sessions that this host has opened. If this host itself leaves, all that pass it
    #[arg(long)]
    all: bool,

    /// Copy state of these kinds from hosts that leave to hosts that enter, separated by commas
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = WORDS)]
    state: Vec<StateKind>,

    /// Wait for the end of each change
    #[arg(long)]
    wait: bool,

    /// Begin at most N changes in any second [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rate: Option<ChangeRate>,

    /// Print what would be done, and the reasons of refusals; change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Common {
    fn which(&self, sessions: Vec<SessionName>) -> Which {
        match (sessions.is_empty(), &self.filter, &self.through) {
            (false, _, _) => Which::Sessions(sessions),
            (true, Some(filter), _) => Which::Filter(filter.clone()),
            (true, None, Some(host)) => Which::Through(host.clone()),
            (true, None, None) => Which::All,
        }
    }
}

/// Returns the group of options that select sessions, one of which is required.
fn which() -> ArgGroup {
    ArgGroup::new("which")
        .args(["sessions", "filter", "through", "all"])
        .required(true)
}

/// Arguments of `reconfigure`.
#[derive(Debug, clap::Args)]
#[command(group = which(), after_help = FILTER_HELP)]
pub(crate) struct Args {
    /// These sessions: their ids, or LOCAL>REMOTE
    sessions: Vec<SessionName>,

    /// The hosts of the new chain, in order, separated by commas; '' for none. A +SERVICE comes in
    /// at this host's end, once the chain has changed
    #[arg(
        long,
        value_name = "HOST|+SERVICE",
        required_unless_present = "without"
    )]
    chain: Option<Elements>,

    /// Remove this host from their chains, and keep the others. A +SERVICE leaves as by 'service take'
    #[arg(long, value_name = "HOST|+SERVICE", conflicts_with = "chain")]
    without: Option<HostOrService>,

    #[command(flatten)]
    common: Common,
}

/// Arguments of `insert-middlebox`.
#[derive(Debug, clap::Args)]
#[command(group = which(), after_help = FILTER_HELP)]
pub(crate) struct InsertArgs {
    /// The middlebox's host. A +SERVICE comes in at this host's end, as by 'service put': --all and
    /// --filter then select sessions that others have opened as well
    #[arg(value_name = "HOST|+SERVICE")]
    element: HostOrService,

    /// This session: its id, or LOCAL>REMOTE; may be repeated
    #[arg(long = "session", value_name = "ID")]
    sessions: Vec<SessionName>,

    #[command(flatten)]
    common: Common,
}

/// Arguments of `replace-middlebox`.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTER_HELP)]
pub(crate) struct ReplaceArgs {
    /// The host that leaves, or the +SERVICE
    #[arg(value_name = "HOST|+SERVICE")]
    element: HostOrService,

    /// The host that enters. A +SERVICE takes the place of another one, at this host's end
    #[arg(long, value_name = "HOST|+SERVICE")]
    with: HostOrService,

    /// This session: its id, or LOCAL>REMOTE; may be repeated [default: all that pass the host, or
    /// have the service]
    #[arg(
        long = "session",
        value_name = "ID",
        conflicts_with_all = ["all", "through", "filter"]
    )]
    sessions: Vec<SessionName>,

    #[command(flatten)]
    common: Common,
}

/// Gives sessions another chain.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let which = args.common.which(args.sessions);
    let elements = args.chain.unwrap_or_default();
    let change = match args.without {
        Some(HostOrService::Service(service)) => {
            return with_services::without(context, which, service, &args.common);
        }
        Some(HostOrService::Host(host)) => ChainChange::Remove(host),
        None => ChainChange::Become(elements.hosts),
    };
    match elements.services.as_slice() {
        [] => ask(context, which, change, &args.common),
        services => with_services::ask(context, which, change, services, &args.common),
    }
}

/// Inserts a middlebox, or a service of this host, into sessions.
pub(crate) fn insert(context: &Context, args: InsertArgs) -> Result<Exit, CliError> {
    let which = args.common.which(args.sessions);
    match args.element {
        HostOrService::Host(host) => ask(context, which, ChainChange::Insert(host), &args.common),
        HostOrService::Service(service) => {
            with_services::insert(context, which, service, &args.common)
        }
    }
}

/// Replaces a middlebox by another, or a service.
pub(crate) fn replace(context: &Context, args: ReplaceArgs) -> Result<Exit, CliError> {
    let common = &args.common;
    let selected = common.all || common.filter.is_some() || common.through.is_some();
    let by_element = args.sessions.is_empty() && !selected;
    let which = common.which(args.sessions);
    match (args.element, args.with) {
        (HostOrService::Host(old), HostOrService::Host(new)) => {
            let which = match by_element {
                true => Which::Through(old.host().clone()),
                false => which,
            };
            ask(context, which, ChainChange::Replace { old, new }, common)
        }
        (HostOrService::Service(old), HostOrService::Service(new)) => {
            with_services::replace(context, which, old, new, common)
        }
        _ => Err(CliError::Usage(
            Cause::new("a host does not take the place of a service, nor a service that of a host")
                .hint("name both in the new chain: reconfigure --chain"),
        )),
    }
}

fn ask(
    context: &Context,
    which: Which,
    chain: ChainChange,
    common: &Common,
) -> Result<Exit, CliError> {
    let wait = common.wait || common.dry_run;
    let done = carry_out(context, which, chain, common, wait, common.dry_run)?;
    context.print(&json(&done)?, |_| text(&done, wait))?;
    Ok(exit(&done))
}

/// Sends a request, and returns its result: the number of sessions alone, unless it waits.
fn carry_out(
    context: &Context,
    which: Which,
    chain: ChainChange,
    common: &Common,
    wait: bool,
    dry_run: bool,
) -> Result<Done, CliError> {
    let passed = passed(&which, &chain).cloned();
    let mut client = context.ask(&Request::Reconfigure(Reconfigure {
        which,
        chain,
        state: common.state.clone(),
        rate: common.rate,
        dry_run,
    }))?;
    if wait {
        client.set_patience(Some(remove::LONGEST))?;
    }
    let bar = remove::progress(context.format);
    let mut done = Done {
        dry_run,
        accepted: 0,
        changes: Vec::new(),
    };
    loop {
        match client.reply()? {
            Reply::Accepted { sessions, .. } => {
                done.accepted = sessions;
                bar.set_length(sessions as u64);
                if !wait {
                    break;
                }
            }
            Reply::ChainUpdated(report) => {
                done.changes.push(report);
                bar.inc(1);
            }
            Reply::Done { .. } => break,
            _ => return Err(CliError::Unexpected),
        }
    }
    bar.finish_and_clear();
    let none = done.accepted == 0 && done.changes.is_empty();
    if let Some(host) = passed.filter(|_| none)
        && !remove::is_met(context, &host)?
    {
        return Err(CliError::Unmet(host));
    }
    Ok(done)
}

/// Returns the host that the selected sessions must pass.
fn passed<'a>(which: &'a Which, chain: &'a ChainChange) -> Option<&'a HostName> {
    match (which, chain) {
        (Which::Through(host), _) => Some(host),
        (_, ChainChange::Remove(old) | ChainChange::Replace { old, .. }) => Some(old.host()),
        (_, ChainChange::Become(_) | ChainChange::Insert(_)) => None,
    }
}
