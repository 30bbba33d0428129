//! State that outlives the daemon, and small memories of the engine.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dysco_config::{PortRange, private};
use dysco_proto::ChangeId;

use super::clock::boot_time;
use super::error::EngineError;
use super::journal::Journal;

/// Time after which a route is looked up again.
const ROUTE_AGE: Duration = Duration::from_secs(1);

/// Directory of records, and the engine's memory.
pub(super) struct StateDir {
    journal: Journal,
    /// Changes that are over but may still be reported, and the time since which each had a record.
    over: HashMap<ChangeId, u64>,
    /// True if the last attempt to write which changes are over has failed, which is reported once.
    flush_failed: bool,
    next_port: u16,
    routes: HashMap<(IpAddr, IpAddr), (u32, Instant)>,
    /// Number of messages that did not decode.
    pub malformed: u64,
}

impl StateDir {
    /// Opens the directory, for root alone.
    pub(super) fn open(dir: &Path) -> Result<StateDir, EngineError> {
        private::make_dir(dir).map_err(|source| EngineError::StateDir {
            path: dir.to_owned(),
            source,
        })?;
        let path = dir.join("changes");
        let journal =
            Journal::open(&path).map_err(|source| EngineError::Journal { path, source })?;
        Ok(StateDir {
            journal,
            over: HashMap::new(),
            flush_failed: false,
            next_port: rand::random(),
            routes: HashMap::new(),
            malformed: 0,
        })
    }

    /// Writes a change's record, which outlives this process.
    pub(super) fn write(&mut self, change: ChangeId, record: &[u8]) -> io::Result<()> {
        let now = boot_time().as_nanos() as u64;
        self.journal.write([(change, record)], now)
    }

    /// Writes records together, ahead of the commands to write them. A failure is reported by the
    /// command.
    pub(super) fn write_ahead<'a>(&mut self, records: impl Iterator<Item = (ChangeId, &'a [u8])>) {
        let now = boot_time().as_nanos() as u64;
        if let Err(error) = self.journal.write(records, now) {
            tracing::debug!(%error, "records are written one by one");
        }
    }

    /// Writes which changes are over.
    pub(super) fn flush(&mut self) {
        let failed = self.journal.flush().err();
        if let Some(error) = failed.as_ref().filter(|_| !self.flush_failed) {
            let path = self.journal.path().display();
            tracing::warn!(%path, %error, "cannot remove records; this is tried again");
        }
        self.flush_failed = failed.is_some();
    }

    /// Returns the time since which this host has a record of a change, in nanoseconds of the clock
    /// with which the programs stamp sessions.
    pub(super) fn begun(&self, change: ChangeId) -> Option<u64> {
        let over = || self.over.get(&change).copied();
        self.journal.begun(change).or_else(over)
    }

    /// Forgets the changes that are over: nothing more is reported of them.
    pub(crate) fn forget_over(&mut self) {
        self.over.clear();
    }

    /// Removes a change's record. The next flush puts the removal into the file.
    pub(super) fn erase(&mut self, change: ChangeId) {
        let begun = self.journal.begun(change);
        self.over.extend(begun.map(|begun| (change, begun)));
        self.journal.erase(change);
    }

    /// Returns the records of a former process, and their path.
    pub(super) fn records(&self) -> (PathBuf, Vec<Vec<u8>>) {
        (self.journal.path().to_owned(), self.journal.records())
    }

    /// Returns the next source port to try.
    pub(crate) fn next_port(&mut self, ports: PortRange) -> u16 {
        let inside = self.next_port >= ports.first && self.next_port < ports.last;
        self.next_port = if inside {
            self.next_port + 1
        } else {
            ports.first
        };
        self.next_port
    }

    /// Returns the interface of a route that was looked up a moment ago.
    pub(super) fn route(&self, from: IpAddr, to: IpAddr) -> Option<u32> {
        let (ifindex, at) = self.routes.get(&(from, to))?;
        (at.elapsed() < ROUTE_AGE).then_some(*ifindex)
    }

    /// Remembers a route for a moment.
    pub(crate) fn keep_route(&mut self, from: IpAddr, to: IpAddr, ifindex: u32, now: Instant) {
        self.routes
            .retain(|_, (_, at)| now.duration_since(*at) < ROUTE_AGE);
        self.routes.insert((from, to), (ifindex, now));
    }
}
