//! `dyscoctl sessions show`.

use dysco_api::{Exit, Reply, Request, SessionName, SessionReport};

use super::cell;
use super::columns::Column;
use crate::context::Context;
use crate::exit::CliError;
use crate::output::{list, or_dash, rendered, seconds, section, table};

/// Shows one session with all its details.
pub(super) fn run(context: &Context, session: SessionName) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Session { session })?;
    let Reply::Session(session) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&*session, details)?;
    Ok(Exit::Done)
}

fn details(session: &SessionReport) -> String {
    let of = |column| cell(session, column);
    let rows = list([
        ("id", of(Column::Id)),
        ("local", of(Column::Local)),
        ("remote", of(Column::Remote)),
        ("role", of(Column::Role)),
        ("state", of(Column::State)),
        ("mode", of(Column::Mode)),
        ("path", of(Column::Path)),
        ("opened as", of(Column::OpenedAs)),
        ("chain", of(Column::Chain)),
        ("proxy", of(Column::Proxy)),
        ("proxy says", of(Column::Label)),
        ("pair", of(Column::Pair)),
        ("age", of(Column::Age)),
        ("adopted", of(Column::Adopted)),
        ("received", of(Column::In)),
        ("sent", of(Column::Out)),
        ("tuned", of(Column::Tuned)),
        ("services", of(Column::Services)),
        ("removable", of(Column::Removable)),
    ]);
    let mut history = table(["AGO", "WHAT", "BY"]);
    for entry in &session.history {
        // A dyscod of an earlier release names the initiator in a change of the way alone.
        let by = entry.by.as_ref();
        let by = by.or(entry.change.as_ref().map(|c| &c.by)).cloned();
        history.add_row([seconds(entry.ago_s), entry.what.clone(), or_dash(by)]);
    }
    format!("{}\n{}", rendered(&rows), section("History", &history))
}
