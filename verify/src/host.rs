//! One host: the shipped machine, and the engine's work for it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use dysco_common::two_paths::{Anchor, Fins};
use dysco_common::{State, Translation};
use dysco_proto::{ChangeId, HostEvent, Machine, Role, Subsession};

use crate::drive::{self, Engine as _, NOW, Twist};
use crate::nature::Nature;
use crate::place::{self, Side};
use crate::plane::{Entry, Notice};
use crate::seed::{self, Seed};
use crate::socket::Socket;
use rest::Rest;

mod anchor;
mod commands;
mod engine;
mod notices;
pub(crate) mod relay;
mod rest;
mod seeded;

/// State of a change that the engine keeps in memory, and loses with its process.
#[derive(Clone, Hash, Debug, Default)]
pub struct Held {
    /// Side of the session's entry.
    slot: Option<Side>,
    /// Side of session B's entry, if this host is both anchors.
    other: Option<Side>,
    own: Option<Subsession>,
    new: Option<Subsession>,
    draining: bool,
    /// True if the change goes back to the old path, and the old path has not yet carried
    /// everything that the new path did.
    returns: bool,
    /// Translation of the change, while the routes to both ends are being looked up.
    waiting: Option<Translation>,
}

impl Held {
    /// True if the change still keeps a session or a port from other changes.
    pub fn holds(&self) -> bool {
        self.slot.is_some() || self.new.is_some()
    }

    /// End of its sessions at which the host acts.
    fn at(&self) -> Anchor {
        match self.other {
            None => Anchor::Local,
            Some(_) => Anchor::Remote,
        }
    }

    fn slots(&self) -> impl Iterator<Item = Side> + use<> {
        self.slot.into_iter().chain(self.other)
    }
}

/// Outcome of a change for one role on this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ending {
    /// Identifier of the change.
    pub change: ChangeId,
    /// Role of this host in the change.
    pub role: Role,
    /// True if the middlebox has been removed.
    pub removed: bool,
    /// Further outcome, if this host is both anchors.
    pub alone: Option<Alone>,
}

/// Reason why a host that is both anchors did not remove its middlebox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Alone {
    /// The middlebox has already been removed.
    Already,
    /// The change was rolled back.
    TakenBack,
}

/// A violation that no host may ever commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// Two changes held one session.
    LockedTwice,
    /// A second path was prepared without a record of it.
    PreparedUnrecorded,
    /// The host went back to the old path when the new one was in use.
    TakenBackAfterCut,
    /// The old path was given up before all its data was acknowledged, or before the new path had
    /// shown that it carries as much.
    CompletedUndrained,
    /// A host that kept the rules was taken for an intruder.
    TakenForIntruder,
    /// A command of mode `return` or of chains, which are not explored here.
    Unmodelled,
    /// A record that the next process cannot read.
    UnreadableRecord,
}

/// Answer of the right anchor's data plane to the packets that open a new path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answer {
    /// The change.
    pub change: ChangeId,
    /// Number that the answer shows, on the wire.
    pub seq: u32,
    /// FINs that the right anchor had seen.
    pub fins: Fins,
}

/// A host.
#[derive(Clone)]
pub struct Host {
    /// Place of the host in the chain.
    pub place: usize,
    /// The protocol machine, while the daemon lives.
    pub machine: Option<Machine>,
    /// Number of times that the daemon was started.
    pub life: u8,
    /// Entries of the sessions to the left and to the right.
    pub entries: [Option<Entry>; 2],
    /// Sockets of these two sessions.
    pub sockets: [Socket; 2],
    /// Records on disk.
    pub records: BTreeMap<ChangeId, Vec<u8>>,
    /// Events that the engine will report to the machine, in any order.
    pub events: Vec<HostEvent>,
    /// The answer on a new path that is being opened: it is on its way to this host.
    pub answer: Option<Answer>,
    /// Outcomes reported to operators.
    pub endings: Vec<Ending>,
    /// The engine's memory of each change.
    pub held: BTreeMap<ChangeId, Held>,
    /// Remaining parts of commands, when the engine is held up.
    pub rest: VecDeque<Rest>,
    /// Notices of the programs to a host that is both anchors. They outlive the daemon.
    pub ring: Vec<(Side, Notice)>,
    /// True if this host is both anchors.
    pub alone: bool,
    /// True if the host is about to send resets to both ends.
    pub resets: bool,
    /// True if nothing answers on the host's new path.
    pub silent: bool,
    /// Effect of new paths on packets.
    pub nature: Nature,
    /// Memory of seeded bugs.
    pub spoilt: seed::Memory,
    /// Bug that is put in on purpose.
    pub seed: Option<Seed>,
    ids: fn(usize, u8) -> [u8; 8],
    /// For a seeded bug: true if a session is locked even though it has changed.
    locks_changed: bool,
    /// Rule that was broken in this step.
    wrong: Option<Wrong>,
}

impl Hash for Host {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.life, &self.machine, &self.entries).hash(state);
        (&self.sockets, &self.records, &self.held).hash(state);
        (&self.events, &self.endings, &self.spoilt).hash(state);
        (&self.rest, &self.ring, self.silent, &self.answer).hash(state);
    }
}

