//! `dyscoctl delta`.

use dysco_api::{DeltaReport, Exit, Reply, Request, SessionName, TellDelta};

use super::context::Context;
use super::exit::CliError;

/// Arguments of `delta`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("by").args(["to_server", "to_client"]).required(true).multiple(true))]
pub(crate) struct Args {
    /// The session: its id, or LOCAL>REMOTE
    session: SessionName,

    /// Bytes added to the stream to the server since the session began; negative if removed; 0 if
    /// only --to-client is given
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    to_server: Option<i32>,

    /// Bytes added to the stream to the client; 0 if only --to-server is given
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    to_client: Option<i32>,
}

/// Declares a session's delta.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Delta(TellDelta {
        session: args.session,
        to_server: args.to_server.unwrap_or(0),
        to_client: args.to_client.unwrap_or(0),
    }))?;
    let Reply::Delta(report) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&report, text)?;
    Ok(Exit::Done)
}

fn text(report: &DeltaReport) -> String {
    let DeltaReport {
        session,
        to_server,
        to_client,
    } = report;
    format!("{session}: {to_server} bytes to the server, {to_client} to the client")
}
