//! One host: the shipped machine, the engine's work for it, and the paths in its data plane.

mod engine;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use dysco_common::delta::Reach;
use dysco_common::{Delta, Element};
use dysco_proto::{ChangeId, HostEvent, HostId, Machine, Role, Subsession};

use super::configuration::{LEFT, RIGHT};
use super::entry::Entry;
use super::passed::Passed;
use super::place::{LEFTWARDS, RIGHTWARDS, address, session};
use super::seed::Seed;
use crate::drive::{self, Engine as _, NOW, Twist};

/// A path, named by the change that made it; none for the path that the session began with.
pub(super) type Route = Option<ChangeId>;

/// The second path at an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Other {
    /// Name of the path.
    pub route: Route,
    /// True if the path was taken before; false if it may be taken next.
    pub before: bool,
    /// True if packets arrive on the path.
    pub joined: bool,
}

/// The data plane of an anchor, on one side. The death of a daemon does not change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Plane {
    /// Path on which the anchor sends and receives.
    pub current: Route,
    /// Other path on which the anchor receives, if any.
    pub other: Option<Other>,
    /// True if a SYN of the path that may be taken next would be answered.
    pub awaits: bool,
    /// At a host of chains: true if the host has been an anchor on this side.
    pub active: bool,
}

/// State of a change that the engine keeps in memory, and loses with its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Held {
    /// Side of this host.
    pub side: usize,
    /// Path before the change.
    pub first: Route,
    /// Numbers up to which its end had sent and received when the engine was asked.
    pub reach: Reach,
    /// New path, once the anchor receives on it.
    pub second_path: Option<ChangeId>,
    /// True if the new path was taken by command.
    pub cut: bool,
    /// Number up to which the other anchor had sent when it took the new path.
    pub peer_cutoff: Option<u32>,
    /// True if the new path has carried everything that it had to.
    pub settled: bool,
    /// True if the change can no longer be rolled back.
    pub completed: bool,
    /// True if the machine has ended the change.
    pub erased: bool,
}

/// An action that a host completes at any later moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Later {
    /// The path is open, or is known not to open.
    Open(ChangeId),
    /// State of another host's firewall arrives at this host's firewall.
    Install(ChangeId, HostId),
    /// A firewall's state has moved to this host, or will not move.
    State(ChangeId, HostId, bool),
    /// The session is forgotten on this host.
    Forgotten(ChangeId, HostId),
    /// The host that opened the session states which of these paths are in use, unless this host is
    /// not in its chain. Another change may have been made in the meantime.
    InUse {
        /// Numbers of the paths in question.
        asked: Vec<u32>,
        /// Change by which the session passed here at that time, as far as this host remembered it.
        by: Option<ChangeId>,
        /// The answer.
        now: Option<Vec<u32>>,
    },
    /// The session's end is noticed.
    Gone,
    /// Both FINs of the session have passed.
    Closed,
}

/// Outcome of a change for one role on this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ending {
    /// Identifier of the change.
    pub change: ChangeId,
    /// Role of this host in the change.
    pub role: Role,
    /// True if the session has the new chain.
    pub changed: bool,
}

/// A violation that no host may ever commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// A change was completed although its path is not taken.
    CompletedElsewhere,
    /// A host went back to a path that had been given up.
    BackAfterCompletion,
    /// A third path was made in addition to two.
    ThreePaths,
    /// The reported outcome is not the actual one.
    FalseReport,
    /// A host that kept the rules was taken for an intruder.
    TakenForIntruder,
    /// A command that no part of a chain gives.
    Unmodelled,
    /// A record that the next process cannot read.
    UnreadableRecord,
}

