//! State that all roles share: time, queues, locks and the repetition of messages.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::command::{Action, Command, Journal};
use super::message::{Message, Order};
use super::names::{ChangeId, HostId, Subsession};
use super::reason::Reason;
use super::record::{Record, RoleRecord};
use super::report::{Progress, Report, Role};
use super::segment::Segments;
use super::transmits::Transmits;

/// Time since a moment that the caller chooses. It never decreases.
pub type Time = Duration;

/// Limits on the changes of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of simultaneous changes.
    pub changes: usize,
    /// Maximum number of simultaneous changes that one peer began.
    pub per_peer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            changes: 65_536,
            per_peer: 16_384,
        }
    }
}

/// Counters of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Changes under way, in all roles.
    pub changes: usize,
    /// Messages from peers that are not allowed to send them.
    pub violations: u64,
    /// Messages and events that arrived twice, too late, or about something unknown.
    pub stale: u64,
    /// Messages that this host repeated.
    pub repeated: u64,
    /// Requests refused because of the limits.
    pub busy: u64,
}

/// First and longest wait before a message is repeated.
const REPEAT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// A message that is repeated until it is answered.
#[derive(Clone, Hash, Debug)]
struct Pending {
    to: HostId,
    message: Message,
    next: Time,
    wait: Duration,
}

/// Deadline and repeated messages of a change.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Timing {
    pending: Vec<Pending>,
    deadline: Option<Time>,
    /// Time for which the machine's timer set has an entry of this change.
    pub due: Option<Time>,
}

impl Timing {
    /// Returns true if a message is repeated until it is answered.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns true if a message to this host was sent more than once and is still unanswered.
    pub(crate) fn repeats_to(&self, host: HostId) -> bool {
        let repeated = |p: &Pending| p.to == host && p.wait > REPEAT.0;
        self.pending.iter().any(repeated)
    }

    pub(crate) fn next(&self) -> Option<Time> {
        let pending = self.pending.iter().map(|p| p.next).min();
        [pending, self.deadline].into_iter().flatten().min()
    }
}

/// State of the machine without its changes.
#[derive(Clone, Default)]
pub(super) struct Core {
    pub addresses: Vec<HostId>,
    pub locks: BTreeMap<Subsession, ChangeId>,
    /// Locked parts of each session's chain, on a host that decides about chains.
    pub segments: Segments,
    pub transmits: Transmits,
    pub commands: VecDeque<Command>,
    pub reports: VecDeque<Report>,
    pub stats: Stats,
}

impl Core {
    pub(crate) fn is_me(&self, host: HostId) -> bool {
        self.addresses.contains(&host)
    }
}

/// Continuation of a change after an input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    /// Forgets the change, except for its outcome.
    End(Result<(), Reason>),
}

/// Access of one change to the machine during one input.
pub(super) struct Context<'a> {
    pub now: Time,
    pub change: ChangeId,
    pub core: &'a mut Core,
    pub timing: &'a mut Timing,
    /// Number of the first message that this input sends.
    pub first_message: u64,
}

