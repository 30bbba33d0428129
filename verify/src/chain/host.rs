//! One host: the machine that ships, what the engine does for it, and the paths in
//! its data plane.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use dysco_common::Delta;
use dysco_common::delta::Reach;
use dysco_proto::{
    ChangeId, Command, HostEvent, HostId, Machine, Progress, Report, Role, Subsession,
};

use super::config::{LEFT, RIGHT};
use super::engine;
use super::entry::Entry;
use super::lines::Passed;
use super::seed::Seed;
use crate::pump::{self, Engine, NOW, Twist};

/// A path: the change that made it, or the one that the session began with.
pub type Route = Option<ChangeId>;

/// The second path at an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Other {
    /// Which.
    pub route: Route,
    /// It was taken before; otherwise it may be taken next.
    pub before: bool,
    /// Packets come by it.
    pub joined: bool,
}

/// The side of a host from which the session goes on to the end that accepted it: that of
/// a left anchor.
pub const RIGHTWARDS: usize = 0;
/// The other one, that of a right anchor.
pub const LEFTWARDS: usize = 1;

/// The data plane of an anchor, on one side. A dead daemon does not touch it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Plane {
    /// The path that it takes, and hears.
    pub current: Route,
    /// The other one that it hears, if any.
    pub other: Option<Other>,
    /// A SYN of the path that may be taken next would be answered.
    pub awaits: bool,
    /// At a host of chains: it has been an anchor on this side.
    pub active: bool,
}

/// What the engine remembers of a change, and loses with its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Held {
    /// On which side of this host.
    pub side: usize,
    /// The path before.
    pub first: Route,
    /// How far its end had sent and heard when it was asked.
    pub reach: Reach,
    /// The new one, once it is heard.
    pub second: Option<ChangeId>,
    /// It was taken by command.
    pub cut: bool,
    /// The other anchor has taken it when it had sent so far.
    pub far: Option<u32>,
    /// It has carried all that it had to.
    pub settled: bool,
    /// There is no way back.
    pub completed: bool,
    /// The machine has ended the change.
    pub erased: bool,
}

/// What a host will have done at any later moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Later {
    /// The path is open, or is known not to be.
    Open(ChangeId),
    /// What another host has sent of its firewall's state comes to this one's.
    Install(ChangeId, HostId),
    /// A firewall's state has moved to that host, or will not.
    State(ChangeId, HostId, bool),
    /// The session is forgotten here.
    Forgotten(ChangeId, HostId),
    /// The host that opened the session says which of these paths are in use, unless this
    /// one is no host of its chain; by then another change may have come.
    InUse {
        /// What was asked.
        asked: Vec<u32>,
        /// The change by which the session passed here then, as far as was remembered.
        by: Option<ChangeId>,
        /// The answer.
        now: Option<Vec<u32>>,
    },
    /// The session's end is noticed.
    Gone,
    /// Both its FINs have passed.
    Closed,
}

/// How a change ended for one role here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ending {
    /// Which.
    pub change: ChangeId,
    /// In which part.
    pub role: Role,
    /// The session has the chain.
    pub changed: bool,
}

/// What no host may ever do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// A change was completed where its path is not taken.
    CompletedElsewhere,
    /// Back to a path that was given up.
    BackAfterCompletion,
    /// A third path was made beside two.
    ThreePaths,
    /// The end that was told is not the one that came.
    FalseReport,
    /// A host that kept the rules was taken for one that broke them.
    TakenForIntruder,
    /// A command that no part of a chain gives.
    Unmodelled,
    /// A record that its successor cannot read.
    UnreadableRecord,
}

/// A host.
#[derive(Clone)]
pub struct Host {
    /// Which.
    pub place: usize,
    /// The protocol, while the daemon lives.
    pub machine: Option<Machine>,
    /// How often the daemon was started.
    pub life: u8,
    /// At an anchor, on either side.
    pub planes: [Plane; 2],
    /// The session has ended.
    pub gone: bool,
    /// Where the session was opened: the chain that is taken down.
    pub chain: Vec<HostId>,
    /// The numbers of the paths between its hosts, and its ends.
    pub links: Vec<u32>,
    /// The highest that was given.
    pub highest: u32,
    /// Changes decided here whose left anchor is elsewhere.
    pub led: BTreeSet<ChangeId>,
    /// At a host of chains: the paths that it passes on.
    pub knows: BTreeSet<Route>,
    /// The numbers of paths, as their entries have them.
    pub numbers: BTreeMap<ChangeId, u32>,
    /// The change by which the session passes it, or is to, as far as it remembers.
    pub passing: Option<ChangeId>,
    /// Changes that ask for nothing any more, likewise.
    pub forgotten: BTreeSet<ChangeId>,
    /// Records on disk.
    pub records: BTreeMap<ChangeId, Vec<u8>>,
    /// What it is at.
    pub events: Vec<Later>,
    /// What was told to operators.
    pub endings: Vec<Ending>,
    /// Its firewall knows the session.
    pub state: bool,
    /// State that is to move, and whether the new host expects it already.
    pub moves: BTreeMap<(ChangeId, HostId), bool>,
    /// What it has asked for of that in this step: from where, and to where.
    pub(super) asked: Vec<(ChangeId, HostId, HostId)>,
    /// By how much it has changed the stream.
    pub delta: Delta,
    /// By how much a path that it opens in this step is to make up for what leaves.
    pub(super) makes_up: Option<(ChangeId, Delta)>,
    /// Memory of the engine's.
    pub held: BTreeMap<ChangeId, Held>,
    /// Where sessions carry bytes: the entries of its paths on either side.
    pub entries: BTreeMap<(usize, Route), Entry>,
    /// Paths that it went back to, and shows that to their firewalls.
    pub shows: BTreeSet<(usize, Route)>,
    /// Those of them that it shows it in this step.
    pub(super) primes: Vec<(usize, Route)>,
    /// At a host of chains: what has passed it to either side.
    pub passed: Option<[Passed; 2]>,
    /// Its data plane took a path because the other end's did.
    pub(super) followed: bool,
    /// The engine takes up what a former process left.
    pub(super) taking_up: bool,
    /// A bug put in on purpose.
    pub(super) seed: Option<Seed>,
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

/// What one input brought.
pub type Outcome = pump::Outcome<Wrong>;

/// The address of a host.
pub fn address(place: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, place as u8 + 1])
}