/// A host.
#[derive(Clone)]
pub struct Host {
    /// Index of the host.
    pub place: usize,
    /// The protocol machine, while the daemon lives.
    pub machine: Option<Machine>,
    /// Number of times that the daemon was started.
    pub life: u8,
    /// At an anchor: its data plane on either side.
    pub planes: [Plane; 2],
    /// True if the session has ended.
    pub gone: bool,
    /// At the host that opened the session: the recorded chain.
    pub chain: Vec<Element>,
    /// Numbers of the paths between the hosts of the chain and its ends.
    pub links: Vec<u32>,
    /// Highest path number that was given.
    pub highest: u32,
    /// Changes decided here whose left anchor is on another host.
    pub led: BTreeSet<ChangeId>,
    /// At a host of chains: the paths that it forwards.
    pub knows: BTreeSet<Route>,
    /// Numbers of paths, as their entries have them.
    pub numbers: BTreeMap<ChangeId, u32>,
    /// Change by which the session passes or will pass this host, as far as the host remembers it.
    pub passing: Option<ChangeId>,
    /// Changes that ask for nothing any more, as far as the host remembers them.
    pub forgotten: BTreeSet<ChangeId>,
    /// Records on disk.
    pub records: BTreeMap<ChangeId, Vec<u8>>,
    /// Actions in progress.
    pub events: Vec<Later>,
    /// Outcomes reported to operators.
    pub endings: Vec<Ending>,
    /// True if the host's firewall knows the session.
    pub state: bool,
    /// State that is to move; true if the new host already expects it.
    pub moves: BTreeMap<(ChangeId, HostId), bool>,
    /// State that the host has asked to move in this step: change, source host and destination
    /// host.
    pub(super) asked: Vec<(ChangeId, HostId, HostId)>,
    /// Number of bytes by which the host has changed the stream, in each direction.
    pub delta: Delta,
    /// Delta of the hosts that leave, for which a path opened in this step is to compensate.
    pub(super) makes_up: Option<(ChangeId, Delta)>,
    /// The engine's memory of each change.
    pub held: BTreeMap<ChangeId, Held>,
    /// For sessions that carry bytes: the entries of the host's paths on either side.
    pub entries: BTreeMap<(usize, Route), Entry>,
    /// Paths that the host went back to, whose firewalls it notifies of that.
    pub shows: BTreeSet<(usize, Route)>,
    /// Paths among these whose firewalls the host notifies in this step.
    pub(super) primes: Vec<(usize, Route)>,
    /// At a host of chains: the highest numbers that have passed to either side.
    pub passed: Option<[Passed; 2]>,
    /// True if its data plane took a path because the other end's did.
    pub(super) followed: bool,
    /// True while the engine takes up what a former process left.
    pub(super) taking_up: bool,
    /// Bug that is put in on purpose.
    pub(super) seed: Option<Seed>,
    /// Rule that was broken in this step.
    pub(super) wrong: Option<Wrong>,
}

impl Hash for Host {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.life, &self.machine, &self.planes, self.gone).hash(state);
        (&self.chain, &self.links, self.highest, &self.led).hash(state);
        (&self.knows, &self.numbers, self.passing, &self.forgotten).hash(state);
        (&self.records, &self.events, &self.endings, &self.held).hash(state);
        (self.state, &self.moves).hash(state);
        (&self.entries, &self.shows, self.passed).hash(state);
    }
}

/// Result of one input.
pub(super) type Outcome = drive::Outcome<Wrong>;

impl Host {
    /// Creates a host. A host of the session's chain forwards the session.
    pub fn new(place: usize, passes: bool, seed: Option<Seed>) -> Host {
        let mut host = Host {
            place,
            machine: None,
            life: 0,
            planes: [Plane::default(); 2],
            gone: false,
            chain: Vec::new(),
            links: Vec::new(),
            highest: 0,
            led: BTreeSet::new(),
            knows: passes.then_some(None).into_iter().collect(),
            numbers: BTreeMap::new(),
            passing: None,
            forgotten: BTreeSet::new(),
            records: BTreeMap::new(),
            events: Vec::new(),
            endings: Vec::new(),
            state: passes,
            moves: BTreeMap::new(),
            asked: Vec::new(),
            delta: Delta::default(),
            makes_up: None,
            held: BTreeMap::new(),
            entries: BTreeMap::new(),
            shows: BTreeSet::new(),
            primes: Vec::new(),
            passed: None,
            followed: false,
            taking_up: false,
            seed,
            wrong: None,
        };
        host.machine = Some(host.fresh());
        host
    }

