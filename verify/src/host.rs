//! One host: the machine that ships, and what the engine does for it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use dysco_common::two_paths::Anchor;
use dysco_common::{State, Translation};
use dysco_proto::{
    ChangeId, Command, HostEvent, Machine, Progress, Reason, Report, Role, Subsession,
};

use crate::nature::Nature;
use crate::place::{self, Side};
use crate::plane::{Entry, Notice};
use crate::pump::{self, Engine, NOW, Twist};
use crate::seed::{self, Seed};
use crate::socket::Socket;
use relay::Rest;

mod commands;
mod notices;
pub mod relay;

/// What the engine remembers of a change, and loses with its process.
#[derive(Clone, Hash, Debug, Default)]
pub struct Held {
    /// The session's entry, by its side.
    slot: Option<Side>,
    /// That of session B, where this host is both anchors.
    other: Option<Side>,
    own: Option<Subsession>,
    new: Option<Subsession>,
    draining: bool,
    /// The new path is taken back, and the old one has not carried all that it did.
    returns: bool,
    /// The ways to both ends are being looked up.
    waiting: Option<Translation>,
}

impl Held {
    /// It still keeps a session or a port from others.
    pub fn holds(&self) -> bool {
        self.slot.is_some() || self.new.is_some()
    }

    /// Which end of its sessions the host stands at.
    fn at(&self) -> Anchor {
        match self.other {
            None => Anchor::Near,
            Some(_) => Anchor::Far,
        }
    }

    fn slots(&self) -> impl Iterator<Item = Side> + use<> {
        self.slot.into_iter().chain(self.other)
    }
}

/// How a change ended for one role here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ending {
    /// Which.
    pub change: ChangeId,
    /// In which part.
    pub role: Role,
    /// The middlebox is out.
    pub removed: bool,
    /// More of that, where this host is both anchors.
    pub alone: Option<Alone>,
}

/// Why a host that is both anchors did not get its middlebox out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Alone {
    /// It is out already.
    Already,
    /// Something was taken back.
    TakenBack,
}

/// What no host may ever do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// Two changes held one session.
    LockedTwice,
    /// A second path without a record of it.
    PreparedUnrecorded,
    /// Back to the old path when the new one was in use.
    TakenBackAfterCut,
    /// The old path given up before all of it was acknowledged, or before the new one had
    /// shown that it carries as much.
    CompletedUndrained,
    /// A host that kept the rules was taken for one that broke them.
    TakenForIntruder,
    /// A command of mode return or of chains, which are not explored here.
    Unmodelled,
    /// A record that its successor cannot read.
    UnreadableRecord,
}

/// A host.
#[derive(Clone)]
pub struct Host {
    /// Its place in the chain.
    pub place: usize,
    /// The protocol, while the daemon lives.
    pub machine: Option<Machine>,
    /// How often the daemon was started.
    pub life: u8,
    /// Entries of the sessions to the left and to the right.
    pub entries: [Option<Entry>; 2],
    /// The sockets of them.
    pub sockets: [Socket; 2],
    /// Records on disk.
    pub records: BTreeMap<ChangeId, Vec<u8>>,
    /// What the engine will tell the machine, in any order.
    pub events: Vec<HostEvent>,
    /// What was told to operators.
    pub endings: Vec<Ending>,
    /// Memory of the engine's.
    pub held: BTreeMap<ChangeId, Held>,
    /// What is left of commands when the engine is held up.
    pub rest: VecDeque<Rest>,
    /// What its programs have told a host that is both anchors. It outlives the daemon.
    pub ring: Vec<(Side, Notice)>,
    /// Is this host both anchors?
    pub alone: bool,
    /// It is about to send resets to both ends.
    pub resets: bool,
    /// Nothing answers on its new path.
    pub silent: bool,
    /// What new paths do to packets.
    pub nature: Nature,
    /// Only for seeded bugs.
    pub spoilt: seed::Memory,
    /// A bug put in on purpose.
    pub seed: Option<Seed>,
    ids: fn(usize, u8) -> [u8; 8],
    /// A seeded bug: what has changed is locked all the same.
    locks_changed: bool,
}

