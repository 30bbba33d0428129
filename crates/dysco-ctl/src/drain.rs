//! `dyscoctl drain`: removes a proxy from all its sessions as they become removable.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dysco_api::{
    ChangeRate, ClientError, Exit, FailureCode, Filter, HeldReport, HostName, Outcome, ProcessName,
    ProxyReport, Removable, RemovalReport, Remove, Reply, Request, SessionId, SessionName,
};
use dysco_explain::{Cause, tame, tame_lines};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::context::{Context, print_line};
use super::drain_report::{Left, State, reasons, text};
use super::exit::CliError;
use super::output::Format;
use super::time;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest time that a daemon may watch or remove, with a reserve.
const LONGEST: Duration = Duration::from_secs(660);
/// Maximum number of sessions in one request, because the length of a line is limited.
const AT_ONCE: usize = 2_000;

/// Arguments of `drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The proxy: a unit (haproxy.service), a pid, a listener (:8080) or a name
    /// (haproxy)
    proxy: ProcessName,

    /// Give up after this time, such as 30s, 10m or 2h, with exit code 7 [default: no limit]
    #[arg(long, value_parser = time::drain, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Begin at most N changes in any second [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rate: Option<ChangeRate>,

    /// Print what would be removed, and the reasons for the rest; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Declare that this proxy only passes bytes on from now on. Needed where dyscod cannot see it,
    /// as for a proxy without the shim
    #[arg(long)]
    transparent: bool,
}

/// A drain in progress.
struct Drain<'a> {
    context: &'a Context,
    args: &'a Args,
    begun: Instant,
    removed: usize,
    /// Reasons for the sessions whose removal was tried and failed.
    refused: HashMap<(SocketAddr, SocketAddr), Cause>,
    bar: ProgressBar,
    reported: String,
}

