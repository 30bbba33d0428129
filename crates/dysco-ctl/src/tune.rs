//! `dyscoctl tune`.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use dysco_api::{
    Congestion, Exit, FILTER_HELP, Filter, Keepalive, Rate, Reply, Request, SessionId, SessionName,
    SessionReport, SocketOwner, Tune, TuneAction, TuneOptions, TuneOutcome, TuneReport,
    TunedOption, UserTimeout,
};
use serde::Serialize;
use serde_json::Value;

use super::context::Context;
use super::exit::CliError;
use super::output::{every_reason, or_dash, rename_outcomes, rendered, table};
use super::pages::Pages;

/// Time limit for the result: all processes of the host are searched for the sockets.
const LONGEST: Duration = Duration::from_secs(60);
/// Outcomes of a dry run.
const TUNABLE: &str = "tunable";
const RESTORABLE: &str = "restorable";
/// Hint if no session was found.
const NONE: &str = "no session that matches is known here; see 'dyscoctl sessions'";
const NONE_TUNED: &str =
    "no session that matches has a tuned socket; see 'dyscoctl tune --list' for those that do";

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTER_HELP)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true)
    .args(["sessions", "all", "filter", "list"]))]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["congestion", "rate", "keepalive", "user_timeout", "nodelay", "no_nodelay", "restore", "list"]))]
pub(crate) struct Args {
    /// This session: its id, or LOCAL>REMOTE; may be repeated
    #[arg(long = "session", value_name = "ID", conflicts_with_all = ["all", "filter", "list"])]
    sessions: Vec<SessionName>,

    /// All sessions
    #[arg(long, conflicts_with_all = ["filter", "list"])]
    all: bool,

    /// Sessions that match, such as port=443: see below
    #[arg(long, value_name = "FILTER")]
    filter: Option<Filter>,

    /// The congestion control, such as bbr. It must be loaded
    #[arg(long, value_name = "NAME")]
    congestion: Option<Congestion>,

    /// The maximum rate at which this host's end sends, in bits per second, such as 20M; off for
    /// no limit
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Probe a silent peer after this time, such as 30s, and then three times as often; off for no
    /// probes
    #[arg(long, value_name = "TIME")]
    keepalive: Option<Keepalive>,

    /// End the session if sent data is not acknowledged for this time, such as 60s; off for the
    /// kernel's own limit
    #[arg(long, value_name = "TIME")]
    user_timeout: Option<UserTimeout>,

    /// Send small segments at once
    #[arg(long, conflicts_with = "no_nodelay")]
    nodelay: bool,

    /// Hold small segments back while others are not acknowledged
    #[arg(long)]
    no_nodelay: bool,

    /// Put back what the sockets had before they were tuned
    #[arg(long, conflicts_with_all = OPTIONS)]
    restore: bool,

    /// List the sessions with tuned sockets
    #[arg(long, conflicts_with_all = OPTIONS, conflicts_with_all = ["restore", "dry_run"])]
    list: bool,

    /// Print what would change, and all reasons of refusals; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments that name an option to set.
const OPTIONS: [&str; 6] = [
    "congestion",
    "rate",
    "keepalive",
    "user_timeout",
    "nodelay",
    "no_nodelay",
];

impl Args {
    fn action(&self) -> TuneAction {
        if self.restore {
            return TuneAction::Restore;
        }
        TuneAction::Set(TuneOptions {
            congestion: self.congestion.clone(),
            rate: self.rate,
            keepalive: self.keepalive,
            user_timeout: self.user_timeout,
            nodelay: (self.nodelay || self.no_nodelay).then_some(self.nodelay),
        })
    }
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
struct Done {
    dry_run: bool,
    accepted: usize,
    sessions: Vec<TuneReport>,
    summary: Summary,
    /// Hint, if no session was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

/// Numbers of sessions by outcome.
#[derive(Debug, Default, Serialize)]
struct Summary {
    tuned: usize,
    restored: usize,
    unchanged: usize,
    incomplete: usize,
    refused: usize,
}

/// A session with a tuned socket.
#[derive(Debug, Serialize)]
struct Listed {
    session: SessionId,
    local: SocketAddr,
    remote: SocketAddr,
    options: Vec<TunedOption>,
}

/// Sets socket options of sessions' ends, puts them back, or lists them.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    if args.list {
        return list(context, args.filter.unwrap_or_default());
    }
    let (action, dry_run) = (args.action(), args.dry_run);
    let none = match &action {
        TuneAction::Set(_) => NONE,
        TuneAction::Restore => NONE_TUNED,
    };
    let mut client = context.ask(&Request::Tune(Tune {
        sessions: args.sessions,
        all: args.all || args.filter.is_some(),
        filter: args.filter.unwrap_or_default(),
        action,
        dry_run,
    }))?;
    client.set_patience(Some(LONGEST))?;
    let mut done = Done {
        dry_run,
        ..Done::default()
    };
    loop {
        match client.reply()? {
            Reply::Accepted { sessions, .. } => done.accepted = sessions,
            Reply::Tuned(report) => done.add(report),
            Reply::Done { .. } => break,
            _ => return Err(CliError::Unexpected),
        }
    }
    done.hint = (done.accepted == 0).then_some(none);
    context.print(&json(&done)?, |_| text(&done))?;
    Ok(match done.summary.incomplete + done.summary.refused {
        0 => Exit::Done,
        _ => Exit::Refused,
    })
}

impl Done {
    fn add(&mut self, report: TuneReport) {
        let count = match report.outcome {
            TuneOutcome::Tuned => &mut self.summary.tuned,
            TuneOutcome::Restored => &mut self.summary.restored,
            TuneOutcome::Unchanged => &mut self.summary.unchanged,
            TuneOutcome::Incomplete => &mut self.summary.incomplete,
            TuneOutcome::Refused => &mut self.summary.refused,
        };
        *count += 1;
        self.sessions.push(report);
    }
}

/// Returns the result for programs. A dry run has its own outcomes.
fn json(done: &Done) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(done)?;
    if done.dry_run {
        for (word, could) in [("tuned", TUNABLE), ("restored", RESTORABLE)] {
            rename_outcomes(&mut value["sessions"], word, could);
            if let Some(summary) = value["summary"].as_object_mut()
                && let Some(count) = summary.remove(word)
            {
                summary.insert(could.into(), count);
            }
        }
    }
    Ok(value)
}

