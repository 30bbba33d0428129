//! The machine: finds the change that an input belongs to, and keeps the clocks of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use dysco_common::chain::{Token, numbered};

use super::asker::Asker;
use super::authorise;
use super::command::{Action, Command, Journal};
use super::context::{Context, Core, Flow, Limits, Stats, Time, Timing};
use super::dsr::Dsr;
use super::event::HostEvent;
use super::head::Head;
use super::lead::Lead;
use super::left::Left;
use super::local::Local;
use super::message::{Message, Order};
use super::middle::Middle;
use super::names::{ChangeId, HostId, Subsession};
use super::part::Part;
use super::proof::Proof;
use super::reason::{Phase, Reason};
use super::record::{Record, RecordError, RoleRecord};
use super::report::{Report, Role, Violation};
use super::right::Right;
use super::strangers::{self, Outcome, Outcomes};
use super::tail::Tail;

mod begin;
mod forwarder;
mod restore;
mod routing;
mod timers;

pub use timers::{Timer, Waits};

/// Number of waiting reports above which violations are only counted.
const MAX_WAITING_REPORTS: usize = 4096;

#[derive(Clone, Hash, Debug)]
struct Entry {
    part: Part,
    timing: Timing,
    /// Peer whose message began the change, for the peer's share.
    beginner: Option<HostId>,
}

/// A change under way, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnderWay {
    /// The change.
    pub change: ChangeId,
    /// Role of this host.
    pub role: Role,
    /// Session of the change: A at the left and the middle, B at the right.
    pub subsession: Subsession,
    /// Second session that is locked here: B, if this host is both anchors or the relaying host.
    pub other: Option<Subsession>,
    /// Current phase of the change.
    pub phase: Phase,
    /// Host that asked for the change, if there is one.
    pub asker: Option<HostId>,
}

/// Source of identifiers. It is copied with its machine.
trait Ids: FnMut() -> [u8; 16] + Send + Sync {
    fn copy(&self) -> Box<dyn Ids>;
}

impl<F: FnMut() -> [u8; 16] + Clone + Send + Sync + 'static> Ids for F {
    fn copy(&self) -> Box<dyn Ids> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Ids> {
    fn clone(&self) -> Self {
        self.as_ref().copy()
    }
}

/// The protocol on one host, in all roles. After each input the caller fetches and carries out all
/// commands, then fetches and sends all messages, then fetches all reports. After a restart the
/// caller hands in all records before anything else.
#[derive(Clone)]
pub struct Machine {
    core: Core,
    limits: Limits,
    new_id: Box<dyn Ids>,
    changes: BTreeMap<ChangeId, Entry>,
    asks: BTreeMap<ChangeId, (Asker, Timing)>,
    shares: BTreeMap<HostId, usize>,
    asked_locally: bool,
    timers: BTreeSet<(Time, Timer)>,
    outcomes: Outcomes,
}

/// Hashes the state that later behaviour depends on, of a machine whose outputs have been fetched.
/// Counters and the source of identifiers are left out.
impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.core.addresses.hash(state);
        self.core.locks.hash(state);
        self.core.segments.hash(state);
        self.changes.hash(state);
        self.asks.hash(state);
        self.shares.hash(state);
        self.outcomes.hash(state);
    }
}

impl Machine {
    /// Creates a machine. `addresses` are all addresses of this host. `new_id` returns 16 new
    /// bytes, greater than all earlier ones, including those of former processes. The last eight
    /// bytes are random.
    pub fn new(
        addresses: Vec<HostId>,
        new_id: impl FnMut() -> [u8; 16] + Clone + Send + Sync + 'static,
    ) -> Self {
        Machine {
            core: Core {
                addresses,
                ..Core::default()
            },
            limits: Limits::default(),
            new_id: Box::new(new_id),
            changes: BTreeMap::new(),
            asks: BTreeMap::new(),
            shares: BTreeMap::new(),
            asked_locally: false,
            timers: BTreeSet::new(),
            outcomes: Outcomes::default(),
        }
    }

    /// Sets other limits than the default ones.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the addresses of this host.
    pub fn set_addresses(&mut self, addresses: Vec<HostId>) {
        self.core.addresses = addresses;
    }

