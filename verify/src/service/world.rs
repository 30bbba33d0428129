//! A state: both ends, the hosts with their handlers and daemons, and everything in flight.

use std::fmt;
use std::hash::{Hash, Hasher};

use dysco_common::detour::{cut, phase};

use super::config::{Configuration, Faults, HISTORY};
use super::daemon::{Daemon, Letter, Stage};
use super::fate::Fate;
use super::handler::{Delta, Handler};
use super::network::{Late, Side, To};
use super::record::Record;
use super::tcp::{ADDED, Byte, Harm, Tcp};

/// First numbers of the two ends. They wrap within the first bytes.
pub(super) const FIRST: [u32; 2] = [u32::MAX - 1, u32::MAX];
/// First numbers between a handler's sockets and the ends. They wrap as well.
pub(super) const START: [u32; 2] = [u32::MAX - 2, 0x7fff_ffff];

/// A host with an end, and `dyscod`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// The record of the session's detour.
    pub record: Record,
    /// The handler's part of the session.
    pub handler: Option<Handler>,
    /// The daemon.
    pub daemon: Daemon,
}

/// Bytes of a direction that pass services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// The first byte.
    pub from: u8,
    /// The first byte after them, once it is known.
    pub to: Option<u8>,
    /// Change of the number of bytes by the services.
    pub delta: Delta,
}

impl Part {
    /// True if the byte at this place passes the services.
    pub fn covers(&self, at: u8) -> bool {
        self.from <= at && self.to.is_none_or(|to| at < to)
    }
}

/// A rule that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// A socket has noticed a fault.
    Tcp(Harm),
    /// An end got a byte that is not the next one of its stream.
    Stream,
    /// A byte between two cutoffs left a host as it was.
    Plain,
    /// The hosts have different cutoffs.
    Cutoffs,
    /// An end was reset without need.
    Reset,
}

/// A state.
#[derive(Clone, PartialEq, Eq)]
pub struct World {
    /// Sockets of the programs.
    pub ends: [Tcp; 2],
    /// Hosts that run a daemon: that of the first end, or both.
    pub hosts: Vec<Host>,
    /// Packets that come late, in order.
    pub late: Vec<Late>,
    /// Messages between the daemons, in no order.
    pub net: Vec<Letter>,
    /// Connections between handlers: the state of both sides.
    pub tunnels: Vec<[Side; 2]>,
    /// Bytes of both directions that pass services.
    pub parts: [Vec<Part>; 2],
    /// Number of requests to put services in that may still come.
    pub puts: u8,
    /// Number of requests to take services out that may still come.
    pub takes: u8,
    /// Number of pairs so far.
    pub pairs: u8,
    /// Faults that may still occur.
    pub left: Faults,
    /// True if the session may be reset: bytes were in a handler that has died, or a daemon died
    /// between the orders of two hosts.
    pub excused: bool,
    /// True if only one host had changed the session's routes at that time.
    pub uneven: bool,
    /// Events of the past, by [`super::config::Seen`].
    pub history: u16,
    /// The rule that does not hold.
    pub broken: Option<Broken>,
    /// The end of the state, if no fault occurs from now on.
    pub fate: Fate,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.ends, &self.hosts, &self.late, &self.net).hash(state);
        (&self.tunnels, &self.parts, self.puts, self.takes).hash(state);
        (self.pairs, &self.left, self.excused, self.uneven).hash(state);
        (self.history, self.broken).hash(state);
    }
}

impl World {
    /// Returns the first state of a configuration.
    pub fn new(config: &Configuration) -> World {
        let end = |i: usize| {
            let mut tcp = Tcp::new(FIRST[i], FIRST[1 - i]);
            tcp.sends = (0..config.bytes[i]).collect();
            tcp.ends = config.closes[i];
            tcp
        };
        let host = |i: usize| Host {
            record: Record::new([FIRST[i], FIRST[1 - i]], config.pair),
            handler: None,
            daemon: Daemon::default(),
        };
        World {
            ends: [end(0), end(1)],
            hosts: (0..if config.pair { 2 } else { 1 }).map(host).collect(),
            late: Vec::new(),
            net: Vec::new(),
            tunnels: Vec::new(),
            parts: Default::default(),
            puts: config.puts.len() as u8,
            takes: config.takes,
            pairs: 0,
            left: config.faults,
            excused: false,
            uneven: false,
            history: 0,
            broken: None,
            fate: Fate::Good,
        }
    }

    /// Records an event that must be seen somewhere.
    pub fn saw(&mut self, what: super::config::Seen) {
        self.history |= HISTORY & 1 << what as u16;
    }

