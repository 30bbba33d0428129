//! `dyscoctl service call`.

use dysco_api::{Exit, Reply, Request, ServiceAnswer, ServiceCall, SessionName};
use dysco_explain::Cause;
use serde_json::Value;

use crate::context::Context;
use crate::exit::CliError;

/// Arguments of `service call`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session: its id, or LOCAL>REMOTE
    session: SessionName,

    /// The name of the service, such as count
    service: String,

    /// The operation, as the service names it
    verb: String,

    /// The argument of the operation, such as '{"rate": "20M"}'
    #[arg(value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
    argument: Option<Value>,
}

fn json(s: &str) -> Result<Value, Cause> {
    serde_json::from_str(s).map_err(|error| {
        Cause::new(format!("'{s}' is no JSON: {error}"))
            .hint("quote it for the shell, such as '{\"key\": 1}' or '\"word\"'")
    })
}

/// Calls a service of a session.
pub(super) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let request = Request::CallService(ServiceCall {
        session: args.session,
        service: args.service,
        verb: args.verb,
        argument: args.argument,
    });
    let Reply::ServiceAnswer(answer) = context.ask(&request)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&answer, text)?;
    Ok(Exit::Done)
}

/// Returns the answer alone. A string is not quoted.
pub(super) fn text(answer: &ServiceAnswer) -> String {
    match &answer.answer {
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    }
}