    /// Asks that the middlebox on this host leave the session with this subsession.
    pub fn request_leave(&mut self, now: Time, a: Subsession) -> Result<ChangeId, Reason> {
        let change = ChangeId((self.new_id)());
        self.room(None)?;
        self.begin_middle(now, change, a, None)?;
        Ok(change)
    }

    /// Asks that the middlebox on this host leave, with this host as both anchors: its data plane
    /// relays in the place of the middlebox.
    pub fn request_local(&mut self, now: Time, a: Subsession) -> Result<ChangeId, Reason> {
        let change = ChangeId((self.new_id)());
        self.room(None)?;
        self.begin_local(now, change, a, None)?;
        Ok(change)
    }

    /// Asks the server's host to prove that its replies reach the client under this host's address.
    /// If this host relays the session already, the server's host then sends its replies so.
    pub fn request_return(
        &mut self,
        now: Time,
        subsession: Subsession,
    ) -> Result<ChangeId, Reason> {
        let change = ChangeId((self.new_id)());
        self.room(None)?;
        self.begin_proof(now, change, subsession)?;
        Ok(change)
    }

    /// Asks for another chain of a session that this host opened.
    pub fn request_chain(&mut self, now: Time, order: Order) -> Result<ChangeId, Reason> {
        let change = ChangeId((self.new_id)());
        self.room(None)?;
        let token = numbered(self.new_token(), order.number);
        let mut timing = Timing::default();
        let mut ctx = self.context(now, change, &mut timing);
        ctx.lock_segment(&order)?;
        let part = Part::Head(Head::start(&mut ctx, order, None, token));
        self.keep(change, part, timing, None);
        Ok(change)
    }

    fn new_token(&mut self) -> Token {
        std::array::from_fn(|_| u128::from_be_bytes((self.new_id)()) as u64)
    }

    /// Returns true if a change of the session is under way.
    pub fn is_changing(&self, session: &Subsession) -> bool {
        self.core.locks.contains_key(session) || self.core.segments.of(session).next().is_some()
    }

    /// Returns the phase of a change of this host, or `None` if the change has ended.
    pub fn phase_of(&self, change: ChangeId) -> Option<Phase> {
        self.changes.get(&change).map(|entry| entry.part.place().1)
    }

    /// Sets whether this host alone removes the middlebox when a neighbour asks.
    pub fn answer_asks_locally(&mut self, local: bool) {
        self.asked_locally = local;
    }

    /// Asks the middlebox on `host` to leave the session with this subsession to or from this host.
    pub fn request_ask(
        &mut self,
        now: Time,
        host: HostId,
        subsession: Subsession,
    ) -> Result<ChangeId, Reason> {
        if self.core.is_me(host) {
            return self.request_leave(now, subsession);
        }
        self.room(None)?;
        let change = ChangeId((self.new_id)());
        let mut timing = Timing::default();
        let asker = Asker::start(
            &mut self.context(now, change, &mut timing),
            host,
            subsession,
        );
        self.keep_ask(change, asker, timing);
        Ok(change)
    }

    /// Cancels a change if that is still possible. The end is reported.
    pub fn cancel(&mut self, now: Time, change: ChangeId) {
        if self.asks.contains_key(&change) {
            return self.with_ask(now, change, |ask, ctx| ask.cancel(ctx));
        }
        self.with(now, change, |part, ctx| part.cancel(ctx));
    }

    /// Handles a message. `from` contains all addresses that the peer's certificate names.
    pub fn handle_message(&mut self, now: Time, from: &[HostId], message: Message) {
        let change = message.change();
        if self.handle_ask_answer(now, from, &message) {
            return;
        }
        let asks = matches!(message, Message::Ask { .. });
        let judged = match self.changes.get(&change) {
            Some(entry) if entry.part.is_unspoken() && !asks => {
                return self.answer_unknown(from, &message);
            }
            Some(entry) => authorise::known(&entry.part, from, &message).map(Some),
            None => self.judge_stranger(from, &message).map(|()| None),
        };
        match (judged, from.first()) {
            // An anchor in the chain is a host that passes the session on as well.
            (Ok(Some(_)), Some(first)) if matches!(message, Message::AskDelta { .. }) => {
                self.forward(*first, message);
            }
            (Ok(Some(speaker)), _) => {
                self.with(now, change, |p, ctx| {
                    p.on_message(ctx, from, speaker, message)
                });
            }
            (Ok(None), _) => self.handle_stranger(now, from, message),
            (Err(violation), _) => self.violated(from, &message, violation),
        }
    }

