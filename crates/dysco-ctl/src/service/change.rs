//! `dyscoctl service put` and `take`.

use std::time::Duration;

use dysco_api::{
    Exit, Filter, Reply, Request, ServiceAction, ServiceOutcome, ServiceReport, ServiceRequest,
    ServiceSpec, SessionName, SocketOwner,
};
use dysco_explain::Cause;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Word, delta, services};
use crate::context::Context;
use crate::exit::CliError;
use crate::output::{every_reason, or_dash, rename_outcomes, rendered, table};
use crate::time;

/// Time limit for a result besides the time that the user waits: all processes of the host are
/// searched for the sockets.
const LONGEST: Duration = Duration::from_secs(60);
/// Outcome of a dry run for a session that could be changed.
const POSSIBLE: &str = "possible";
/// Hint if no session was found.
pub(crate) const NONE: &str = "no session that matches is known here; see 'dyscoctl sessions'";
pub(crate) const NONE_TO_TAKE: &str =
    "no session that matches has services; see 'dyscoctl service list' for those that do";

/// Arguments of `service put`.
#[derive(Debug, clap::Args)]
pub(super) struct PutArgs {
    /// Services as +NAME or +NAME=KEY=VALUE,KEY=VALUE, in order from the end that opened the
    /// session; and sessions: their ids, or LOCAL>REMOTE
    #[arg(required = true, value_name = "+SERVICE|SESSION")]
    words: Vec<Word>,

    #[command(flatten)]
    common: Common,
}

/// Arguments of `service take`.
#[derive(Debug, clap::Args)]
pub(super) struct TakeArgs {
    /// Services as +NAME, or none for all of a session; and sessions: their ids, or LOCAL>REMOTE
    #[arg(value_name = "+SERVICE|SESSION")]
    words: Vec<Word>,

    #[command(flatten)]
    common: Common,
}

/// Arguments of both.
#[derive(Debug, clap::Args)]
struct Common {
    /// All sessions
    #[arg(long, conflicts_with = "filters")]
    all: bool,

    /// Sessions that match, such as port=443: see below; may be repeated
    #[arg(long = "filter", value_name = "FILTER")]
    filters: Vec<Filter>,

    /// Print what would be done, and all reasons of refusals; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Wait for the end of each change, for at most this time, such as 10s [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = time::change, num_args = 0..=1,
          require_equals = true, default_missing_value = "60s")]
    wait: Option<Duration>,
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Done {
    pub dry_run: bool,
    pub accepted: usize,
    pub sessions: Vec<ServiceReport>,
    pub summary: Summary,
    /// Hint, if no session was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

/// Numbers of sessions by outcome.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    put: usize,
    taken: usize,
    entering: usize,
    leaving: usize,
    unchanged: usize,
    refused: usize,
}

/// Puts services into sessions.
pub(super) fn put(context: &Context, args: PutArgs) -> Result<Exit, CliError> {
    ask(context, args.request().map_err(CliError::Usage)?, NONE)
}

/// Takes services out of sessions.
pub(super) fn take(context: &Context, args: TakeArgs) -> Result<Exit, CliError> {
    let request = args.request().map_err(CliError::Usage)?;
    ask(context, request, NONE_TO_TAKE)
}

/// Tells services and sessions apart.
fn apart(words: Vec<Word>) -> (Vec<ServiceSpec>, Vec<SessionName>) {
    let (mut services, mut sessions) = (Vec::new(), Vec::new());
    for word in words {
        match word {
            Word::Service(spec) => services.push(spec),
            Word::Session(name) => sessions.push(name),
        }
    }
    (services, sessions)
}

impl PutArgs {
    /// Returns the request. It has services, and the sessions are selected in one way.
    pub(super) fn request(self) -> Result<ServiceRequest, Cause> {
        let (services, sessions) = apart(self.words);
        if services.is_empty() {
            return Err(Cause::new("no service is named").hint("write it as +NAME"));
        }
        let action = ServiceAction::Put {
            services,
            beside_hosts: false,
        };
        self.common.request(action, sessions)
    }
}

impl TakeArgs {
    /// Returns the request. The sessions are selected in one way.
    pub(super) fn request(self) -> Result<ServiceRequest, Cause> {
        let (services, sessions) = apart(self.words);
        let action = match services.is_empty() {
            true => ServiceAction::Take,
            false => part(services)?,
        };
        self.common.request(action, sessions)
    }
}

/// Checks that a service that leaves is named without arguments.
///
/// # Errors
/// If it has some.
pub(crate) fn bare(service: &ServiceSpec) -> Result<(), Cause> {
    match service.arguments.is_empty() {
        true => Ok(()),
        false => Err(
            Cause::new("a service that leaves is named without arguments")
                .hint(format!("write +{}", service.name)),
        ),
    }
}

/// Returns the action by which these services leave.
///
/// # Errors
/// If one is named with arguments.
pub(crate) fn part(services: Vec<ServiceSpec>) -> Result<ServiceAction, Cause> {
    services.iter().try_for_each(bare)?;
    Ok(ServiceAction::Part {
        services: services.into_iter().map(|spec| spec.name).collect(),
    })
}

impl Common {
    /// Returns true if an option selects sessions.
    fn selects(&self) -> bool {
        self.all || !self.filters.is_empty()
    }

    /// Returns the request. The sessions are selected in one way.
    fn request(
        self,
        action: ServiceAction,
        sessions: Vec<SessionName>,
    ) -> Result<ServiceRequest, Cause> {
        let no = |why| Err(Cause::new(why).hint("name sessions, or use --filter or --all"));
        match (sessions.is_empty(), self.selects()) {
            (true, false) => return no("no session is selected"),
            (false, true) => return no("sessions are named, and selected by an option as well"),
            (true, true) | (false, false) => {}
        }
        Ok(ServiceRequest {
            sessions,
            all: self.selects(),
            filter: self.filters.into_iter().collect(),
            action,
            dry_run: self.dry_run,
            wait_ms: self.wait.map(|time| time.as_millis() as u64),
        })
    }
}