/// Removes a proxy from all its sessions.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, CliError> {
    let context = context.for_process(&args.proxy)?;
    let mut drain = Drain {
        context: &context,
        args,
        begun: Instant::now(),
        removed: 0,
        refused: HashMap::new(),
        bar: bar(context.format),
        reported: String::new(),
    };
    let mut seen = false;
    loop {
        let held = match drain.held() {
            Ok(held) => held.sessions,
            // The proxy existed before, so it has ended by itself and holds nothing.
            Err(CliError::Client(error)) if seen && not_found(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        seen = true;
        if held.is_empty() {
            return drain.end(&[], 0, Exit::Done);
        }
        let (removable, left) = drain.judge(held)?;
        if args.dry_run {
            let exit = if left.is_empty() {
                Exit::Done
            } else {
                Exit::Refused
            };
            return drain.end(&left, removable.len(), exit);
        }
        drain.tell(&left, removable.len())?;
        let before = drain.removed;
        let mut rest = removable.as_slice();
        while !rest.is_empty() && !drain.over() {
            let some = rest.split_off(..drain.at_once().min(rest.len()));
            drain.remove(some.unwrap_or_default())?;
            if args.rate.is_some() {
                break;
            }
        }
        if drain.over() {
            let held = drain.left_over(left)?;
            let exit = if held.is_empty() {
                Exit::Done
            } else {
                Exit::Left
            };
            return drain.end(&held, 0, exit);
        }
        if drain.removed == before {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Time after which a drain with a rate looks again at what the proxy holds.
const SLICE: Duration = Duration::from_secs(5);

/// Returns the number of sessions of one request. With a rate, they begin within the time left.
fn at_once(rate: Option<ChangeRate>, time_left: Option<Duration>) -> usize {
    let Some(rate) = rate else { return AT_ONCE };
    let time = time_left.map_or(SLICE, |left| left.min(SLICE));
    let sessions = time.as_secs_f64() * f64::from(rate.per_second());
    (sessions as usize).clamp(1, AT_ONCE)
}

impl Drain<'_> {
    fn at_once(&self) -> usize {
        at_once(self.args.rate, self.time_left())
    }

    fn time_left(&self) -> Option<Duration> {
        let timeout = self.args.timeout?;
        Some(timeout.saturating_sub(self.begun.elapsed()))
    }

    fn over(&self) -> bool {
        self.args.timeout.is_some_and(|t| self.begun.elapsed() >= t)
    }

    /// Returns the sessions that the proxy holds now.
    fn held(&self) -> Result<ProxyReport, CliError> {
        let process = self.args.proxy.clone();
        let mut client = self.context.ask(&Request::Proxy { process })?;
        client.set_patience(Some(LONGEST))?;
        match client.reply()? {
            Reply::Proxy(report) => Ok(*report),
            _ => Err(CliError::Unexpected),
        }
    }

    /// Returns those of these sessions that could be removed now, and the others with their reasons.
    fn judge(&self, held: Vec<HeldReport>) -> Result<(Vec<SessionId>, Vec<Left>), CliError> {
        let judged = self.ask(Remove {
            all: true,
            dry_run: true,
            process: Some(self.args.proxy.clone()),
            ..self.request()
        });
        let judged = match judged {
            Err(CliError::Client(error)) if not_found(&error) => Vec::new(),
            other => other?,
        };
        // Sessions that opened meanwhile are handled by the next look.
        let verdicts: HashMap<_, _> = judged.iter().map(|r| (r.session, r)).collect();
        let mut removable = Vec::new();
        let mut rest = Vec::new();
        for session in held {
            let verdict = session.session.and_then(|id| verdicts.get(&id));
            match verdict {
                Some(r) if r.outcome == Outcome::Removed => removable.push(r.session),
                Some(r) if r.reasons.is_empty() => {
                    rest.push((session, r.reason.clone().into_iter().collect()));
                }
                Some(r) => rest.push((session, r.reasons.clone())),
                // It has ended meanwhile.
                None if matches!(session.removable, Removable::Yes) => {}
                None => rest.push((session, Vec::new())),
            }
        }
        let why = |s: HeldReport, reasons: Vec<Cause>| {
            let known = match &s.removable {
                Removable::No { reason, reasons } if reasons.is_empty() => vec![reason.clone()],
                Removable::No { reasons, .. } => reasons.clone(),
                Removable::Yes => Vec::new(),
            };
            left(s, if reasons.is_empty() { known } else { reasons })
        };
        let rest = rest.into_iter().map(|(s, reasons)| why(s, reasons));
        Ok((removable, rest.collect()))
    }

    /// Returns the sessions that are held at the time limit, with the last known reasons.
    fn left_over(&self, known: Vec<Left>) -> Result<Vec<Left>, CliError> {
        let held = match self.held() {
            Err(CliError::Client(error)) if not_found(&error) => return Ok(Vec::new()),
            held => held?,
        };
        let known: HashMap<_, _> = (known.into_iter())
            .map(|k| ((k.local, k.remote), k.reasons))
            .collect();
        let left = held.sessions.into_iter().map(|s| {
            let name = (s.local, s.remote);
            // Some obstacles show only when a removal is tried.
            let tried = || self.refused.get(&name).map(|reason| vec![reason.clone()]);
            let reasons = known.get(&name).cloned().or_else(tried);
            let late = || vec!["the time ran out before its turn".into()];
            left(s, reasons.unwrap_or_else(late))
        });
        Ok(left.collect())
    }

    /// Removes these sessions.
    fn remove(&mut self, some: &[SessionId]) -> Result<(), CliError> {
        let ask = self.ask(Remove {
            sessions: some.iter().map(|id| SessionName::Id(*id)).collect(),
            ..self.request()
        });
        let done = match ask {
            // A session has ended meanwhile.
            Err(CliError::Client(error)) if not_found(&error) => return Ok(()),
            other => other?,
        };
        if let Some(rate) = self.args.rate {
            // The rate also holds from one request to the next: the last change has begun by now.
            std::thread::sleep(rate.between_turns());
        }
        for report in done {
            let name = (report.local, report.remote);
            match (report.outcome, report.reason) {
                (Outcome::Removed, _) => self.removed += 1,
                // The last try may time out, which is less informative than an earlier reason.
                (_, Some(reason)) if report.timed_out => {
                    self.refused.entry(name).or_insert(reason);
                }
                (_, Some(reason)) => {
                    self.refused.insert(name, reason);
                }
                (_, None) => {}
            }
        }
        Ok(())
    }

    fn request(&self) -> Remove {
        let rest = self.time_left();
        let rest = rest.map(|left| (left.as_millis() as u64).clamp(100, 600_000));
        Remove {
            host: HostName::This,
            sessions: Vec::new(),
            all: false,
            filter: Filter::default(),
            dry_run: false,
            timeout_ms: rest,
            mode: None,
            process: None,
            transparent: self.args.transparent,
            rate: self.args.rate,
        }
    }

    fn ask(&self, request: Remove) -> Result<Vec<RemovalReport>, CliError> {
        let mut client = self.context.ask(&Request::Remove(request))?;
        client.set_patience(Some(LONGEST))?;
        let mut reports = Vec::new();
        loop {
            match client.reply()? {
                Reply::Accepted { .. } => {}
                Reply::Removal(report) => reports.push(report),
                Reply::Done { .. } => return Ok(reports),
                _ => return Err(CliError::Unexpected),
            }
        }
    }

    /// Reports the progress if it has changed.
    fn tell(&mut self, left: &[Left], removable: usize) -> Result<(), CliError> {
        let all = left.len() + removable;
        match self.context.format {
            Format::Json => {
                let state = self.state("progress", left, all);
                let line = serde_json::to_string(&state)?;
                if line != self.reported {
                    print_line(&line)?;
                    self.reported = line;
                }
            }
            Format::Table => {
                let why = reasons(left);
                let first = why.first().map(|r| format!("; {}", r.short()));
                let first = first.unwrap_or_default();
                let message = format!("{} removed, {all} left{first}", self.removed);
                self.bar.set_message(tame(&message));
            }
        }
        Ok(())
    }

    fn state(&self, event: &'static str, left: &[Left], all: usize) -> State {
        State {
            event,
            left: all,
            removed: self.removed,
            removable: None,
            at_least_ms: None,
            reasons: reasons(left),
            sessions: Vec::new(),
        }
    }

    fn end(&self, left: &[Left], removable: usize, exit: Exit) -> Result<Exit, CliError> {
        self.bar.finish_and_clear();
        let dry = self.args.dry_run;
        let rate = self.args.rate.filter(|_| dry);
        let least = rate.map(|rate| rate.least(removable));
        let state = State {
            removable: dry.then_some(removable),
            at_least_ms: least.map(|t| t.as_millis() as u64),
            sessions: left.to_vec(),
            ..self.state("end", left, left.len() + removable)
        };
        match self.context.format {
            Format::Json => print_line(&serde_json::to_string(&json!(state))?)?,
            Format::Table => print_line(&tame_lines(&text(&state, &self.args.proxy)))?,
        }
        Ok(exit)
    }
}

fn left(session: HeldReport, reasons: Vec<Cause>) -> Left {
    Left {
        local: session.local,
        remote: session.remote,
        session: session.session,
        label: session.label,
        reason: reasons.first().cloned().unwrap_or_default(),
        reasons,
    }
}

fn not_found(error: &ClientError) -> bool {
    error.code() == Some(FailureCode::NotFound)
}

/// Returns a line that updates on a terminal, and is hidden elsewhere.
fn bar(format: Format) -> ProgressBar {
    let bar = match format {
        Format::Table => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
        Format::Json => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}: {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
