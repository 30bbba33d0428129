//! A state of the model: hosts, messages in flight between them, and the faults that may still
//! occur.

mod packets;
mod seeded;
mod steps;

use std::hash::{Hash, Hasher};

use dysco_common::{State, two_paths};

use crate::config::{Configuration, Faults};
use crate::fate::Fate;
use crate::host::{Host, Wrong};
use crate::parts::{Net, Sealed, digest};
use crate::place::{self, Side};
use crate::socket::{Harm, Say, Socket};

/// Place at which a segment is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The segment arrives.
    Nowhere,
    /// The segment is lost once it has left its host.
    AtOnce,
    /// The segment is lost after the host that relays it.
    Beyond,
}

/// The rule that a state breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// A host broke a rule.
    Host(Wrong),
    /// A socket received something that it must never receive.
    Tcp(Harm),
    /// Two segments that share a session are locked at the same time.
    Overlap,
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
    /// True if the last request was made when everything was idle, and no fault has occurred since.
    pub pure: bool,
    /// Directions, to the right and to the left, in which the new path no longer carries anything.
    pub dead: [bool; 2],
    /// True if a session has been cut over: from then on it does not belong to the proxy alone.
    pub cut: bool,
    /// Rule that was broken on the way to this state.
    pub broken: Option<Broken>,
    /// Outcome of the state if no more faults occur.
    pub fate: Fate,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.hosts, &self.net).hash(state);
        (self.left, self.asked, self.pure, self.broken, self.dead).hash(state);
        self.cut.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        digest(self) == digest(other)
    }
}