/// Result of one input.
pub(crate) type Outcome = drive::Outcome<Wrong>;

impl Host {
    /// Creates a host of a chain of `count` hosts, with all sessions open.
    pub fn new(place: usize, count: usize, seed: Option<Seed>) -> Host {
        let entry = |side: Side| {
            let base = place::base(place, side, count)?;
            let mut entry = Entry::tracked(base.out, base.into);
            entry.s.life.opened_here = u8::from(side == Side::Right);
            Some(entry)
        };
        let mut host = Host {
            place,
            machine: None,
            life: 0,
            entries: [entry(Side::Left), entry(Side::Right)],
            sockets: Default::default(),
            records: BTreeMap::new(),
            events: Vec::new(),
            answer: None,
            endings: Vec::new(),
            held: BTreeMap::new(),
            rest: VecDeque::new(),
            ring: Vec::new(),
            alone: false,
            resets: false,
            silent: false,
            nature: Nature::Plain,
            spoilt: Default::default(),
            seed,
            ids: seed::ids(seed),
            locks_changed: seed::locks_changed(seed),
            wrong: None,
        };
        host.machine = Some(host.fresh());
        host
    }

    fn fresh(&self) -> Machine {
        let prefix = (self.ids)(self.place, self.life);
        let mut serial = 0u64;
        let ids = move || {
            serial += 1;
            let mut id = [0; 16];
            id[..8].copy_from_slice(&prefix);
            // Sources of identifiers that are not fresh begin with all ones.
            if prefix != [0xff; 8] {
                id[8..].copy_from_slice(&serial.to_be_bytes());
            }
            id
        };
        Machine::new(place::addresses(self.place).to_vec(), ids)
    }

    /// Ends the process. Only what the kernel and the disk hold survives.
    pub fn die(&mut self) {
        self.machine = None;
        self.held.clear();
        self.events.clear();
        self.answer = None;
        self.rest.clear();
        self.forget_as_seeded();
        self.spoilt = Default::default();
    }

    /// Starts the daemon, as the engine's `take_up` does.
    pub fn start(&mut self, twist: Twist) -> Outcome {
        self.life += 1;
        let mut out = Outcome::default();
        let mut machine = self.fresh();
        for record in self.records.values() {
            if machine.restore(NOW, record).is_err() {
                out.wrong = Some(Wrong::UnreadableRecord);
            }
        }
        let under_way: Vec<_> = machine
            .changes()
            .map(|c| (c.change, c.subsession, c.other))
            .collect();
        self.machine = Some(machine);
        for (change, own, second) in under_way {
            let slot = self.find(&own);
            let other = second.and_then(|sub| self.find(&sub));
            let held = self.held.entry(change).or_default();
            held.slot = slot;
            held.own = Some(own);
            held.other = other;
            if slot.is_none() || other.is_none() && second.is_some() {
                self.tell(HostEvent::SessionGone { subsession: own });
            } else {
                self.tell_broken(change);
            }
        }
        self.undo_unrecorded();
        self.drive(twist, &mut out);
        out
    }

    fn undo_unrecorded(&mut self) {
        for side in Side::BOTH {
            let mut held = self.held.values().flat_map(Held::slots);
            let recorded = held.any(|s| s == side);
            let forgets = seed::local::takes_back(self.seed);
            let Some(entry) = self.entry_mut(side).filter(|_| !recorded) else {
                continue;
            };
            match entry.state() {
                State::Tracked => (entry.s.clamp, entry.s.clamp_remote) = (0, 0),
                State::RelayTwoPaths if !entry.used() || forgets => entry.unjoin(),
                State::TwoPaths if !entry.used() => entry.unprepare(),
                _ => {}
            }
        }
    }

    /// Entry of a side, while the session is tracked.
    pub fn entry(&self, side: Side) -> Option<&Entry> {
        self.entries[side as usize].as_ref()
    }

    /// Mutable access to the entry, as in [`Host::entry`].
    pub(crate) fn entry_mut(&mut self, side: Side) -> Option<&mut Entry> {
        self.entries[side as usize].as_mut()
    }

    fn find(&self, subsession: &Subsession) -> Option<Side> {
        let side = place::side_of(self.place, subsession)?;
        self.entry(side).map(|_| side)
    }

    fn slot_of(&self, change: ChangeId) -> Option<Side> {
        let side = self.held.get(&change)?.slot?;
        self.entry(side).map(|_| side)
    }

    fn tell(&mut self, event: HostEvent) {
        if let Some(machine) = &mut self.machine {
            machine.handle_event(NOW, event);
        }
    }

    /// Gives the machine an input and carries out what it wants.
    pub fn input(&mut self, twist: Twist, give: impl FnOnce(&mut Machine)) -> Outcome {
        let mut out = Outcome::default();
        if let Some(machine) = &mut self.machine {
            give(machine);
        }
        self.drive(twist, &mut out);
        out
    }

    /// True if the host has nothing to do.
    pub fn idle(&self) -> bool {
        let done = self.events.is_empty() && self.rest.is_empty() && self.ring.is_empty();
        self.machine.is_some() && done
    }

    /// True if nothing on this host waits for anything.
    pub fn quiet(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|m| m.waits().next().is_none()) && self.idle()
    }
}