    fn fresh(&self) -> Machine {
        let (place, life) = (self.place as u8, self.life);
        let mut serial = 0;
        let ids = move || {
            serial += 1;
            let mut id = [0; 16];
            id[..3].copy_from_slice(&[place, life, serial]);
            // The last bytes of the identifier determine the secret of a path.
            id[8..11].copy_from_slice(&[place, life, serial]);
            id
        };
        Machine::new(vec![address(self.place)], ids)
    }

    /// True if the host is an end of the session.
    pub(crate) fn is_anchor(&self) -> bool {
        self.place <= RIGHT
    }

    /// True if an anchor receives on this path on this side.
    pub fn hears(&self, side: usize, route: Route) -> bool {
        let plane = &self.planes[side];
        let other = |o: &Other| o.route == route && (o.before || o.joined);
        plane.current == route || plane.other.as_ref().is_some_and(other)
    }

    /// Returns the path by which a host of chains forwards, on that side, what arrives on this
    /// path.
    pub fn goes_on(&self, route: Route, side: usize) -> Option<Route> {
        let anchor = &self.planes[side];
        let came = LEFTWARDS + RIGHTWARDS - side;
        let heard = self.planes[came].active && self.hears(came, route);
        let first = self.knows.first().copied();
        let known = self.knows.contains(&route);
        match (heard, anchor.active) {
            (true, true) => Some(anchor.current),
            (true, false) => first,
            (false, true) if known && first == Some(route) => Some(anchor.current),
            (false, _) => known.then_some(route),
        }
    }

    /// Returns the side on which a session is held, by its five-tuple.
    pub(super) fn side_of(&self, session: &Subsession) -> usize {
        match self.place {
            LEFT => RIGHTWARDS,
            RIGHT => LEFTWARDS,
            _ if *session == self::session() => RIGHTWARDS,
            _ => LEFTWARDS,
        }
    }

    /// Returns the session's five-tuple on one side.
    pub(super) fn called(&self, side: usize) -> Subsession {
        let Subsession { left, right } = session();
        match self.is_anchor() || side == RIGHTWARDS {
            true => session(),
            false => Subsession {
                left: right,
                right: left,
            },
        }
    }

    /// Reports that the session is gone to each change that holds it.
    pub(super) fn tell_all_gone(&mut self) {
        let names = BTreeSet::from([self.called(RIGHTWARDS), self.called(LEFTWARDS)]);
        for subsession in names {
            self.tell(HostEvent::SessionGone { subsession });
        }
    }

    /// Ends the process. Only what the kernel and the disk hold survives.
    pub fn die(&mut self) {
        self.machine = None;
        self.held.clear();
        self.events.clear();
        self.moves.clear();
        self.forgotten.clear();
        self.shows.clear();
        self.passing = None;
    }

    /// Starts the daemon, as the engine's `take_up` does.
    pub fn start(&mut self) -> Outcome {
        self.life += 1;
        let mut out = Outcome::default();
        let mut machine = self.fresh();
        for record in self.records.values() {
            if machine.restore(NOW, record).is_err() {
                out.wrong = Some(Wrong::UnreadableRecord);
            }
        }
        let under_way = machine.changes().next().is_some();
        self.machine = Some(machine);
        self.planes
            .iter_mut()
            .for_each(|plane| plane.awaits = false);
        if self.gone && under_way {
            self.tell_all_gone();
        }
        self.taking_up = true;
        self.drive(Twist::Plain, &mut out);
        self.taking_up = false;
        self.undo_unrecorded();
        out
    }

    pub(super) fn tell(&mut self, event: HostEvent) {
        if let Some(machine) = &mut self.machine {
            machine.handle_event(NOW, event);
        }
    }

    /// Gives the machine an input and carries out what it wants.
    pub fn input(&mut self, twist: Twist, give: impl FnOnce(&mut Machine)) -> Outcome {
        self.does(twist, |host| {
            if let Some(machine) = &mut host.machine {
                give(machine);
            }
        })
    }

    /// Makes the engine do something, and carries out what the machine then wants.
    pub(super) fn does(&mut self, twist: Twist, what: impl FnOnce(&mut Host)) -> Outcome {
        let mut out = Outcome::default();
        what(self);
        self.drive(twist, &mut out);
        out
    }
}
