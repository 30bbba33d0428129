//! A state of the model: hosts, messages in flight between them, and the faults that may still
//! occur.

mod seeded;
mod steps;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use dysco_common::Delta;
use dysco_proto::{ChangeId, Phase};

use super::configuration::{Configuration, Faults, LEFT, RIGHT};
use super::fate::Fate;
use super::host::{self, Host, Route, Wrong};
use super::place::{LEFTWARDS, RIGHTWARDS, element};
use super::streams::Streams;
use crate::parts::{Net, Sealed, digest};
use crate::socket::Harm;

/// The rule that a state breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// A host broke a rule.
    Host(Wrong),
    /// An anchor sends where the other anchor does not hear the path, or where a host does not know
    /// the session.
    Void,
    /// Two changes hold the session, or the same part of its chain, at the same time.
    Overlap,
    /// A request was refused although nothing prevented it.
    Refused,
    /// A path does not compensate for the deltas of the hosts that leave, or compensates for more,
    /// or is opened although a host that remains has a delta.
    Delta,
    /// A path leads through a firewall that should have the session's state, and does not.
    Stateless,
    /// A firewall has dropped a segment that it must not drop, and no fault had occurred.
    Invalid,
    /// A TCP socket received something that it must never receive.
    Tcp(Harm),
}

/// A request that was accepted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Accepted {
    /// Identifier of the change.
    pub change: ChangeId,
    /// Number of the change's path.
    pub number: u32,
    /// Hosts on the change's path, including both anchors.
    pub path: Vec<usize>,
    /// Life of the daemon that was asked.
    pub life: u8,
    /// Hosts whose state moves, each with the host that receives it.
    pub state: Vec<(IpAddr, IpAddr)>,
    /// Hosts that leave.
    pub leave: Vec<usize>,
    /// Hosts that the session passes before and after the change, anchors in the chain included.
    pub remain: Vec<usize>,
}

/// State of the model.
#[derive(Clone)]
pub struct World {
    hosts: Vec<Sealed<Host>>,
    /// Messages in flight.
    pub net: Net,
    /// Faults that may still occur.
    pub left: Faults,
    /// Requests made, as a bit set.
    pub asked: u8,
    /// Number of requests refused because another request held the session.
    pub refused: u8,
    /// Requests that were accepted.
    pub accepted: Vec<Accepted>,
    /// New paths that no longer carry anything.
    pub dead: Vec<ChangeId>,
    /// True if no fault has occurred.
    pub pure: bool,
    /// True if the left anchor waited in vain for a host that was to forget the session.
    pub impatient: bool,
    /// True if the right anchor took a path because the left anchor did.
    pub followed: bool,
    /// True if one more change was requested when everything was over.
    pub once_more: bool,
    /// Streams of the session, if the exploration covers them.
    pub streams: Option<Streams>,
    /// For a seeded bug: changes whose left anchor was assumed to be back.
    pub believed: BTreeSet<ChangeId>,
    /// Rule that was broken on the way to this state.
    pub broken: Option<Broken>,
    /// Outcome of the state if no more faults occur.
    pub fate: Fate,
}

impl Accepted {
    /// Left and right anchor of the change.
    pub fn anchors(&self) -> [usize; 2] {
        let end = |at: Option<&usize>| at.copied().unwrap_or_default();
        [end(self.path.first()), end(self.path.last())]
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.hosts, &self.net).hash(state);
        (self.left, self.asked, self.refused, &self.accepted).hash(state);
        (&self.dead, self.pure, self.impatient, self.followed).hash(state);
        (self.broken, &self.believed, self.once_more).hash(state);
        self.streams.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        digest(self) == digest(other)
    }
}

