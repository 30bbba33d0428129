//! `dyscoctl remove-middlebox`.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use dysco_api::{
    ChangeRate, Client, Exit, FILTER_HELP, Filter, HostName, LeftReport, ListenAddress, Mode,
    Outcome, ProcessName, RemovalReport, Remove, Reply, Request, SessionName, Summary,
};
use dysco_explain::Cause;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

use super::context::{Context, PATIENCE};
use super::exit::CliError;
use super::none_found;
use super::output::{Format, every_reason, micros, or_dash, rename_outcomes, rendered, table};
use super::time;

/// Longest time limit that a daemon may have configured, with a reserve.
pub(super) const LONGEST: Duration = Duration::from_secs(660);

/// Outcome of a dry run for a session that the middlebox could leave.
const REMOVABLE: &str = "removable";

/// Arguments of `remove-middlebox`.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTER_HELP)]
#[command(group = clap::ArgGroup::new("which").args(["sessions", "all", "filter"]).required(true))]
pub(crate) struct Args {
    /// The middlebox to remove: self, an address or a host name. A proxy's host, or a host of the
    /// sessions' chains
    host: HostName,

    /// This session: its id, or LOCAL>REMOTE; may be repeated
    #[arg(long = "session", value_name = "ID")]
    sessions: Vec<SessionName>,

    /// All sessions that can lose it
    #[arg(long)]
    all: bool,

    /// Sessions that match, such as port=443: see below
    #[arg(long, value_name = "FILTER")]
    filter: Option<Filter>,

    /// Wait for the end of each removal
    #[arg(long)]
    wait: bool,

    /// The time limit of each removal, such as 500ms or 10s [default: from the configuration]. It
    /// is then rolled back, or goes on as pending if data uses the new path already. Changes of
    /// chains have their own limits
    #[arg(long, value_parser = time::change, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Begin at most N changes in any second [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rate: Option<ChangeRate>,

    /// The path afterwards [default: from the configuration]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,

    /// Print what would be done, the mode, and all reasons of refusals; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Only sessions of this process and of those it started. Without the shim, its sockets are
    /// watched until their counts show which belong together
    #[arg(long, value_name = "PID", conflicts_with = "listen")]
    pid: Option<u32>,

    /// Only sessions of this listener, such as :8080. Declares that its process only passes bytes
    /// on from now on. Without the shim, its sockets are watched as with --pid
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<ListenAddress>,
}

impl Args {
    fn process(&self) -> Option<ProcessName> {
        let pid = self.pid.map(|pid| ProcessName::Pid(pid.cast_signed()));
        pid.or(self.listen.map(ProcessName::Listener))
    }

    /// Returns the time limit for each reply. `--timeout` limits only the change on a proxy's
    /// host, and the daemon enforces it: before the change the daemon may watch sockets, and it
    /// asks hosts of a chain.
    fn patience(&self) -> Duration {
        let process = self.pid.is_some() || self.listen.is_some();
        match self.wait || self.dry_run || process {
            true => LONGEST + PATIENCE,
            false => PATIENCE,
        }
    }
}

/// Result of the command.
#[derive(Debug, Serialize)]
struct Done {
    dry_run: bool,
    accepted: usize,
    removals: Vec<RemovalReport>,
    /// Sessions whose removal could not be tried, and which keep the middlebox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<LeftReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
    /// Hint about unfulfilled conditions, if no session was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// Removes a middlebox from live sessions.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let wait = args.wait || args.dry_run;
    let dry_run = args.dry_run;
    let process = args.process();
    let hint = none_found::hint(&args.host, process.is_some(), args.mode.is_some());
    let host = args.host.clone();
    let filter = args.filter.clone().unwrap_or_default();
    let patience = args.patience();
    let inner = match &process {
        Some(process) => context.for_process(process)?,
        None => context.clone(),
    };
    let context = &inner;
    let mut client = context.ask(&Request::Remove(Remove {
        host: args.host,
        sessions: args.sessions,
        all: args.all || args.filter.is_some(),
        filter: args.filter.unwrap_or_default(),
        dry_run,
        mode: args.mode,
        timeout_ms: args.timeout.map(|t| t.as_millis() as u64),
        process,
        transparent: args.listen.is_some(),
        rate: args.rate,
    }))?;
    client.set_patience(Some(patience))?;
    let mut done = collect(&mut client, wait, context.format, dry_run)?;
    let none = done.accepted == 0 && done.removals.is_empty() && done.left.is_empty();
    if none && host != HostName::This && !is_met(context, &host)? {
        return Err(CliError::Unmet(host));
    }
    done.hint = none.then(|| {
        none_found::hint_of_filter(context, &filter)
            .or_else(|| none_found::hint_of_listener(context, args.listen.as_ref()?))
            .unwrap_or_else(|| hint.into())
    });
    context.print(&json(&done)?, |_| text(&done))?;
    Ok(exit(&done))
}

/// Returns true if dyscod knows this host. An unknown name is more likely misspelt than a host
/// that all its sessions have left.
pub(crate) fn is_met(context: &Context, host: &HostName) -> Result<bool, CliError> {
    let Reply::Status(status) = context.ask(&Request::Status)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    let named: Vec<IpAddr> = match host {
        HostName::This => return Ok(true),
        HostName::Address(address) => vec![*address],
        HostName::Name(name) if *name == status.host => return Ok(true),
        HostName::Name(name) => {
            let found = (name.as_str(), 0).to_socket_addrs();
            let found = found.into_iter().flatten();
            found.map(|found| found.ip().to_canonical()).collect()
        }
    };
    let peers = status.peers.iter().map(|peer| peer.address);
    let mut known = peers.chain(status.addresses.iter().copied());
    Ok(known.any(|address| named.contains(&address)))
}