fn text(done: &Done) -> String {
    if let Some(hint) = done.hint {
        return hint.into();
    }
    let mut rows = table(["ID", "LOCAL", "REMOTE", "PROCESS", "OUTCOME", "WHAT"]);
    for report in &done.sessions {
        rows.add_row([
            report.session.to_string(),
            report.local.to_string(),
            report.remote.to_string(),
            or_dash(report.process.as_ref().map(SocketOwner::to_string)),
            outcome(report.outcome, done.dry_run).into(),
            or_dash(what(report)),
        ]);
    }
    format!(
        "{}\n\n{}",
        rendered(&rows),
        sum(&done.summary, done.dry_run)
    )
}

/// Returns the changes of a socket, and the reasons for which others were not made.
fn what(report: &TuneReport) -> Option<String> {
    let reasons = match report.reasons.as_slice() {
        [] => report.reason.iter().cloned().collect(),
        reasons => reasons.to_vec(),
    };
    let reasons = (!reasons.is_empty()).then(|| every_reason(&reasons));
    let parts: Vec<String> = changes(&report.options)
        .into_iter()
        .chain(reasons)
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns the changes of a socket's options, or `None` if there is none.
pub(crate) fn changes(options: &[TunedOption]) -> Option<String> {
    let all: Vec<_> = options.iter().map(TunedOption::to_string).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn outcome(outcome: TuneOutcome, dry_run: bool) -> &'static str {
    match outcome {
        TuneOutcome::Tuned if dry_run => TUNABLE,
        TuneOutcome::Restored if dry_run => RESTORABLE,
        TuneOutcome::Tuned => "tuned",
        TuneOutcome::Restored => "restored",
        TuneOutcome::Unchanged => "unchanged",
        TuneOutcome::Incomplete => "incomplete",
        TuneOutcome::Refused => "refused",
    }
}

fn sum(summary: &Summary, dry_run: bool) -> String {
    let Summary {
        tuned,
        restored,
        unchanged,
        incomplete,
        refused,
    } = summary;
    let (done, could) = match (*restored, dry_run) {
        (0, false) => (tuned, "tuned"),
        (0, true) => (tuned, TUNABLE),
        (_, false) => (restored, "restored"),
        (_, true) => (restored, RESTORABLE),
    };
    let nothing = if dry_run { "; nothing was changed" } else { "" };
    let incomplete = match incomplete {
        0 => String::new(),
        n => format!("{n} incomplete, "),
    };
    format!("{done} {could}, {unchanged} unchanged, {incomplete}{refused} refused{nothing}")
}

/// Lists the sessions with tuned sockets.
fn list(context: &Context, filter: Filter) -> Result<Exit, CliError> {
    let sessions = Pages::new(context, filter.only_tuned(), true).rest()?;
    let listed = |session: SessionReport| Listed {
        session: session.id,
        local: session.local,
        remote: session.remote,
        options: session.tuned,
    };
    let all: Vec<Listed> = sessions.into_iter().map(listed).collect();
    context.print(&all, |all| listing(all))?;
    Ok(Exit::Done)
}

fn listing(all: &[Listed]) -> String {
    if all.is_empty() {
        return "no session has a tuned socket".into();
    }
    let mut rows = table(["ID", "LOCAL", "REMOTE", "OPTION", "BEFORE", "NOW"]);
    for session in all {
        let mut names = [
            session.session.to_string(),
            session.local.to_string(),
            session.remote.to_string(),
        ];
        for TunedOption { option, from, to } in &session.options {
            let [id, local, remote] = std::mem::take(&mut names);
            let option = option.to_string();
            rows.add_row([id, local, remote, option, from.clone(), to.clone()]);
        }
    }
    rendered(&rows)
}