    /// Handles an event on this host.
    pub fn handle_event(&mut self, now: Time, event: HostEvent) {
        let Some(event) = self.answer_forwarder(now, event) else {
            return;
        };
        match event {
            HostEvent::SessionGone { subsession } => self.gone(now, subsession),
            _ => {
                if let Some(change) = event.change() {
                    self.with(now, change, |part, ctx| part.on_event(ctx, event));
                }
            }
        }
    }

    /// Notifies all changes of a session that has ended.
    fn gone(&mut self, now: Time, subsession: Subsession) {
        let lock = self.core.locks.get(&subsession).copied();
        let all = lock.into_iter().chain(self.core.segments.of(&subsession));
        for change in all.collect::<Vec<_>>() {
            let event = HostEvent::SessionGone { subsession };
            self.with(now, change, |part, ctx| part.on_event(ctx, event));
        }
    }

    /// Makes messages due at once that a host has not answered, because a connection to it exists
    /// again.
    pub fn handle_connected(&mut self, now: Time, host: HostId) {
        let waits =
            |(change, entry): (&ChangeId, &Entry)| entry.timing.repeats_to(host).then_some(*change);
        let all: Vec<ChangeId> = self.changes.iter().filter_map(waits).collect();
        for change in all {
            self.with(now, change, |_, ctx| {
                ctx.hurry(host);
                Flow::On
            });
        }
    }

    /// Handles timeouts. To be called at the time of [`Machine::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(due, timer)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Change(change) => self.with(now, change, |part, ctx| match ctx.tick() {
                    true => part.on_deadline(ctx),
                    false => Flow::On,
                }),
                Timer::Ask(change) => self.with_ask(now, change, |ask, ctx| match ctx.tick() {
                    true => ask.on_deadline(ctx),
                    false => Flow::On,
                }),
            }
        }
        self.outcomes.collect(now);
    }

    /// Returns the time at which [`Machine::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next command. All commands are carried out before messages are polled.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.core.commands.pop_front()
    }

    /// Returns the records that wait to be written and that nothing has to precede: no other command
    /// of their change, and no removal of a record.
    pub fn first_records(&self) -> impl Iterator<Item = (ChangeId, &[u8])> {
        let mut seen = BTreeSet::new();
        let waiting = self.core.commands.iter();
        let before = waiting.take_while(|c| c.action != Action::Journal(Journal::Erase));
        before.filter_map(move |command| match &command.action {
            _ if !seen.insert(command.change) => None,
            Action::Journal(Journal::Persist { record }) => Some((command.change, &record[..])),
            _ => None,
        })
    }

    /// Returns the next message to send, and its receiver.
    pub fn poll_transmit(&mut self) -> Option<(HostId, Message)> {
        self.core.transmits.pop()
    }

    /// Returns the next report for operators.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.core.reports.pop_front()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        Stats {
            changes: self.changes.len() + self.asks.len(),
            ..self.core.stats
        }
    }

    /// Returns the changes under way on this host.
    pub fn changes(&self) -> impl Iterator<Item = UnderWay> + '_ {
        let of = |(change, entry): (&ChangeId, &Entry)| {
            let (subsession, phase) = entry.part.place();
            let role = entry.part.role();
            let (other, asker) = match &entry.part {
                Part::Local(p) => (p.other(), p.asker()),
                Part::Middle(p) => (None, p.asker()),
                Part::Proof(p) => (p.other(), None),
                Part::Head(p) => (None, p.asker()),
                Part::Left(_) | Part::Right(_) | Part::Dsr(_) | Part::Tail(_) | Part::Lead(_) => {
                    (None, None)
                }
            };
            UnderWay {
                change: *change,
                role,
                subsession,
                other,
                phase,
                asker,
            }
        };
        self.changes.iter().map(of)
    }

    /// Returns the other hosts of the changes under way, and those that were asked for changes.
    pub fn peers(&self) -> impl Iterator<Item = HostId> + '_ {
        let of_changes = self.changes.values().flat_map(|entry| entry.part.peers());
        of_changes.chain(self.asks.values().map(|(ask, _)| ask.host()))
    }
}
