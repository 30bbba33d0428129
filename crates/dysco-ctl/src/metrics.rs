//! `dyscoctl metrics`.

use dysco_api::{Exit, MetricsReport, Reply, Request};

use super::context::Context;
use super::exit::CliError;

/// Prints the metrics of `dyscod`, in the OpenMetrics format.
pub(crate) fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Metrics)?;
    let Reply::Metrics(report) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&report, text)?;
    Ok(Exit::Done)
}

fn text(report: &MetricsReport) -> String {
    report.openmetrics.clone()
}
