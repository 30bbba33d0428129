//! `dyscoctl service list`.

use dysco_api::{Exit, Filter, Reply, Request, ServiceListing, ServiceRow, SessionName};

use super::{delta, services};
use crate::context::Context;
use crate::exit::CliError;
use crate::output::{or_dash, rendered, table};

/// Arguments of `service list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these sessions: their ids, or LOCAL>REMOTE
    #[arg(value_name = "SESSION", conflicts_with = "filters")]
    sessions: Vec<SessionName>,

    /// Only sessions that match, such as port=443: see below; may be repeated
    #[arg(long = "filter", value_name = "FILTER")]
    filters: Vec<Filter>,
}

/// Lists the sessions that have services.
pub(super) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Services(ServiceListing {
        sessions: args.sessions,
        filter: args.filters.into_iter().collect(),
    }))?;
    let mut all = Vec::new();
    loop {
        match client.reply()? {
            Reply::ServiceRow(row) => all.push(row),
            Reply::Done { .. } => break,
            _ => return Err(CliError::Unexpected),
        }
    }
    context.print(&all, |all| listing(all))?;
    Ok(Exit::Done)
}

pub(super) fn listing(all: &[ServiceRow]) -> String {
    if all.is_empty() {
        return "no session has services".into();
    }
    let mut rows = table([
        "ID", "LOCAL", "REMOTE", "SERVICES", "STATE", "HANDLER", "DELTA",
    ]);
    for row in all {
        rows.add_row([
            row.session.to_string(),
            row.local.to_string(),
            row.remote.to_string(),
            or_dash(whose(row)),
            row.state.to_string(),
            or_dash(row.handler.map(|pid| pid.to_string())),
            or_dash(delta(row.delta)),
        ]);
    }
    rendered(&rows)
}

/// Returns the services of a session, and the other host that has them.
fn whose(row: &ServiceRow) -> Option<String> {
    let names = services(&row.services)?;
    Some(match row.peer {
        Some(peer) => format!("{names} with {peer}"),
        None => names,
    })
}