/// The host that has an address.
pub fn place_of(host: HostId) -> Option<usize> {
    match host {
        IpAddr::V4(a) => usize::from(a.octets()[3]).checked_sub(1),
        IpAddr::V6(_) => None,
    }
}

/// The session.
pub fn session() -> Subsession {
    Subsession {
        left: (address(LEFT), 40_000).into(),
        right: (address(RIGHT), 80).into(),
    }
}

impl Host {
    /// A host; if it is one of the session's chain, it passes it on.
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
            // The secret of a path is made of the last ones.
            id[8..11].copy_from_slice(&[place, life, serial]);
            id
        };
        Machine::new(vec![address(self.place)], ids)
    }

    /// Is it an end of the session?
    pub fn is_anchor(&self) -> bool {
        self.place <= RIGHT
    }

    /// Does an anchor hear a path on this side, should anything come by it?
    pub fn hears(&self, side: usize, route: Route) -> bool {
        let plane = &self.planes[side];
        let other = |o: &Other| o.route == route && (o.before || o.joined);
        plane.current == route || plane.other.as_ref().is_some_and(other)
    }

    /// By which path a host of chains passes on what comes by this one, on that side.
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

    /// Which side a session is held on, by what it is called.
    pub(super) fn side_of(&self, session: &Subsession) -> usize {
        match self.place {
            LEFT => RIGHTWARDS,
            RIGHT => LEFTWARDS,
            _ if *session == self::session() => RIGHTWARDS,
            _ => LEFTWARDS,
        }
    }

    /// What the session is called on one side.
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

    /// The session is gone: who is at a change hears of it.
    pub(super) fn tell_all_gone(&mut self) {
        let names = BTreeSet::from([self.called(RIGHTWARDS), self.called(LEFTWARDS)]);
        for subsession in names {
            self.tell(HostEvent::SessionGone { subsession });
        }
    }

    /// Nothing of it survives but what the kernel and the disk hold.
    pub fn die(&mut self) {
        self.machine = None;
        self.held.clear();
        self.events.clear();
        self.moves.clear();
        self.forgotten.clear();
        self.shows.clear();
        self.passing = None;
    }

    /// The daemon starts, as the engine's `take_up` has it.
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
        self.pump(Twist::Plain, &mut out);
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

    /// The engine does something, and carries out what the machine wants then.
    pub(super) fn does(&mut self, twist: Twist, what: impl FnOnce(&mut Host)) -> Outcome {
        let mut out = Outcome::default();
        what(self);
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
                let changed = progress == Progress::Removed;
                let side = match role {
                    Role::Head | Role::Lead => RIGHTWARDS,
                    _ => LEFTWARDS,
                };
                let taken = self.planes[side].current == Some(change);
                // A right anchor's successor may be asked again for what is over.
                let falsely = match role {
                    Role::Head if self.led.contains(&change) => false,
                    Role::Head => changed != taken,
                    _ => changed && !taken,
                };
                if falsely && !self.gone {
                    *wrong = Some(Wrong::FalseReport);
                }
                self.endings.push(Ending {
                    change,
                    role,
                    changed,
                });
            }
            // A successor does not know who had a part in what.
            Report::Violation { .. } if self.life == 0 => {
                *wrong = Some(Wrong::TakenForIntruder);
            }
            Report::Violation { .. } | Report::Progress { .. } | Report::Trouble { .. } => {}
        }
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
        engine::can_fail(command)
    }

    fn fail(&mut self, command: Command) {
        Host::fail(self, command);
    }

    fn execute(&mut self, command: Command, wrong: &mut Option<Wrong>) {
        Host::execute(self, command, wrong);
    }

    fn hear(&mut self, report: Report, wrong: &mut Option<Wrong>) {
        Host::hear(self, report, wrong);
    }
}
