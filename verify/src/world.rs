//! A state of the model: hosts, what is on its way between them, and which
//! faults may still come.

use std::hash::{Hash, Hasher};

use dysco_common::{State, two_paths};
use dysco_proto::{Machine, Timer};

use crate::calm::Fate;
use crate::config::Configuration;
use crate::host::{Host, Outcome, Wrong};
use crate::parts::{Net, Sealed, digest, post};
use crate::place::{self, Side};
use crate::pump::{NOW, Twist};
use crate::seed;
use crate::socket::{Death, Harm, Say, Socket};

mod packets;

pub use packets::Lost;

/// How many faults of each kind may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Messages lost.
    pub losses: u8,
    /// Messages delivered that come once more.
    pub duplicates: u8,
    /// Time-outs while an answer is on its way.
    pub late: u8,
    /// Daemons that die, at any step.
    pub crashes: u8,
    /// Commands that fail.
    pub refusals: u8,
    /// Cancels by an operator.
    pub cancels: u8,
    /// Packets lost.
    pub packets: u8,
    /// Segments sent again though they may be on their way.
    pub again: u8,
    /// Resets by the applications.
    pub resets: u8,
    /// New paths that carry nothing any more.
    pub deaths: u8,
    /// Daemons that are held up between two of their steps while packets pass.
    pub delays: u8,
    /// Processes of proxies that die, whatever they hold.
    pub proxies: u8,
}

/// Which rule a state breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// By a host.
    Host(Wrong),
    /// By what a socket got to see.
    Tcp(Harm),
    /// Two segments that share a session are locked at once.
    Overlap,
}

/// The state.
#[derive(Clone)]
pub struct World {
    hosts: Vec<Sealed<Host>>,
    /// What is on its way.
    pub net: Net,
    /// Faults that may still come.
    pub left: Faults,
    /// Requests made, as bits.
    pub asked: u8,
    /// What was asked last was asked when all was still, and no fault since.
    pub pure: bool,
    /// The new path carries nothing any more, to the right and to the left.
    pub dead: [bool; 2],
    /// A session has been cut: from then on it is not the proxy's alone.
    pub cut: bool,
    /// A rule was broken on the way here.
    pub broken: Option<Broken>,
    /// How it ends if nothing more goes wrong.
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

/// In few words: the parts that hosts have, their sessions, what is on its way.
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
    /// All sessions open, nothing asked for.
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

