//! `dyscoctl uptime`.

use dysco_api::{Exit, Reply, Request};

use super::context::Context;
use super::exit::CliError;

/// Prints the time for which `dyscod` has run, in seconds.
pub fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Status)?;
    let Reply::Status(status) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&status.uptime_s, |seconds| format!("{seconds}\n"))?;
    Ok(Exit::Done)
}