/// Prints a summary: the roles of each host, its sessions, and the messages in flight.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            let ends = self.hosts.len();
            for side in Side::BOTH {
                if place::base(host.place, side, ends).is_none() {
                    continue;
                }
                let s = &host.sockets[side as usize];
                match host.entry(side) {
                    Some(entry) => write!(f, " {:?}", entry.state())?,
                    None => write!(f, " none")?,
                }
                let over = if s.dead { " dead" } else { "" };
                write!(f, "({}/{} {}{over})", s.una, s.nxt, s.rcv)?;
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
    /// Returns the initial state: all sessions are open, and nothing has been requested.
    pub fn new(config: &Configuration) -> World {
        let host = |i| {
            let mut host = Host::new(i, config.hosts, config.seed);
            if !config.has_daemon(i) {
                host.entries = [None, None];
            }
            host.alone = config.alone && config.has_daemon(i);
            host.nature = config.nature;
            Sealed::new(host)
        };
        World {
            hosts: (0..config.hosts).map(host).collect(),
            net: Vec::new(),
            left: config.faults,
            asked: 0,
            pure: true,
            dead: [false; 2],
            cut: false,
            broken: None,
            fate: Fate::default(),
        }
    }

    /// Returns all hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &Host> + DoubleEndedIterator {
        self.hosts.iter().map(Sealed::get)
    }

    /// Returns one host.
    pub fn host(&self, place: usize) -> &Host {
        self.hosts[place].get()
    }

    /// Changes a host, and recomputes the name of its state.
    pub fn edit<T>(&mut self, place: usize, f: impl FnOnce(&mut Host) -> T) -> T {
        self.hosts[place].edit(f)
    }

    /// True if no message is in flight and no daemon is down or at work, so that only time can
    /// advance the changes.
    pub(crate) fn only_time_helps(&self) -> bool {
        self.net.is_empty() && self.hosts().all(Host::idle)
    }

    /// Number of units that a socket has been given to send, and number of units of its direction
    /// that are bytes.
    pub fn given(&self, config: &Configuration, place: usize, side: Side) -> (u8, u8) {
        let direction = match side {
            Side::Right => 0,
            Side::Left => 1,
        };
        let bytes = config.bytes[direction];
        let end = match side {
            Side::Right => place == 0,
            Side::Left => place + 1 == config.hosts,
        };
        let sockets = &self.host(place).sockets;
        match (end, sockets[side as usize].closed) {
            (true, _) => (bytes + u8::from(config.closes[direction]), bytes),
            // The kernel sends the data that it was given, and a FIN.
            (false, Some(end)) if end <= bytes => (end + 1, end),
            (false, Some(end)) => (end, bytes),
            // A proxy relays the data that it received on the other side.
            (false, None) => (sockets[side.other() as usize].rcv, bytes),
        }
    }

    /// Sockets of the client and of the server.
    pub fn ends(&self) -> [&Socket; 2] {
        let last = self.hosts.len() - 1;
        let client = &self.host(0).sockets[Side::Right as usize];
        [client, &self.host(last).sockets[Side::Left as usize]]
    }

    /// True if the process of a proxy has died.
    pub(crate) fn has_died(&self) -> bool {
        self.hosts()
            .any(|h| h.sockets.iter().any(|s| s.closed.is_some()))
    }

    /// True if a socket has no process and the other end is dead, so that the kernel gives it up.
    fn is_orphan(&self, place: usize, side: Side) -> bool {
        let dead = |(place, side): (usize, Side)| self.host(place).sockets[side as usize].dead;
        let closed = self.host(place).sockets[side as usize].closed.is_some();
        closed && place::opposite(place, side).is_none_or(dead)
    }

    /// True if a socket has finished everything that both directions will ever carry.
    pub fn finished(&self, config: &Configuration, place: usize, side: Side) -> bool {
        let all = [0, 1].map(|d| config.bytes[d] + u8::from(config.closes[d]));
        let (out, into) = match side {
            Side::Right => (all[0], all[1]),
            Side::Left => (all[1], all[0]),
        };
        let socket = &self.host(place).sockets[side as usize];
        let orphan = self.is_orphan(place, side);
        socket.dead || orphan || (config.closes == [true; 2] && socket.finished(out, into))
    }

    /// True if a socket has reason to send such a segment.
    pub(crate) fn can_say(
        &self,
        config: &Configuration,
        place: usize,
        side: Side,
        say: Say,
    ) -> bool {
        let Some(base) = place::base(place, side, config.hosts) else {
            return false;
        };
        let (available, bytes) = self.given(config, place, side);
        let mut socket = self.host(place).sockets[side as usize];
        socket.say(say, &base, available, bytes).is_some()
    }

    /// True if any session has been cut over.
    pub fn is_cut(&self) -> bool {
        let cut = |h: &Host, s| h.entry(s).is_some_and(|e| e.s.two.cut_set != 0);
        self.hosts()
            .any(|h| Side::BOTH.into_iter().any(|s| cut(h, s)))
    }

    /// True if the new path has died after it had carried data that no old path can carry.
    pub fn is_lost(&self) -> bool {
        let carried = |h: &Host, s| {
            let entry = h.entry(s);
            entry.is_some_and(|e| e.state() == State::TwoPaths && two_paths::has_carried(&e.s))
        };
        let all = || self.hosts().flat_map(|h| Side::BOTH.map(|s| (h, s)));
        self.dead != [false; 2] && all().any(|(h, s)| carried(h, s))
    }

    /// True if a proxy must reset this session because its other session was reset.
    pub(crate) fn must_reset(&self, place: usize, side: Side) -> bool {
        let proxy = place > 0 && place + 1 < self.hosts.len();
        let sockets = &self.host(place).sockets;
        let own = &sockets[side as usize];
        let relays = sockets[side.other() as usize].reset && !own.dead && own.closed.is_none();
        proxy && (relays || own.refuses)
    }

    /// True if an entry may be collected.
    pub(crate) fn collectable(&self, config: &Configuration, place: usize, side: Side) -> bool {
        let host = self.host(place);
        if config.alone {
            // A session stays as long as the proxy has a socket of it.
            let two = host.entry(side).map(|e| e.state()) == Some(State::RelayTwoPaths);
            let closed = |s| self.finished(config, place, s);
            let still = self.is_still(config) && (!two || Side::BOTH.into_iter().all(closed));
            return still && host.collectable(side, true);
        }
        let ends = [(0, Side::Right), (config.hosts - 1, Side::Left)];
        let over = ends.into_iter().all(|(p, s)| self.finished(config, p, s));
        let reset = host.sockets[side as usize].dead;
        host.collectable(side, over || reset)
    }

    /// True if no socket has anything to send.
    fn is_still(&self, config: &Configuration) -> bool {
        let says = |p, s| {
            let what = [Say::New, Say::Ack, Say::Again];
            let says = what.into_iter().any(|say| self.can_say(config, p, s, say));
            (says || self.must_reset(p, s)) && !self.is_orphan(p, s)
        };
        let mut sockets = (0..config.hosts).flat_map(|p| Side::BOTH.map(|s| (p, s)));
        !sockets.any(|(p, s)| says(p, s))
    }
}
