//! `dyscoctl adopt`.

use dysco_api::{AdoptReport, Exit, Reply, Request};

use super::context::Context;
use super::exit::CliError;
use super::output::{list, number, rendered};

/// Adopts the sessions that existed before dyscod, or that dyscod does not know for another
/// reason.
pub(crate) fn run(context: &Context) -> Result<Exit, CliError> {
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
    let left = report.left.iter();
    let left: Vec<_> = left
        .map(|left| (left.reason.to_string(), number(left.sessions)))
        .collect();
    let left = left
        .iter()
        .map(|(why, count)| (why.as_str(), count.clone()));
    rendered(&list(known.into_iter().chain(left)))
}