impl Context<'_> {
    /// Sends a message once: an answer, or a message that nobody waits for.
    pub(crate) fn say(&mut self, to: HostId, message: Message) {
        self.core.transmits.push(to, message);
    }

    /// Sends a message, and repeats it until [`Context::drop_pending`].
    pub(crate) fn send_reliably(&mut self, to: HostId, message: Message) {
        self.say(to, message.clone());
        self.timing.pending.push(Pending {
            to,
            message,
            next: self.now + REPEAT.0,
            wait: REPEAT.0,
        });
    }

    /// Stops all repetition.
    pub(crate) fn drop_pending(&mut self) {
        self.timing.pending.clear();
    }

    /// Stops the repetition to one host. Returns true if nothing is repeated any more.
    pub(crate) fn drop_pending_to(&mut self, host: HostId) -> bool {
        self.timing.pending.retain(|p| p.to != host);
        self.timing.pending.is_empty()
    }

    /// Returns true if a message is being repeated.
    pub(crate) fn has_pending(&self) -> bool {
        self.timing.has_pending()
    }

    /// Sets the time of the next call if no event comes before.
    pub(crate) fn deadline(&mut self, after: Duration) {
        self.timing.deadline = Some(self.now + after);
    }

    pub(crate) fn no_deadline(&mut self) {
        self.timing.deadline = None;
    }

    pub(crate) fn command(&mut self, action: impl Into<Action>) {
        let command = Command::new(self.change, action);
        self.core.commands.push_back(command);
    }

    pub(crate) fn persist(&mut self, role: RoleRecord) {
        let change = self.change;
        self.core.transmits.precede(change, self.first_message);
        let record = Record { change, role }.encode();
        self.command(Journal::Persist { record });
    }

    /// Removes the record of the change.
    pub(crate) fn erase(&mut self) {
        self.command(Journal::Erase);
    }

    /// Removes the commands of this change that were not fetched yet, and the messages that depend
    /// on its last record. Messages of earlier inputs leave as if they had been fetched before.
    pub(crate) fn purge(&mut self) {
        let change = self.change;
        self.core.commands.retain(|c| c.change != change);
        self.core.transmits.purge(change);
        self.drop_pending();
    }

    pub(crate) fn report(&mut self, role: Role, subsession: Subsession, progress: Progress) {
        self.core.reports.push_back(Report::Progress {
            change: self.change,
            role,
            subsession,
            progress,
        });
    }

    pub(crate) fn trouble(&mut self, reason: Reason) {
        self.core.reports.push_back(Report::Trouble {
            change: self.change,
            reason,
        });
    }

    /// Locks the whole session for this change.
    pub(crate) fn lock(&mut self, subsession: Subsession) -> Result<(), Reason> {
        if let Some(other) = self.core.segments.of(&subsession).next() {
            return Err(Reason::LockedByAnother(other));
        }
        match self.core.locks.get(&subsession) {
            Some(&other) if other != self.change => Err(Reason::LockedByAnother(other)),
            _ => {
                self.core.locks.insert(subsession, self.change);
                Ok(())
            }
        }
    }

    pub(crate) fn unlock(&mut self, subsession: Subsession) {
        if self.core.locks.get(&subsession) == Some(&self.change) {
            self.core.locks.remove(&subsession);
        }
    }

    /// Unlocks the sessions of a change, tells the result to the host that asked for it, and ends the
    /// change.
    pub(crate) fn finish(
        &mut self,
        sessions: [Option<Subsession>; 2],
        asker: Option<HostId>,
        result: Result<(), Reason>,
    ) -> Flow {
        for session in sessions.into_iter().flatten() {
            self.unlock(session);
        }
        if let Some(asker) = asker {
            let (change, result) = (self.change, result.clone());
            self.say(asker, Message::Asked { change, result });
        }
        Flow::End(result)
    }

    /// Locks the segment of a session's chain that an order concerns.
    pub(crate) fn lock_segment(&mut self, order: &Order) -> Result<(), Reason> {
        match self.core.locks.get(&order.session) {
            Some(&other) => Err(Reason::LockedByAnother(other)),
            None => self.core.segments.lock(self.change, order),
        }
    }

    pub(crate) fn unlock_segment(&mut self, session: &Subsession) {
        self.core.segments.unlock(self.change, session);
    }

    pub(crate) fn stale(&mut self) -> Flow {
        self.core.stats.stale += 1;
        Flow::On
    }

    /// Repeats all messages that are insisted on, due or not.
    pub(crate) fn repeat(&mut self) {
        for p in &self.timing.pending {
            self.core.transmits.push(p.to, p.message.clone());
            self.core.stats.repeated += 1;
        }
    }

    /// Makes the messages due at once that this host has not answered after a repetition.
    pub(crate) fn hurry(&mut self, host: HostId) {
        let now = self.now;
        let in_vain = self.timing.pending.iter_mut();
        let in_vain = in_vain.filter(|p| p.to == host && p.wait > REPEAT.0);
        in_vain.for_each(|p| p.next = now);
    }

    /// Repeats the messages that are due. Returns true if the deadline has passed.
    pub(crate) fn tick(&mut self) -> bool {
        for p in &mut self.timing.pending {
            if p.next <= self.now {
                self.core.transmits.push(p.to, p.message.clone());
                self.core.stats.repeated += 1;
                p.wait = (p.wait * 2).min(REPEAT.1);
                p.next = self.now + p.wait;
            }
        }
        let passed = self.timing.deadline.is_some_and(|d| d <= self.now);
        if passed {
            self.timing.deadline = None;
        }
        passed
    }
}
