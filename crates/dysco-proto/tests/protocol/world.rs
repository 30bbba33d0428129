//! A simulated world: hosts in a row, a network that loses, duplicates and reorders messages,
//! daemons that die between any two of their steps, and a clock that only events advance.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dysco_proto::command::Anchor;
use dysco_proto::{
    Action, ChangeId, HostEvent, HostId, Machine, Message, Reason, Subsession, Time,
};

use super::plane::{Effect, Refuse, Session, State, at};

// The benchmarks include this file, too.
#[path = "world/fault.rs"]
mod fault;
#[path = "world/host.rs"]
mod host;

pub(crate) use fault::{Faults, rejected};
pub(crate) use host::Host;

enum Item {
    Deliver(usize, Vec<HostId>, Vec<u8>),
    /// An event for the process that gave the command, and for no other.
    Event(usize, u64, HostEvent),
    Drain(usize, ChangeId, Subsession),
    Restart(usize),
    /// The messages leave that the process of this life holds.
    Leave(usize, u64),
}

pub(crate) struct World {
    pub now: Time,
    pub hosts: Vec<Host>,
    pub links: Vec<Subsession>,
    pub faults: Faults,
    /// Names of all messages sent, in order.
    pub sent: Vec<&'static str>,
    queue: BTreeMap<(Time, u64), Item>,
    order: u64,
    random: u64,
}

impl World {
    /// Creates a chain of this number of hosts: client, middleboxes, server.
    pub(crate) fn new(count: usize, faults: Faults) -> World {
        let address = |host: usize, side: u8| IpAddr::from([10, 0, host as u8, side]);
        let links: Vec<Subsession> = (0..count - 1)
            .map(|i| Subsession {
                left: SocketAddr::new(address(i, 2), 40_000 + i as u16),
                right: SocketAddr::new(address(i + 1, 1), 80),
            })
            .collect();
        let hosts = (0..count).map(|i| Host::new(i, &links, address)).collect();
        let mut world = World {
            now: Duration::from_secs(1),
            hosts,
            links,
            random: faults.seed.wrapping_mul(2).wrapping_add(1),
            faults,
            sent: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
        };
        for host in 0..count {
            world.start(host);
        }
        world
    }

    fn start(&mut self, host: usize) {
        let seed = (self.hosts[host].life << 8) + host as u64;
        let mut serial = 0u64;
        let ids = move || {
            serial += 1;
            let mut id = [0; 16];
            id[..8].copy_from_slice(&seed.to_be_bytes());
            id[8..].copy_from_slice(&serial.to_be_bytes());
            id
        };
        let h = &mut self.hosts[host];
        h.holds = false;
        h.machine = Some(Machine::new(h.addresses.clone(), ids));
        h.plane.adopt();
        let now = self.now;
        for record in h.plane.records.clone().into_values() {
            let machine = h.machine.as_mut().unwrap();
            machine.restore(now, &record).unwrap();
        }
        self.drive(host);
    }

    /// Returns a random number below `n`.
    fn roll(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n.max(1)
    }

    fn after(&mut self, delay: Duration, item: Item) {
        self.order += 1;
        self.queue.insert((self.now + delay, self.order), item);
    }

    /// Gives a host's machine an input, and carries out the outputs.
    pub(crate) fn input<T>(
        &mut self,
        host: usize,
        f: impl FnOnce(&mut Machine, Time) -> T,
    ) -> Option<T> {
        let now = self.now;
        let result = self.hosts[host].machine.as_mut().map(|m| f(m, now));
        if self.faults.held > 0 && !self.hosts[host].holds {
            self.hosts[host].holds = true;
            let wait = Duration::from_micros(self.roll(self.faults.held));
            self.after(wait, Item::Leave(host, self.hosts[host].life));
        }
        self.drive(host);
        result
    }

    /// Runs the daemon's loop: commands first, then messages. The daemon may die before each.
    fn drive(&mut self, host: usize) {
        loop {
            let holds = self.hosts[host].holds;
            let Some(machine) = self.hosts[host].machine.as_mut() else {
                return;
            };
            if let Some(report) = machine.poll_report() {
                self.hosts[host].reports.push(report);
                continue;
            }
            if let Some(command) = machine.poll_command() {
                if self.dies(host) {
                    return;
                }
                if let Action::Anchor(Anchor::TakeBack { .. }) = command.action {
                    self.check_take_back();
                }
                let proofs = self.hosts[host].plane.proofs.len();
                let change = command.change;
                let effect = command.carry_out(&mut self.hosts[host].plane);
                if self.hosts[host].plane.proofs.len() > proofs {
                    self.client_answers(host, change);
                }
                self.takes_effect(host, change, effect);
            } else if holds {
                return;
            } else if let Some((to, message)) = machine.poll_transmit() {
                if self.dies(host) {
                    return;
                }
                self.transmit(host, to, &message);
            } else {
                return;
            }
        }
    }