    /// Notes the cutoffs of a host that were set since its record was `before`.
    pub(crate) fn note_cuts(&mut self, config: &Configuration, host: usize, before: &Record) {
        let now = self.hosts[host].record.0;
        for (out, was, way) in [
            (true, before.0.out, now.out),
            (false, before.0.back, now.back),
        ] {
            let was_set = was.changes() && was.cut_set == cut::SET && was.phase == way.phase;
            if was_set || !way.changes() || way.cut_set != cut::SET {
                continue;
            }
            let d = if out { host } else { 1 - host };
            let at = way.cut.wrapping_sub(FIRST[d]) as u8;
            let at = at.min(self.ends[d].sends.len() as u8);
            let entering = way.phase == phase::ENTERING;
            if config.pair && !out {
                self.compare_cuts(d, entering, at);
            } else if entering {
                let handler = self.hosts[host].handler.as_ref();
                let delta = handler.map_or(Delta::Zero, |handler| handler.deltas[d]);
                let left = handler.is_some_and(|handler| handler.left);
                let to = left.then_some(at);
                self.parts[d].push(Part {
                    from: at,
                    to,
                    delta,
                });
            } else if let Some(part) = self.parts[d].last_mut().filter(|_| config.pair) {
                part.to = Some(at);
            }
        }
    }

    /// Compares the cutoff that the receiver's host has with that of the sender's host.
    fn compare_cuts(&mut self, d: usize, entering: bool, at: u8) {
        let part = self.parts[d].last();
        let same = part.is_some_and(|part| match entering {
            true => part.from == at,
            false => part.to == Some(at),
        });
        if !same {
            self.broken = Some(Broken::Cutoffs);
        }
    }

    /// True if the byte at this place passes services.
    pub fn covers(&self, d: usize, at: u8) -> bool {
        self.parts[d].iter().any(|part| part.covers(at))
    }

    /// Returns the stream that the receiver of a direction has to get.
    pub fn expected(&self, config: &Configuration, d: usize) -> Vec<Byte> {
        let mut all = Vec::new();
        for byte in &self.ends[d].sends {
            let part = self.parts[d].iter().find(|part| part.covers(*byte));
            match part {
                None => all.push(*byte),
                Some(_) if config.pair => all.push(byte | ADDED),
                Some(part) => all.extend(part.delta.of(*byte, part.from == *byte)),
            }
        }
        all
    }

    /// Checks what the ends have got so far, and whether one of them was reset.
    pub fn check(&mut self, config: &Configuration) {
        for d in 0..2 {
            let got = &self.ends[1 - d].got;
            if !self.expected(config, d).starts_with(got) {
                self.broken.get_or_insert(Broken::Stream);
            }
        }
        if !self.excused && self.ends.iter().any(|end| end.dead) {
            self.broken.get_or_insert(Broken::Reset);
        }
    }

    /// Ends the excuse for a reset once the change that it was for has ended with both ends alive, and
    /// nothing of it is on its way.
    pub(crate) fn excuse_no_more(&mut self, config: &Configuration) {
        let alive = self.ends.iter().all(|end| !end.dead);
        let quiet = self.net.is_empty() && self.late.is_empty();
        let running = self.hosts.iter().all(|host| !host.daemon.dead);
        if self.excused && alive && quiet && running && self.is_settled(config) {
            (self.excused, self.uneven) = (false, false);
        }
    }

    /// Notes that a process dies, after which a session may be reset. If only one host has changed
    /// the session's routes by then, the end of the other host is not notified.
    pub fn excuse(&mut self) {
        let ordered = |host: &Host| !host.record.are(phase::DIRECT);
        let ordered = self.hosts.iter().filter(|host| ordered(host)).count();
        let accepted = self
            .hosts
            .iter()
            .any(|host| host.daemon.stage == Stage::Accepted);
        self.excused |= ordered > 0 || accepted;
        self.uneven |= self.hosts.len() == 2 && (ordered == 1 || accepted);
    }

    /// Makes the handler of a host forget the session. Packets to its sockets are then lost.
    pub(crate) fn drop_handler(&mut self, host: usize) {
        self.hosts[host].handler = None;
        self.late
            .retain(|late| !matches!(late.to, To::Socket(at, _) if at == host));
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, end) in self.ends.iter().enumerate() {
            write!(f, "{i}: {end} ")?;
        }
        for (i, host) in self.hosts.iter().enumerate() {
            let d = &host.record.0;
            let ways = [&d.out, &d.back].map(|way| {
                let phase = ["direct", "entering", "through", "leaving"][way.phase as usize & 3];
                let cut = if way.cut_set == cut::SET { "|" } else { "" };
                let flags = [way.released, way.received];
                format!("{phase}{cut}{}{}", flags[0], flags[1])
            });
            write!(f, "H{i} {} {}", host.daemon, ways.join("/"))?;
            if let Some(handler) = &host.handler {
                let names = ["near", "far"].into_iter().zip(&handler.sockets);
                for (name, socket) in names {
                    if let Some(socket) = socket {
                        write!(f, " {name} {socket}")?;
                    }
                }
            }
            write!(f, "; ")?;
        }
        let letters: Vec<String> = self.net.iter().map(ToString::to_string).collect();
        write!(f, "[{}] late {}", letters.join(" "), self.late.len())
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, heard) = self.progress();
        let dead = if self.dead { "†" } else { "" };
        write!(
            f,
            "{heard}<{sent}<{} got {:02x?}{dead}",
            self.sends.len(),
            self.got
        )
    }
}