impl Hash for Host {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.life, &self.machine, &self.entries).hash(state);
        (&self.sockets, &self.records, &self.held).hash(state);
        (&self.events, &self.endings, &self.spoilt).hash(state);
        (&self.rest, &self.ring, self.silent).hash(state);
    }
}

/// What one input brought.
pub type Outcome = pump::Outcome<Wrong>;

impl Host {
    /// A host of a chain of `count`, all sessions open.
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
            // Sources that are not fresh begin with all ones.
            if prefix != [0xff; 8] {
                id[8..].copy_from_slice(&serial.to_be_bytes());
            }
            id
        };
        Machine::new(place::addresses(self.place).to_vec(), ids)
    }

    /// Nothing of it survives but what the kernel and the disk hold.
    pub fn die(&mut self) {
        self.machine = None;
        self.held.clear();
        self.events.clear();
        self.rest.clear();
        seed::local::dies(self);
        self.spoilt = Default::default();
    }

    /// The daemon starts, as the engine's `take_up` has it.
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
        self.pump(twist, &mut out);
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
                State::Tracked => (entry.s.clamp, entry.s.clamp_far) = (0, 0),
                State::FarTwoPaths if !entry.used() || forgets => entry.unjoin(),
                State::TwoPaths if !entry.used() => entry.unprepare(),
                _ => {}
            }
        }
    }

    /// The entry of a side, while the session is tracked.
    pub fn entry(&self, side: Side) -> Option<&Entry> {
        self.entries[side as usize].as_ref()
    }

    /// As [`Host::entry`], to be changed.
    pub fn entry_mut(&mut self, side: Side) -> Option<&mut Entry> {
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
        self.pump(twist, &mut out);
        out
    }

    fn hear(&mut self, report: Report, wrong: &mut Option<Wrong>) {
        match report {
            Report::Progress {
                change,
                role,
                progress,
                ..
            } if progress.is_end() => {
                let removed = progress == Progress::Removed;
                let alone = match (role, &progress) {
                    (Role::Local, Progress::Refused(Reason::AlreadyOut)) => Some(Alone::Already),
                    (Role::Local, Progress::RolledBack(_) | Progress::Lost(_)) => {
                        Some(Alone::TakenBack)
                    }
                    _ => None,
                };
                self.endings.push(Ending {
                    change,
                    role,
                    removed,
                    alone,
                });
            }
            // A successor does not know who had a part in what.
            Report::Violation { .. } if self.life == 0 => {
                *wrong = Some(Wrong::TakenForIntruder);
            }
            Report::Violation { .. } | Report::Progress { .. } | Report::Trouble { .. } => {}
        }
    }

    /// Has it nothing to do?
    pub fn idle(&self) -> bool {
        let done = self.events.is_empty() && self.rest.is_empty() && self.ring.is_empty();
        self.machine.is_some() && done
    }

    /// Does nothing wait here for anything?
    pub fn quiet(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|m| m.waits().next().is_none()) && self.idle()
    }
}

impl Engine for Host {
    type Wrong = Wrong;

    fn machine(&mut self) -> Option<&mut Machine> {
        self.machine.as_mut()
    }

    fn die(&mut self) {
        Host::die(self);
    }

    fn can_fail(command: &Command) -> bool {
        commands::can_fail(command)
    }

    fn fail(&mut self, command: Command) {
        Host::fail(self, command);
    }

    fn execute(&mut self, command: Command, wrong: &mut Option<Wrong>) {
        Host::execute(self, command, wrong);
    }

    fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    fn go_on(&mut self, wrong: &mut Option<Wrong>) {
        Host::go_on(self, wrong);
    }

    fn put_off(&mut self, command: Option<Command>) {
        Host::put_off(self, command);
    }

    fn hear(&mut self, report: Report, wrong: &mut Option<Wrong>) {
        Host::hear(self, report, wrong);
    }
}
