//! The machine.

use std::time::Duration;

use super::command::{Command, HostEvent, Report};
use super::message::{ChangeId, HostId, Message, Subsession};
use super::reason::Reason;

/// Time since a moment of the caller's choice; never goes back.
pub type Time = Duration;

/// Counts of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Changes under way, all roles.
    pub changes: usize,
    /// Messages from peers that may not say them.
    pub violations: u64,
    /// Messages that came twice, too late, or for nothing known.
    pub stale: u64,
}

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Truncated, garbage or of another release.
    #[error("restoring a change: its record is unreadable: {0}")]
    Malformed(String),
    /// Twice the same.
    #[error("restoring change {0}: it is under way already")]
    Duplicate(ChangeId),
}

/// The protocol on one host.
pub struct Machine {}

#[allow(missing_docs, unused_variables)]
impl Machine {
    /// `addresses` are all of this host's; `new_id` gives 16 fresh random bytes.
    pub fn new(addresses: Vec<HostId>, new_id: impl FnMut() -> [u8; 16] + Send + 'static) -> Self {
        Machine {}
    }
    /// The middlebox on this host shall leave session A.
    pub fn request_leave(&mut self, now: Time, a: Subsession) -> Result<ChangeId, Reason> {
        Err(Reason::Closing)
    }
    /// The middlebox on `host` shall leave its session A.
    pub fn request_ask(
        &mut self,
        now: Time,
        host: HostId,
        a: Subsession,
    ) -> Result<ChangeId, Reason> {
        Err(Reason::Closing)
    }
    /// Give a change up, if that is still possible: the end is reported.
    pub fn cancel(&mut self, now: Time, change: ChangeId) {}
    /// `from`: all addresses that the peer's certificate names.
    pub fn handle_message(&mut self, now: Time, from: &[HostId], message: Message) {}
    pub fn handle_event(&mut self, now: Time, event: HostEvent) {}
    pub fn handle_timeout(&mut self, now: Time) {}
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    /// Carry all commands out before polling for messages.
    pub fn poll_command(&mut self) -> Option<Command> {
        None
    }
    pub fn poll_transmit(&mut self) -> Option<(HostId, Message)> {
        None
    }
    pub fn poll_report(&mut self) -> Option<Report> {
        None
    }
    /// Take up a change that a former process recorded.
    pub fn restore(&mut self, now: Time, record: &[u8]) -> Result<ChangeId, RecordError> {
        Err(RecordError::Malformed(String::new()))
    }
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