/// Prints a summary: the roles of each host, the paths, and the messages in flight.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |route: Route| self.name(route);
        for host in self.hosts() {
            write!(f, "[{}", host.place)?;
            match &host.machine {
                Some(machine) => {
                    for c in machine.changes() {
                        write!(f, " {:?} {:?}", c.role, c.phase)?;
                    }
                }
                None => write!(f, " dead")?,
            }
            for (side, plane) in host.planes.iter().enumerate() {
                let is_end = host.place == side;
                if !(is_end || plane.active) {
                    continue;
                }
                write!(f, " takes {}", named(plane.current))?;
                if let Some(other) = plane.other {
                    let what = if other.before { "hears" } else { "may take" };
                    write!(f, ", {what} {}", named(other.route))?;
                }
            }
            for route in &host.knows {
                write!(f, " knows {}", named(*route))?;
            }
            if host.state {
                write!(f, " has state")?;
            }
            write!(f, "] ")?;
        }
        for letter in &self.net {
            write!(f, "{letter} ")?;
        }
        Ok(())
    }
}

impl World {
    /// Returns the initial state: the session is open, and nothing has been requested.
    pub fn new(config: &Configuration) -> World {
        let host = |place| {
            let passes = config.first.contains(&place);
            let mut host = Host::new(place, passes, config.seed);
            // If a host entered while bytes were in flight, its delta would have a known beginning.
            let changes = passes || place > RIGHT && !config.has_streams();
            if config.deltas && changes {
                // Each sum of deltas is unique.
                let to_server = 1 << place;
                let to_client = 1u32.wrapping_sub(to_server);
                host.delta = Delta {
                    to_server,
                    to_client,
                };
            }
            if place == LEFT {
                host.chain = config.first.iter().map(|at| element(*at)).collect();
                host.links = vec![0; host.chain.len() + 1];
            }
            Sealed::new(host)
        };
        let mut world = World {
            hosts: (0..config.hosts).map(host).collect(),
            net: Vec::new(),
            left: config.faults,
            asked: 0,
            refused: 0,
            accepted: Vec::new(),
            dead: Vec::new(),
            pure: true,
            impatient: false,
            followed: false,
            once_more: false,
            believed: BTreeSet::new(),
            streams: None,
            broken: None,
            fate: Fate::default(),
        };
        world.begin_streams(config);
        world
    }

