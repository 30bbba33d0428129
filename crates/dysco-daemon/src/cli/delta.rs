//! `dyscoctl delta`.

use super::context::Context;
use super::exit::{CliError, Exit};
use crate::api::{DeltaReport, Reply, Request, SessionName, TellDelta};

/// Arguments of `delta`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session: its id, or LOCAL>REMOTE
    session: SessionName,

    /// Bytes put into what goes to the server since the session began; negative for
    /// bytes taken away
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    to_server: i32,

    /// The same of what goes to the client
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    to_client: i32,
}

/// Tells it.
pub fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Delta(TellDelta {
        session: args.session,
        to_server: args.to_server,
        to_client: args.to_client,
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
