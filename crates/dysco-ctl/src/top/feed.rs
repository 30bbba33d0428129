//! Inputs of `dyscoctl top`: a thread each for keys, listings, events and removals. The threads
//! end with the program.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use dysco_api::{
    Filter, HostName, Remove, Reply, Request, SessionId, SessionName, SessionReport, StatusReport,
};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::app::Input;
use crate::context::Context;
use crate::exit::CliError;
use crate::pages::Pages;
use crate::remove::LONGEST;

/// Factor by which the pause after a listing exceeds the listing's duration at least. A large
/// table takes long to list, and dyscod needs time for other work.
const IDLE: u32 = 4;
/// Time after which a daemon that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Requests the host's status and its sessions once.
pub(super) fn list(
    context: &Context,
    filter: &Filter,
) -> Result<(Box<StatusReport>, Vec<SessionReport>), CliError> {
    let Reply::Status(status) = context.ask(&Request::Status)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    Ok((status, Pages::new(context, filter.clone(), true).rest()?))
}

/// Starts a thread that lists repeatedly, and at once if the filter changes.
pub(super) fn listings(
    context: Arc<Context>,
    mut filter: Filter,
    period: Duration,
    filters: Receiver<Filter>,
    inputs: SyncSender<Input>,
) {
    let start = Instant::now();
    thread::spawn(move || {
        loop {
            let begun = Instant::now();
            let input = match list(&context, &filter) {
                Ok((status, sessions)) => Input::Listed(start.elapsed(), status, sessions),
                Err(error) => Input::Lost(error.to_string()),
            };
            if inputs.send(input).is_err() {
                return;
            }
            match filters.recv_timeout(period.max(begun.elapsed() * IDLE)) {
                Ok(wanted) => filter = wanted,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

/// Starts a thread that reports events, and reconnects after a restart of the daemon.
pub(super) fn events(context: Arc<Context>, inputs: SyncSender<Input>) {
    thread::spawn(move || {
        let tell = || -> Result<(), CliError> {
            let mut client = context.ask(&Request::Monitor)?;
            client.set_patience(None)?;
            while let Reply::Event(event) = client.reply()? {
                if inputs.send(Input::Happened(event)).is_err() {
                    break;
                }
            }
            Ok(())
        };
        loop {
            // Listings report the reason why the daemon does not answer.
            drop(tell());
            thread::sleep(AGAIN);
        }
    });
}

/// Starts a thread that reports keys.
pub(super) fn keys(inputs: SyncSender<Input>) {
    thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                // The terminal no longer exists, and neither does its user.
                Err(_) => Input::Key(event::KeyCode::Char('q').into()),
            };
            if inputs.send(input).is_err() {
                return;
            }
        }
    });
}

/// Starts a removal of this host's middlebox from a session, or from all that match.
pub(super) fn remove(
    context: Arc<Context>,
    session: Option<SessionId>,
    filter: Filter,
    inputs: SyncSender<Input>,
) {
    thread::spawn(move || {
        let end = removal(&context, session, filter);
        let _ = inputs.send(Input::Removal(
            end.unwrap_or_else(|error| error.to_string()),
        ));
    });
}

/// Returns the result of a removal, in a line.
fn removal(
    context: &Context,
    session: Option<SessionId>,
    filter: Filter,
) -> Result<String, CliError> {
    let mut client = context.ask(&Request::Remove(Remove {
        host: HostName::This,
        sessions: session.map(SessionName::Id).into_iter().collect(),
        all: session.is_none(),
        filter,
        dry_run: false,
        mode: None,
        timeout_ms: None,
        process: None,
        transparent: false,
        rate: None,
    }))?;
    client.set_patience(Some(LONGEST))?;
    let mut reason = None;
    loop {
        match client.reply()? {
            Reply::Removal(report) => reason = report.reason.or(reason),
            Reply::ChainUpdated(report) => reason = report.reason.or(reason),
            Reply::Accepted { .. } => {}
            Reply::Done { summary } => {
                let done = summary.unwrap_or_default();
                let counts = [
                    (done.removed, "removed"),
                    (done.refused, "refused"),
                    (done.rolled_back, "rolled back"),
                    (done.lost, "lost"),
                    (done.pending, "pending"),
                    (done.unconfirmed, "unconfirmed"),
                ];
                let reported = counts.iter().filter(|(count, _)| *count > 0);
                let reported: Vec<_> = reported
                    .map(|(count, word)| format!("{count} {word}"))
                    .collect();
                let reported = match reported.is_empty() {
                    true => "no session that matches can be removed".to_owned(),
                    false => reported.join(", "),
                };
                return Ok(
                    reason.map_or(reported.clone(), |reason| format!("{reported}: {reason}"))
                );
            }
            _ => return Err(CliError::Unexpected),
        }
    }
}