    /// Takes what a command has done on a host.
    fn takes_effect(&mut self, host: usize, change: ChangeId, effect: Effect) {
        match effect {
            Effect::Answer(event @ HostEvent::PersistFailed { .. }) => {
                let now = self.now;
                if let Some(m) = self.hosts[host].machine.as_mut() {
                    m.handle_event(now, event);
                }
            }
            Effect::Answer(event) => self.answer(host, event),
            Effect::WillDrain(change, subsession) => {
                self.drains(host, change, subsession);
            }
            Effect::CutBoth(change, cutoff, both) => {
                let cutoff = at(cutoff);
                self.answer(host, HostEvent::CutDone { change, cutoff });
                for subsession in both {
                    self.drains(host, change, subsession);
                }
            }
            Effect::Closing => {
                self.check_close(host);
                let result = Ok(());
                self.answer(host, HostEvent::Closed { change, result });
            }
            Effect::Trying(change, lost) => self.tries(host, change, lost),
            Effect::Watching(change, result) => {
                self.answer(host, HostEvent::Watching { change, result });
            }
            Effect::Nothing => {}
        }
    }

    /// Tries the new path of the left anchor on a host.
    fn tries(&mut self, host: usize, change: ChangeId, lost: bool) {
        // The right anchor's data plane answers if it receives on the path, in any state of its
        // daemon.
        let right = &self.hosts[host + 2].plane.sessions[&self.links[host + 1]];
        let left = &self.hosts[host].plane.sessions[&self.links[host]];
        let hears = right.state == State::TwoPaths;
        let result = match hears && !lost {
            true => Ok([left.fins, right.fins]),
            false => Err(Reason::NewPathUnusable("pretended".into())),
        };
        // The left anchor receives nothing in this case.
        let (at, result) = match self.faults.rejects {
            true => (host + 2, Err(rejected())),
            false => (host, result),
        };
        self.answer(at, HostEvent::Tried { change, result });
    }

    /// Delivers the client's answer to a segment. The answer arrives at the host that the client
    /// knows, and counts for the process that watches for it.
    fn client_answers(&mut self, from: usize, change: ChangeId) {
        let sent = self.hosts[from].plane.proofs.len();
        if sent <= self.faults.unheard {
            return;
        }
        let life = self.hosts[from - 1].life;
        let delay = Duration::from_micros(200 + self.roll(500));
        let event = HostEvent::Proved { change };
        self.after(delay, Item::Event(from - 1, life, event));
    }

    fn drains(&mut self, host: usize, change: ChangeId, subsession: Subsession) {
        if self.faults.stuck.contains(&host) {
            return;
        }
        let slowest = match self.faults.slowest_drain.as_millis() {
            0 => 3000,
            most => most as u64,
        };
        let delay = Duration::from_millis(self.roll(slowest));
        self.after(delay, Item::Drain(host, change, subsession));
    }

    fn answer(&mut self, host: usize, event: HostEvent) {
        let life = self.hosts[host].life;
        let delay = Duration::from_micros(self.roll(500));
        self.after(delay, Item::Event(host, life, event));
    }

    fn dies(&mut self, host: usize) -> bool {
        let h = &mut self.hosts[host];
        let step = h.steps;
        h.steps += 1;
        let found = self
            .faults
            .crashes
            .iter()
            .find(|c| (c.0, c.1) == (host, step));
        let Some(&(_, _, away)) = found else {
            return false;
        };
        h.machine = None;
        h.life += 1;
        h.plane.crash();
        self.after(away, Item::Restart(host));
        true
    }