    /// Returns all hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &Host> + DoubleEndedIterator {
        self.hosts.iter().map(Sealed::get)
    }

    /// Returns one host.
    pub fn host(&self, place: usize) -> &Host {
        self.hosts[place].get()
    }

    /// True if the session has ended.
    pub fn gone(&self) -> bool {
        self.host(LEFT).gone
    }

    /// Changes a host, and recomputes the name of its state.
    pub fn edit<T>(&mut self, place: usize, f: impl FnOnce(&mut Host) -> T) -> T {
        self.hosts[place].edit(f)
    }

    pub(super) fn of(&self, change: ChangeId) -> Option<&Accepted> {
        self.accepted.iter().find(|a| a.change == change)
    }

    /// Left anchor of a change.
    pub fn left_of(&self, change: ChangeId) -> Option<usize> {
        self.of(change).map(|a| a.anchors()[0])
    }

    /// Hosts on a path, including both anchors.
    pub(super) fn path(&self, config: &Configuration, route: Route) -> Vec<usize> {
        match route {
            None => [&[LEFT], config.first, &[RIGHT]].concat(),
            Some(change) => self.of(change).map(|a| a.path.clone()).unwrap_or_default(),
        }
    }

    /// Hosts that data from one end passes on its way to the other end, each with the path that
    /// leads to it. Returns none if the data does not get there.
    pub fn trace(&self, config: &Configuration, side: usize) -> Option<Vec<(usize, Route)>> {
        let (mut at, end) = match side {
            RIGHTWARDS => (LEFT, RIGHT),
            _ => (RIGHT, LEFT),
        };
        let came = LEFTWARDS + RIGHTWARDS - side;
        let mut route = self.host(at).planes[side].current;
        let mut trace = Vec::new();
        for _ in 0..self.hosts.len() {
            let mut path = self.path(config, route);
            if side == LEFTWARDS {
                path.reverse();
            }
            let here = path.iter().position(|h| *h == at)?;
            at = *path.get(here + 1)?;
            trace.push((at, route));
            let host = self.host(at);
            if at == end {
                return host.hears(came, route).then_some(trace);
            }
            route = host.goes_on(route, side)?;
        }
        None
    }

    fn name(&self, route: Route) -> String {
        let of = |change| self.accepted.iter().position(|a| a.change == change);
        match route.and_then(of) {
            None => "first".into(),
            Some(at) => format!("path{}", at + 1),
        }
    }

    /// True if a path carries nothing.
    pub(crate) fn is_dead(&self, route: Route) -> bool {
        route.is_some_and(|change| self.dead.contains(&change))
    }

    /// Changes whose right anchor's data plane may follow the left anchor's.
    pub(crate) fn can_follow(&self) -> impl Iterator<Item = ChangeId> + '_ {
        let may = |a: &&Accepted| {
            let [left, right] = a.anchors().map(|at| self.host(at));
            let route = Some(a.change);
            let takes = left.planes[RIGHTWARDS].current == route;
            let next = right.planes[LEFTWARDS].other;
            let next = next.filter(|o| o.route == route && !o.before && o.joined);
            takes && next.is_some() && !self.is_dead(route) && !self.gone()
        };
        // With streams, the bytes of the streams cause this.
        let accepted = self.accepted.iter().filter(|_| self.streams.is_none());
        accepted.filter(may).map(|a| a.change)
    }

    /// Changes whose path has carried what it had to at this anchor, if the engine has not noticed
    /// yet.
    pub fn carried(&self, place: usize) -> impl Iterator<Item = ChangeId> + '_ {
        let host = self.host(place);
        let has = move |(change, h): &(&ChangeId, &host::Held)| {
            let route = Some(**change);
            let peer = self.of(**change).map(Accepted::anchors);
            let peer = peer.map(|[left, right]| if h.side == RIGHTWARDS { right } else { left });
            let there = peer.map(|peer| self.host(peer).planes[LEFTWARDS + RIGHTWARDS - h.side]);
            let carries = h.peer_cutoff.is_some_and(|peer_cutoff| {
                let settles = host.settles(h.side, **change, peer_cutoff);
                settles.unwrap_or_else(|| there.is_some_and(|plane| plane.current == route))
            });
            h.cut
                && carries
                && !h.settled
                && h.second_path == route
                && host.planes[h.side].current == route
                && !self.is_dead(route)
                && !self.gone()
        };
        let held = host.held.iter().filter(|_| host.machine.is_some());
        held.filter(has).map(|(change, _)| *change)
    }

    /// Changes that only wait for late packets.
    pub(crate) fn waits_late(&self, place: usize) -> impl Iterator<Item = ChangeId> + '_ {
        let host = self.host(place);
        let held = host.held.iter().filter(|_| host.machine.is_some());
        let late = held.filter(|(_, h)| h.completed && h.erased);
        late.map(|(change, _)| *change)
    }

    /// Path that an anchor may take next, or takes and may leave again. None if both anchors have
    /// seen that the path carries the session.
    pub(crate) fn mortal(&self) -> Option<ChangeId> {
        let last = self.accepted.last()?;
        let change = last.change;
        let [one, other] = last.anchors().map(|at| self.host(at));
        let settled = |h: &Host| h.held.get(&change).is_some_and(|held| held.settled);
        let under_way = self
            .host(LEFT)
            .machine
            .as_ref()?
            .changes()
            .find(|c| c.change == change)?;
        let before = under_way.phase < Phase::Completing;
        let both = settled(one) && settled(other);
        (before && !both && !self.dead.contains(&change)).then_some(change)
    }

    /// True if no message is in flight and no daemon is down or at work, so that only time can
    /// advance the changes.
    pub(crate) fn only_time_helps(&self, config: &Configuration) -> bool {
        let idle = |h: &Host| h.machine.is_some() && h.events.is_empty();
        let looks = |h: &Host| {
            let carried = self.carried(h.place).next();
            carried.is_some()
                || self.waits_late(h.place).next().is_some()
                || self.waits_in_vain(h.place).next().is_some()
                || self.uncertain().any(|place| place == h.place)
        };
        let still = self.net.is_empty() && self.hosts().all(idle) && !self.hosts().any(looks);
        still && !self.streams_move(config)
    }
}
