//! `dyscoctl sessions` and `dyscoctl sessions show`.

use clap::Subcommand;
use dysco_api::{
    Exit, FILTER_HELP, Filter, PathReport, Removable, Reply, Request, Role, SessionId, SessionName,
    SessionReport,
};

use super::context::Context;
use super::exit::CliError;
use super::output::{
    addresses, bytes, every_reason, list, or_dash, rendered, seconds, section, table,
};

/// Arguments of `sessions`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = FILTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Only those that match, such as port=443,state=tracked: see below
    #[arg(long, default_value = "", hide_default_value = true)]
    filter: Filter,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One session, with all that is known of it
    Show {
        /// Its id as listed, or LOCAL>REMOTE
        #[arg(value_name = "ID")]
        session: SessionName,
    },
}

/// Who talks to whom, through what, how long, how much.
pub fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    match args.command {
        Some(Command::Show { session }) => show(context, session),
        None => list_all(context, args.filter),
    }
}

fn list_all(context: &Context, filter: Filter) -> Result<Exit, CliError> {
    let sessions = fetch(context, &Request::Sessions { filter })?;
    context.print(&sessions, |sessions| listing(sessions))?;
    Ok(Exit::Done)
}

fn show(context: &Context, session: SessionName) -> Result<Exit, CliError> {
    let found = fetch(context, &Request::Session { session })?;
    let session = found.first().ok_or(CliError::Unexpected)?;
    context.print(session, details)?;
    Ok(Exit::Done)
}

fn fetch(context: &Context, request: &Request) -> Result<Vec<SessionReport>, CliError> {
    let mut client = context.ask(request)?;
    let mut sessions = Vec::new();
    loop {
        match client.reply()? {
            Reply::Session(session) => sessions.push(*session),
            Reply::Done { .. } => return Ok(sessions),
            _ => return Err(CliError::Unexpected),
        }
    }
}

fn listing(sessions: &[SessionReport]) -> String {
    if sessions.is_empty() {
        return "no sessions".into();
    }
    let mut rows = table([
        "ID",
        "LOCAL",
        "REMOTE",
        "ROLE",
        "STATE",
        "MODE",
        "PATH",
        "CHAIN",
        "AGE",
        "IN",
        "OUT",
        "REMOVABLE",
    ]);
    for session in sessions {
        rows.add_row([
            session.id.to_string(),
            session.local.to_string(),
            session.remote.to_string(),
            role(session.role).into(),
            state(session).into(),
            or_dash(session.mode.map(|m| m.to_string())),
            or_dash(session.path.map(path)),
            or_dash(session.chain.as_deref().map(addresses)),
            seconds(session.since_s),
            bytes(session.bytes_in),
            bytes(session.bytes_out),
            removable(&session.removable),
        ]);
    }
    rendered(&rows)
}

/// One that has ended shows its state no more, whatever the programs still do for it.
fn state(session: &SessionReport) -> &str {
    match session.ended {
        true => "ended",
        false => &session.state,
    }
}

fn details(session: &SessionReport) -> String {
    let rows = list([
        ("id", session.id.to_string()),
        ("local", session.local.to_string()),
        ("remote", session.remote.to_string()),
        ("role", role(session.role).into()),
        ("state", state(session).into()),
        ("mode", or_dash(session.mode.map(|m| m.to_string()))),
        ("path", or_dash(session.path.map(path))),
        ("opened as", or_dash(session.opened_as.map(path))),
        ("chain", or_dash(session.chain.as_deref().map(addresses))),
        (
            "proxy says",
            or_dash(session.label.as_ref().map(super::drain_report::words)),
        ),
        (
            "pair",
            or_dash(session.pair.map(|id: SessionId| id.to_string())),
        ),
        ("age", seconds(session.since_s)),
        ("adopted", yes(session.adopted).into()),
        ("received", bytes(session.bytes_in)),
        ("sent", bytes(session.bytes_out)),
        ("removable", removable(&session.removable)),
    ]);
    let mut history = table(["AGO", "WHAT", "BY"]);
    for entry in &session.history {
        let by = entry.change.as_ref().map(|c| c.by.clone());
        history.add_row([seconds(entry.ago_s), entry.what.clone(), or_dash(by)]);
    }
    format!("{}\n{}", rendered(&rows), section("History", &history))
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn path(path: PathReport) -> String {
    format!("{} > {}", path.local, path.remote)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::LeftAnchor => "left anchor",
        Role::RightAnchor => "right anchor",
        Role::Middlebox => "middlebox",
    }
}

fn removable(removable: &Removable) -> String {
    match removable {
        Removable::Yes => "yes".into(),
        Removable::No { reason, reasons } if reasons.is_empty() => format!("no: {reason}"),
        Removable::No { reasons, .. } => format!("no: {}", every_reason(reasons)),
    }
}
