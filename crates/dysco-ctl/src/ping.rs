//! `dyscoctl ping`.

use dysco_api::{Exit, Reply, Request};
use serde_json::json;

use super::context::Context;
use super::exit::CliError;

/// Tells whether the daemon answers.
pub fn run(context: &Context) -> Result<Exit, CliError> {
    let Reply::Status(_) = context.ask(&Request::Status)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&json!({ "answers": true }), |_| "dyscod answers".into())?;
    Ok(Exit::Done)
}
