//! `dyscoctl adopt`.

use dysco_api::{AdoptReport, Exit, Reply, Request};

use super::context::Context;
use super::exit::CliError;
use super::output::{list, number, rendered};

/// Adopts the sessions that existed before dyscod, or that dyscod does not know for another
/// reason.
pub fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Adopt)?;
    let Reply::Adopted(report) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&report, text)?;
    Ok(Exit::Done)
}

fn text(report: &AdoptReport) -> String {
    let known = [
        ("adopted", number(report.adopted)),
        ("known before", number(report.known)),
    ];
    let left = report
        .left
        .iter()
        .map(|left| (left.reason.as_str(), number(left.sessions)));
    rendered(&list(known.into_iter().chain(left)))
}