    /// All hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &Host> + DoubleEndedIterator {
        self.hosts.iter().map(Sealed::get)
    }

    /// One of them.
    pub fn host(&self, place: usize) -> &Host {
        self.hosts[place].get()
    }

    /// Changes a host, and names it anew.
    pub fn edit<T>(&mut self, place: usize, f: impl FnOnce(&mut Host) -> T) -> T {
        self.hosts[place].edit(f)
    }

    /// Takes in what an input of a host brought; false if its twist found
    /// nothing to act on.
    fn settle(&mut self, config: &Configuration, place: usize, twist: Twist, out: Outcome) -> bool {
        for (to, message) in out.letters {
            if seed::mutes(config.seed, &message) {
                continue;
            }
            if let Some(to) = place::place_of(to).filter(|to| *to < self.hosts.len()) {
                post(&mut self.net, place, to, message);
            }
        }
        if let Some(wrong) = out.wrong {
            self.broken = Some(Broken::Host(wrong));
        }
        self.reset_ends(place);
        if config.prompt {
            self.answer(config, place);
        }
        seed::after(config, self, place);
        twist == Twist::Plain || out.twisted
    }

    /// What takes a host some time takes none.
    fn answer(&mut self, config: &Configuration, place: usize) {
        let host = self.host(place);
        if host.machine.is_none() || !host.rest.is_empty() {
            return;
        }
        if !host.events.is_empty() {
            self.happen(config, place, 0, Twist::Plain);
        } else if !host.ring.is_empty() {
            self.listen(config, place, Twist::Plain);
        }
    }

    /// A timer says its message again.
    pub fn repeat(&mut self, config: &Configuration, place: usize, timer: Timer) {
        let mut out = self.edit(place, |h| h.input(Twist::Plain, |m| m.repeat(NOW, timer)));
        out.letters
            .retain(|(_, message)| !seed::silences(config.seed, message));
        self.settle(config, place, Twist::Plain, out);
    }

    /// A timer's deadline passes.
    pub fn expire(
        &mut self,
        config: &Configuration,
        place: usize,
        timer: Timer,
        twist: Twist,
    ) -> bool {
        self.input(config, place, twist, |m| m.expire(NOW, timer))
    }

    /// Nothing is on its way and no daemon is away or at work: only time can
    /// do anything about the changes.
    pub fn only_time_helps(&self) -> bool {
        self.net.is_empty() && self.hosts().all(Host::idle)
    }

    /// An input of a host's machine.
    pub fn input(
        &mut self,
        config: &Configuration,
        place: usize,
        twist: Twist,
        give: impl FnOnce(&mut Machine),
    ) -> bool {
        let out = self.edit(place, |h| h.input(twist, give));
        self.settle(config, place, twist, out)
    }

    /// A message arrives. A dead daemon does not hear it.
    pub fn deliver(
        &mut self,
        config: &Configuration,
        index: usize,
        keep: bool,
        twist: Twist,
    ) -> bool {
        let letter = self.net[index].clone();
        if !keep {
            self.net.remove(index);
        }
        if !seed::hears(config.seed, self, &letter) {
            return twist == Twist::Plain;
        }
        let from = place::addresses(letter.from);
        let message = letter.message.clone();
        self.input(config, letter.to, twist, |m| {
            m.handle_message(NOW, &from, message);
        })
    }

    /// Something that a host waited for has happened.
    pub fn happen(
        &mut self,
        config: &Configuration,
        place: usize,
        index: usize,
        twist: Twist,
    ) -> bool {
        let out = self.edit(place, |h| h.happen(index, twist));
        self.settle(config, place, twist, out)
    }

    /// A daemon takes in what its programs have told.
    pub fn listen(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        let out = self.edit(place, |h| h.listen(twist));
        self.settle(config, place, twist, out)
    }

    /// A daemon starts anew.
    pub fn start(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        let out = self.edit(place, |h| h.start(twist));
        self.settle(config, place, twist, out)
    }

    /// A daemon that was held up goes on.
    pub fn go_on(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        self.input(config, place, twist, |_| ())
    }

    /// An entry is collected.
    pub fn collect(
        &mut self,
        config: &Configuration,
        place: usize,
        side: Side,
        twist: Twist,
    ) -> bool {
        let out = self.edit(place, |h| h.collect(side, twist));
        self.settle(config, place, twist, out)
    }

    /// Units that a socket has been given to send, and how many units of its
    /// direction are bytes.
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
            // Its kernel sends what it was given, and a FIN.
            (false, Some(end)) if end <= bytes => (end + 1, end),
            (false, Some(end)) => (end, bytes),
            // A proxy relays what it got on the other side.
            (false, None) => (sockets[side.other() as usize].rcv, bytes),
        }
    }

    /// The process of a proxy dies: how its kernel ends the sockets to the left and to the
    /// right.
    pub fn proxy_dies(&mut self, place: usize, how: [Death; 2]) -> bool {
        self.edit(place, |h| {
            let all = Side::BOTH.map(|side| h.sockets[side.other() as usize].rcv);
            let sockets = h.sockets.iter_mut().zip(how).zip(all);
            sockets.fold(true, |died, ((socket, how), all)| {
                socket.dies(how, all) && died
            })
        })
    }

    /// The client's socket, and the server's.
    pub fn ends(&self) -> [&Socket; 2] {
        let last = self.hosts.len() - 1;
        let client = &self.host(0).sockets[Side::Right as usize];
        [client, &self.host(last).sockets[Side::Left as usize]]
    }

    /// Has the process of a proxy died?
    pub fn has_died(&self) -> bool {
        self.hosts()
            .any(|h| h.sockets.iter().any(|s| s.closed.is_some()))
    }

    /// Has it no process, and does nobody answer it? Then the kernel gives it up.
    fn is_orphan(&self, place: usize, side: Side) -> bool {
        let dead = |(place, side): (usize, Side)| self.host(place).sockets[side as usize].dead;
        let closed = self.host(place).sockets[side as usize].closed.is_some();
        closed && packets::opposite(place, side).is_none_or(dead)
    }

    /// Is a socket through with all that both directions will ever carry?
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

    /// Has a socket reason for such a segment?
    pub fn can_say(&self, config: &Configuration, place: usize, side: Side, say: Say) -> bool {
        let Some(base) = place::base(place, side, config.hosts) else {
            return false;
        };
        let (available, bytes) = self.given(config, place, side);
        let mut socket = self.host(place).sockets[side as usize];
        socket.say(say, &base, available, bytes).is_some()
    }

    /// Has any session been cut?
    pub fn is_cut(&self) -> bool {
        let cut = |h: &Host, s| h.entry(s).is_some_and(|e| e.s.two.cut_set != 0);
        self.hosts()
            .any(|h| Side::BOTH.into_iter().any(|s| cut(h, s)))
    }

    /// The new path dies, in these directions: only while it is between.
    pub fn dies(&mut self, ways: [bool; 2]) -> bool {
        if !self.is_cut() || self.dead != [false; 2] {
            return false;
        }
        self.dead = ways;
        for place in 0..self.hosts.len() {
            self.edit(place, |h| h.silent = true);
        }
        true
    }

    /// What lies between the two hosts carries packets again.
    pub fn mended(&mut self) {
        if self.dead != [false; 2] {
            self.dead = [false; 2];
            for place in 0..self.hosts.len() {
                self.edit(place, |h| h.silent = false);
            }
        }
    }

    /// Has the new path died when it had carried what no old path can?
    pub fn is_lost(&self) -> bool {
        let carried = |h: &Host, s| {
            let entry = h.entry(s);
            entry.is_some_and(|e| e.state() == State::TwoPaths && two_paths::has_carried(&e.s))
        };
        let all = || self.hosts().flat_map(|h| Side::BOTH.map(|s| (h, s)));
        self.dead != [false; 2] && all().any(|(h, s)| carried(h, s))
    }

    /// A proxy whose one session was reset resets the other.
    pub fn must_reset(&self, place: usize, side: Side) -> bool {
        let proxy = place > 0 && place + 1 < self.hosts.len();
        let sockets = &self.host(place).sockets;
        let own = &sockets[side as usize];
        let relays = sockets[side.other() as usize].reset && !own.dead && own.closed.is_none();
        proxy && (relays || own.refuses)
    }

    /// May an entry be collected?
    pub fn collectable(&self, config: &Configuration, place: usize, side: Side) -> bool {
        let host = self.host(place);
        if config.alone {
            // As long as the proxy has a socket of it a session stays.
            let two = host.entry(side).map(|e| e.state()) == Some(State::FarTwoPaths);
            let closed = |s| self.finished(config, place, s);
            let still = self.is_still(config) && (!two || Side::BOTH.into_iter().all(closed));
            return still && host.collectable(side, true);
        }
        let ends = [(0, Side::Right), (config.hosts - 1, Side::Left)];
        let over = ends.into_iter().all(|(p, s)| self.finished(config, p, s));
        let reset = host.sockets[side as usize].dead;
        host.collectable(side, over || reset)
    }

    /// Has no socket anything to say?
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
