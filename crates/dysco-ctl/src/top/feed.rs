//! Where the inputs of `dyscoctl top` come from: a thread each for keys, listings, events and
//! removals, which end with the program.

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
use crate::remove::LONGEST;
use crate::sessions::Pages;

/// A large table takes long to list: dyscod has at least so much more time for other work.
const IDLE: u32 = 4;
/// A daemon that does not answer is asked again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// Asks for the host and its sessions once.
pub fn list(
    context: &Context,
    filter: &Filter,
) -> Result<(Box<StatusReport>, Vec<SessionReport>), CliError> {
    let Reply::Status(status) = context.ask(&Request::Status)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    Ok((status, Pages::new(context, filter.clone(), true).rest()?))
}

/// Lists again and again, and at once where another filter is wanted.
pub fn listings(
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

/// Tells what happens, also once a daemon is there anew.
pub fn events(context: Arc<Context>, inputs: SyncSender<Input>) {
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
            // Listings say why the daemon does not answer.
            drop(tell());
            thread::sleep(AGAIN);
        }
    });
}

/// Tells of keys.
pub fn keys(inputs: SyncSender<Input>) {
    thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                // The terminal is gone, and with it who looks at it.
                Err(_) => Input::Key(event::KeyCode::Char('q').into()),
            };
            if inputs.send(input).is_err() {
                return;
            }
        }
    });
}

/// Has the middlebox of this host removed from a session, or from all that match.
pub fn remove(
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

/// How a removal ended, in a line.
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
    }))?;
    client.set_patience(Some(LONGEST))?;
    let mut reason = None;
    loop {
        match client.reply()? {
            Reply::Removal(report) => reason = report.reason.or(reason),
            Reply::Rechained(report) => reason = report.reason.or(reason),
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
                let told = counts.iter().filter(|(count, _)| *count > 0);
                let told: Vec<_> = told
                    .map(|(count, word)| format!("{count} {word}"))
                    .collect();
                let told = match told.is_empty() {
                    true => "no session that matches can be removed".to_owned(),
                    false => told.join(", "),
                };
                return Ok(reason.map_or(told.clone(), |reason| format!("{told}: {reason}")));
            }
            _ => return Err(CliError::Unexpected),
        }
    }
}
