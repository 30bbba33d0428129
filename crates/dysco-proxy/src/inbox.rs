//! Queue of reports that were received on the shim's socket and not processed yet. Processing
//! takes some system calls a report, during which further reports arrive.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Running, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dysco_common::shim::Report;
use tracing::{debug, info, warn};

use super::error::Refused;
use super::lock;
use super::registry::Registry;
use super::reports;
use super::sender::Sender;
use super::sweep::Sweep;

/// Maximum number of waiting reports, about 2 MB. If the queue is full, the shims wait.
const ROOM: usize = 16_384;
/// Interval at which ended processes are noticed.
const TICK: Duration = Duration::from_millis(250);
/// Minimum interval between log messages about a full table.
const FULL_AGAIN: Duration = Duration::from_secs(60);

/// A received datagram.
pub(crate) enum Got {
    /// A report and its sender.
    Report(Sender, Report),
    /// A datagram that is no report.
    Malformed,
}

/// Sender to the thread that processes reports in the order of arrival. The thread ends when all
/// clones are dropped.
#[derive(Clone)]
pub(crate) struct Inbox(SyncSender<Got>);

impl Inbox {
    /// Starts the thread, which drops `running` when it ends.
    pub(crate) fn start(registry: Arc<Mutex<Registry>>, running: Running<()>) -> io::Result<Inbox> {
        let (inbox, waiting) = sync_channel(ROOM);
        std::thread::Builder::new()
            .name("shim-reports".into())
            .spawn(move || {
                run(&waiting, &registry);
                drop(running);
            })?;
        Ok(Inbox(inbox))
    }

    /// Queues a datagram, and waits while the queue is full. Returns false if the thread has
    /// ended.
    pub(crate) fn put(&self, got: Got) -> bool {
        self.0.send(got).is_ok()
    }
}

fn run(waiting: &Receiver<Got>, registry: &Mutex<Registry>) {
    let mut log = Log::default();
    let (mut sweep, mut swept) = (Sweep::default(), Instant::now());
    loop {
        match waiting.recv_timeout(TICK) {
            Ok(Got::Report(from, report)) => {
                if let Err(e) = reports::take(registry, from, &report) {
                    log.refused(from, &report, &e);
                }
            }
            Ok(Got::Malformed) => {
                lock(registry).stats.malformed += 1;
                log.malformed();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if swept.elapsed() >= TICK {
            sweep.go(registry);
            swept = Instant::now();
        }
    }
}

/// Record of the messages that were logged once, or are logged at intervals.
#[derive(Default)]
struct Log {
    malformed: bool,
    refused: bool,
    full: Option<Instant>,
}

impl Log {
    fn malformed(&mut self) {
        if !std::mem::replace(&mut self.malformed, true) {
            warn!(
                "a datagram on the shim's socket is ignored, because it is no report of this \
                 release's shim: restart its sender under this release's shim (others are only \
                 counted)"
            );
        }
    }

    fn refused(&mut self, from: Sender, r: &Report, e: &Refused) {
        let reported = match e {
            Refused::Descriptors(_) => std::mem::replace(&mut self.refused, true),
            Refused::Share { .. } | Refused::NoRoom => {
                let reported = self.full.is_some_and(|at| at.elapsed() < FULL_AGAIN);
                self.full = self
                    .full
                    .filter(|_| reported)
                    .or_else(|| Some(Instant::now()));
                reported
            }
        };
        let (pid, fd_in, fd_out) = (from.pid, r.fd_in, r.fd_out);
        if reported {
            debug!(pid, fd_in, fd_out, "report refused: {e}");
        } else {
            info!(
                pid,
                fd_in, fd_out, "a shim's report is ignored (others are only counted): {e}"
            );
        }
    }
}