/// Sends a request and prints the result. `none` is the hint if no session was found.
pub(crate) fn ask(
    context: &Context,
    request: ServiceRequest,
    none: &'static str,
) -> Result<Exit, CliError> {
    let waited = request.wait_ms.is_some();
    let mut done = carry_out(context, request)?;
    done.hint = (done.accepted == 0).then_some(none);
    context.print(&json(&done)?, |_| text(&done))?;
    Ok(exit(&done.summary, waited))
}

/// Sends a request, and returns its result.
pub(crate) fn carry_out(context: &Context, request: ServiceRequest) -> Result<Done, CliError> {
    let (dry_run, wait) = (request.dry_run, request.wait_ms.map(Duration::from_millis));
    let mut client = context.ask(&Request::Service(request))?;
    client.set_patience(Some(wait.unwrap_or_default() + LONGEST))?;
    let mut done = Done {
        dry_run,
        ..Done::default()
    };
    loop {
        match client.reply()? {
            Reply::Accepted { sessions, .. } => done.accepted = sessions,
            Reply::Service(report) => done.add(report),
            Reply::Done { .. } => break,
            _ => return Err(CliError::Unexpected),
        }
    }
    Ok(done)
}

/// Returns the exit code. A change that goes on is expected unless its end was waited for.
pub(crate) fn exit(summary: &Summary, waited: bool) -> Exit {
    match summary {
        Summary {
            entering, leaving, ..
        } if waited && entering + leaving > 0 => Exit::TimedOut,
        Summary { refused: 0, .. } => Exit::Done,
        Summary { .. } => Exit::Refused,
    }
}

impl Done {
    pub(crate) fn add(&mut self, report: ServiceReport) {
        let count = match report.outcome {
            ServiceOutcome::Put => &mut self.summary.put,
            ServiceOutcome::Taken => &mut self.summary.taken,
            ServiceOutcome::Entering => &mut self.summary.entering,
            ServiceOutcome::Leaving => &mut self.summary.leaving,
            ServiceOutcome::Unchanged => &mut self.summary.unchanged,
            ServiceOutcome::Refused => &mut self.summary.refused,
        };
        *count += 1;
        self.sessions.push(report);
    }
}

/// Returns the result for programs. A dry run has its own outcomes.
pub(crate) fn json(done: &Done) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(done)?;
    if done.dry_run {
        for word in ["put", "taken"] {
            rename_outcomes(&mut value["sessions"], word, POSSIBLE);
        }
        let Summary {
            put,
            taken,
            unchanged,
            refused,
            ..
        } = &done.summary;
        value["summary"] = json!({
            POSSIBLE: put + taken, "unchanged": unchanged, "refused": refused,
        });
    }
    Ok(value)
}

pub(crate) fn text(done: &Done) -> String {
    if let Some(hint) = done.hint {
        return hint.into();
    }
    let mut rows = table([
        "ID", "LOCAL", "REMOTE", "PROCESS", "SERVICES", "OUTCOME", "TIME", "WHAT",
    ]);
    for report in &done.sessions {
        rows.add_row([
            report.session.to_string(),
            report.local.to_string(),
            report.remote.to_string(),
            or_dash(report.process.as_ref().map(SocketOwner::to_string)),
            or_dash(services(&report.services)),
            outcome(report.outcome, done.dry_run).into(),
            or_dash(report.millis.map(|ms| format!("{ms} ms"))),
            or_dash(what(report)),
        ]);
    }
    let sum = sum(&done.summary, done.dry_run);
    format!("{}\n\n{sum}", rendered(&rows))
}

/// Returns what the services have added to the session, and the reasons of a refusal.
fn what(report: &ServiceReport) -> Option<String> {
    let reasons = match report.reasons.as_slice() {
        [] => report.reason.as_slice(),
        reasons => reasons,
    };
    let reasons = (!reasons.is_empty()).then(|| every_reason(reasons));
    let added = report.delta.and_then(delta);
    let parts: Vec<String> = added.into_iter().chain(reasons).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn outcome(outcome: ServiceOutcome, dry_run: bool) -> &'static str {
    match outcome {
        ServiceOutcome::Put | ServiceOutcome::Taken if dry_run => POSSIBLE,
        ServiceOutcome::Put => "put",
        ServiceOutcome::Taken => "taken",
        ServiceOutcome::Entering => "entering",
        ServiceOutcome::Leaving => "leaving",
        ServiceOutcome::Unchanged => "unchanged",
        ServiceOutcome::Refused => "refused",
    }
}

/// Returns the numbers of outcomes. Those of changes are left out if they are zero.
fn sum(summary: &Summary, dry_run: bool) -> String {
    let Summary {
        put,
        taken,
        entering,
        leaving,
        unchanged,
        refused,
    } = summary;
    if dry_run {
        let possible = put + taken;
        return format!(
            "{possible} {POSSIBLE}, {unchanged} unchanged, {refused} refused; nothing was changed"
        );
    }
    let changes = [
        (put, "put"),
        (taken, "taken"),
        (entering, "entering"),
        (leaving, "leaving"),
    ];
    let mut parts: Vec<String> = changes
        .iter()
        .filter(|(count, _)| **count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    parts.push(format!("{unchanged} unchanged"));
    parts.push(format!("{refused} refused"));
    parts.join(", ")
}