    fn transmit(&mut self, from: usize, to: HostId, message: &Message) {
        let number = self.sent.len() as u64;
        self.sent.push(message.name());
        let target = self.hosts.iter().position(|h| h.addresses.contains(&to));
        let Some(target) = target else { return };
        let foul = self.now < self.faults.until;
        let all = self.faults.lose_all.contains(&message.name());
        let ends = [from, target] == [0, 2] || [from, target] == [2, 0];
        let parted = self
            .faults
            .parted
            .is_some_and(|(from, to)| ends && (from..to).contains(&self.now));
        if self.faults.lose == Some(number) || all || parted {
            return;
        }
        if foul && self.roll(100) < self.faults.lost {
            return;
        }
        let copies = 1 + u64::from(foul && self.roll(100) < self.faults.doubled);
        let bytes = message.encode().unwrap();
        for _ in 0..copies {
            let slowest = if foul { self.faults.slowest } else { 1 };
            let delay = Duration::from_micros(100 + self.roll(slowest * 1000));
            let addresses = self.hosts[from].addresses.clone();
            self.after(delay, Item::Deliver(target, addresses, bytes.clone()));
        }
    }

    /// A session ends on a host, by close or reset.
    pub(crate) fn session_gone(&mut self, host: usize, link: usize) {
        let subsession = self.links[link];
        self.hosts[host]
            .plane
            .sessions
            .get_mut(&subsession)
            .unwrap()
            .gone = true;
        self.input(host, |m, now| {
            m.handle_event(now, HostEvent::SessionGone { subsession });
        });
    }

    /// Carries out the next event. Returns false if there is none before `end`.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        let timer = |h: &Host| h.machine.as_ref().and_then(|m| m.poll_timeout());
        let first_timer = (0..self.hosts.len())
            .filter_map(|i| timer(&self.hosts[i]).map(|t| (t, i)))
            .min();
        let first_item = self.queue.keys().next().copied();
        match (first_timer, first_item) {
            (Some((at, host)), item) if item.is_none_or(|(t, _)| at < t) && at <= end => {
                self.now = self.now.max(at);
                self.input(host, |m, now| m.handle_timeout(now));
                true
            }
            (_, Some(key)) if key.0 <= end => {
                self.now = key.0;
                let item = self.queue.remove(&key).unwrap();
                self.happen(item);
                true
            }
            _ => false,
        }
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Deliver(host, from, bytes) => {
                let message = Message::decode(&bytes).unwrap();
                self.input(host, |m, now| m.handle_message(now, &from, message));
            }
            Item::Event(host, life, event) => {
                if self.hosts[host].life == life {
                    self.input(host, |m, now| m.handle_event(now, event));
                }
            }
            Item::Drain(host, change, subsession) => {
                let s = self.hosts[host]
                    .plane
                    .sessions
                    .get_mut(&subsession)
                    .unwrap();
                s.drained = true;
                let plane = &self.hosts[host].plane;
                let other = plane.others.get(&change).and(plane.pair);
                let both = |(a, b)| [a, b].iter().all(|w| plane.sessions[w].drained);
                if !other.is_none_or(both) {
                    return;
                }
                self.input(host, |m, now| {
                    m.handle_event(now, HostEvent::Drained { change });
                });
            }
            Item::Restart(host) => self.start(host),
            Item::Leave(host, life) => {
                if self.hosts[host].life == life {
                    self.hosts[host].holds = false;
                    self.drive(host);
                }
            }
        }
    }

    /// Runs until no event is left, at most for this time.
    pub(crate) fn run(&mut self, most: Duration) {
        let end = self.now + most;
        while self.step(end) {}
    }

    /// Kills a daemon and restarts it.
    pub(crate) fn restart(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.life += 1;
        h.plane.crash();
        self.start(host);
    }

    pub(crate) fn leave(&mut self, host: usize) -> Option<Result<ChangeId, Reason>> {
        let a = self.links[host - 1];
        self.input(host, |m, now| m.request_leave(now, a))
    }

    /// Asks for a removal without the neighbours.
    pub(crate) fn leave_locally(&mut self, host: usize) -> Option<Result<ChangeId, Reason>> {
        let a = self.links[host - 1];
        self.input(host, |m, now| m.request_local(now, a))
    }

    /// Asks that the server's host answer the client itself.
    pub(crate) fn request_dsr(&mut self, host: usize) -> Option<Result<ChangeId, Reason>> {
        let a = self.links[host - 1];
        self.input(host, |m, now| m.request_return(now, a))
    }

    pub(crate) fn session(&self, host: usize, link: usize) -> &Session {
        &self.hosts[host].plane.sessions[&self.links[link]]
    }

    pub(crate) fn session_mut(&mut self, host: usize, link: usize) -> &mut Session {
        let at = self.links[link];
        self.hosts[host].plane.sessions.get_mut(&at).unwrap()
    }

    pub(crate) fn refuse(&mut self, host: usize, what: Refuse) {
        self.hosts[host].plane.refuse = Some(what);
    }
}