/// Returns the result for programs. A dry run has its own outcomes.
fn json(done: &Done) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(done)?;
    if done.dry_run {
        rename_outcomes(&mut value["removals"], "removed", REMOVABLE);
        if let Some(summary) = &done.summary {
            let Summary {
                removed, refused, ..
            } = summary;
            let mut sum = json!({ REMOVABLE: removed, "refused": refused });
            if let Some(least) = summary.at_least_ms {
                sum["at_least_ms"] = least.into();
            }
            value["summary"] = sum;
        }
    }
    Ok(value)
}

fn collect(
    client: &mut Client,
    wait: bool,
    format: Format,
    dry_run: bool,
) -> Result<Done, CliError> {
    let bar = progress(format);
    let mut done = Done {
        dry_run,
        accepted: 0,
        removals: Vec::new(),
        left: Vec::new(),
        summary: None,
        hint: None,
    };
    loop {
        match client.reply()? {
            Reply::Accepted { sessions, left } => {
                done.accepted = sessions;
                done.left = left;
                bar.set_length(sessions as u64);
                if !wait {
                    return Ok(done);
                }
            }
            Reply::Removal(report) => {
                done.removals.push(report);
                bar.inc(1);
            }
            Reply::Done { summary } => {
                let summary = summary.unwrap_or_else(|| Summary::of(&done.removals));
                done.summary = Some(summary);
                bar.finish_and_clear();
                return Ok(done);
            }
            _ => return Err(CliError::Unexpected),
        }
    }
}

/// Returns a progress bar, which is hidden unless the output is a table on a terminal.
pub(super) fn progress(format: Format) -> ProgressBar {
    let target = match format {
        Format::Table => ProgressDrawTarget::stderr(),
        Format::Json => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} sessions, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

impl Done {
    /// Returns true if any session keeps the middlebox.
    fn leaves_some(&self) -> bool {
        let keeps = |r: &RemovalReport| matches!(r.outcome, Outcome::Refused | Outcome::RolledBack);
        !self.left.is_empty() || self.removals.iter().any(keeps)
    }
}

fn exit(done: &Done) -> Exit {
    let any = |outcome| done.removals.iter().any(|r| r.outcome == outcome);
    if any(Outcome::Pending) || done.removals.iter().any(|r| r.timed_out) {
        Exit::TimedOut
    } else if done.leaves_some() || any(Outcome::Unconfirmed) || any(Outcome::Lost) {
        Exit::Refused
    } else {
        Exit::Done
    }
}

fn text(done: &Done) -> String {
    let Some(summary) = &done.summary else {
        if let Some(hint) = &done.hint {
            return hint.clone();
        }
        let begun = format!(
            "begun for {} sessions; see 'dyscoctl monitor'",
            done.accepted
        );
        return begun + &left(&done.left);
    };
    let mut rows = table([
        "ID", "LOCAL", "REMOTE", "OUTCOME", "MODE", "SWITCHED", "CLOSED", "WHY",
    ]);
    for report in &done.removals {
        rows.add_row([
            report.session.to_string(),
            report.local.to_string(),
            report.remote.to_string(),
            outcome(report.outcome, done.dry_run).into(),
            or_dash(report.mode.map(|m| m.to_string())),
            or_dash(report.request_to_switch_us.map(micros)),
            or_dash(report.request_to_close_us.map(micros)),
            or_dash(why(report)),
        ]);
    }
    let mut text = match &done.hint {
        Some(hint) => format!("{hint}\n"),
        None if done.removals.is_empty() => String::new(),
        None => format!("{}\n\n", rendered(&rows)),
    };
    text += &sum(summary, done.dry_run);
    text + &left(&done.left)
}

/// Returns all reasons, the decisive one first, or the reason for the mode.
fn why(report: &RemovalReport) -> Option<String> {
    match report.reasons.is_empty() {
        true => (report.reason.as_ref().map(Cause::to_string)).or_else(|| report.why_mode.clone()),
        false => Some(every_reason(&report.reasons)),
    }
}

/// Returns the sessions that keep the middlebox because their removal could not be tried.
fn left(left: &[LeftReport]) -> String {
    let reported = left
        .iter()
        .map(|l| format!("\n{} left: {}", l.sessions, l.reason));
    reported.collect()
}

fn sum(summary: &Summary, dry_run: bool) -> String {
    let Summary {
        removed,
        refused,
        rolled_back,
        lost,
        pending,
        unconfirmed,
        ..
    } = summary;
    if dry_run {
        let least = summary.at_least_ms.map(Duration::from_millis);
        let least = least.map_or(String::new(), |t| format!("; {}", time::at_least(t)));
        return format!("{removed} {REMOVABLE}, {refused} refused{least}; nothing was changed");
    }
    let mut text = format!(
        "{removed} removed, {refused} refused, {rolled_back} rolled back, {pending} pending"
    );
    if *lost > 0 {
        text += &format!(", {lost} lost");
    }
    if *unconfirmed > 0 {
        text += &format!(", {unconfirmed} unconfirmed");
    }
    if let (Some(p50), Some(p99)) = (summary.p50_us, summary.p99_us) {
        text += &format!(
            "; to the new path in {} (median), {} (99 %)",
            micros(p50),
            micros(p99)
        );
    }
    text
}

fn outcome(outcome: Outcome, dry_run: bool) -> &'static str {
    match outcome {
        Outcome::Removed if dry_run => REMOVABLE,
        Outcome::Removed => "removed",
        Outcome::Refused => "refused",
        Outcome::RolledBack => "rolled back",
        Outcome::Lost => "lost",
        Outcome::Pending => "pending",
        Outcome::Unconfirmed => "unconfirmed",
    }
}
