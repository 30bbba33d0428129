//! Outcome of a state if nothing goes wrong from now on.

use dysco_common::State;
use dysco_proto::{Machine, Role, Timer};

use crate::config::{Configuration, Request};
use crate::drive::Twist;
use crate::fate::Fate;
use crate::host::{Alone, Host};
use crate::parts::digest;
use crate::place::Side;
use crate::run::Quiesce;
use crate::socket::Say;
use crate::world::{Lost, World};

impl Quiesce for World {
    type Configuration = Configuration;
    type Fate = Fate;

    const ENDLESS: Fate = Fate::Endless;
    const STEPS: usize = 5000;

    fn machines(&self) -> impl Iterator<Item = (usize, &Machine)> {
        self.hosts()
            .filter_map(|h| Some((h.place, h.machine.as_ref()?)))
    }

    fn step(&mut self, config: &Configuration) -> bool {
        self.control(config) || self.data(config)
    }

    fn says_again(&mut self, config: &Configuration, place: usize, timer: Timer) {
        self.repeat(config, place, timer);
    }

    fn times_out(&mut self, config: &Configuration, place: usize, timer: Timer) {
        self.expire(config, place, timer, Twist::Plain);
    }

    fn judge(&self, config: &Configuration) -> Fate {
        judge(config, self)
    }
}

impl World {
    /// Performs the next step of the daemons.
    fn control(&mut self, config: &Configuration) -> bool {
        let down = self.hosts().position(|h| h.machine.is_none());
        let held_up = self.hosts().position(|h| !h.rest.is_empty());
        let reported = self.hosts().position(|h| !h.ring.is_empty());
        let busy = self.hosts().position(|h| !h.events.is_empty());
        if let Some(place) = down {
            self.start(config, place, Twist::Plain);
        } else if let Some(place) = held_up {
            self.go_on(config, place, Twist::Plain);
        } else if !self.net.is_empty() {
            self.deliver(config, 0, false, Twist::Plain);
        } else if let Some(place) = busy {
            self.happen(config, place, 0, Twist::Plain);
        } else if let Some(place) = reported {
            self.listen(config, place, Twist::Plain);
        } else {
            return false;
        }
        true
    }

    /// Sends everything that the sockets have to send. Returns false if that changes nothing.
    fn data(&mut self, config: &Configuration) -> bool {
        let before = digest(self);
        for place in 0..config.hosts {
            self.announce(place);
            for side in Side::BOTH {
                self.talk(config, place, side);
            }
        }
        for place in 0..config.hosts {
            for side in Side::BOTH {
                // The collection takes place seconds later, after all notices of the programs.
                if self.host(place).idle() && self.collectable(config, place, side) {
                    self.collect(config, place, side, Twist::Plain);
                }
            }
        }
        digest(self) != before
    }

    fn talk(&mut self, config: &Configuration, place: usize, side: Side) {
        if self.must_reset(place, side) {
            self.packet(config, place, side, Say::Reset, Lost::Nowhere);
        }
        for say in [Say::New, Say::Again, Say::Ack] {
            self.packet(config, place, side, say, Lost::Nowhere);
        }
    }
}

/// Checks what must hold when nothing is left to happen.
fn judge(config: &Configuration, world: &World) -> Fate {
    let changes = |h: &Host| {
        h.machine
            .as_ref()
            .is_some_and(|m| m.changes().next().is_some() || m.waits().next().is_some())
    };
    if world.hosts().any(changes) {
        return Fate::Stranded;
    }
    let removed = match config.alone {
        true => relayed(world),
        false => removed(world),
    };
    let Some(removed) = removed else {
        return Fate::Disagreement;
    };
    if world.hosts().any(left_over) {
        return Fate::Leftover;
    }
    // The path died after it had been shown to carry everything that was sent elsewhere, and had
    // been accepted for good: `Wrong::CompletedUndrained` ensures that.
    let gone = world.dead != [false; 2] && removed > 0;
    if let Some(fate) = dead(config, world) {
        return fate;
    }
    if starved(config, world) && !gone {
        return Fate::Starved;
    }
    if unreported(config, world) {
        return Fate::Unreported;
    }
    let lost = match config.alone {
        true => !won(world),
        false => removed == 0,
    };
    // Only the proxy's path carries anything.
    let could = config.nature.is_plain();
    if world.pure && world.asked != 0 && lost && could {
        return Fate::NobodyWon;
    }
    Fate::Ends { removed }
}

/// Number of middleboxes that have been removed, if all entries agree about it.
fn removed(world: &World) -> Option<u8> {
    let hosts: Vec<&Host> = world.hosts().collect();
    let state = |place: usize, side| hosts[place].entry(side).map(|e| e.state());
    let mut out = 0;
    for middle in 1..hosts.len() - 1 {
        let own = Side::BOTH.map(|side| state(middle, side));
        let tomb = own.contains(&Some(State::Tombstone));
        let whole = |s: &Option<State>| matches!(s, None | Some(State::Tombstone));
        let anchors = [(middle - 1, Side::Right), (middle + 1, Side::Left)];
        let states = anchors.map(|(place, side)| state(place, side));
        // Both sessions are over and forgotten: the remaining hosts notice that.
        if own == [None, None] {
            continue;
        }
        let expected = match tomb {
            true if !own.iter().all(whole) => return None,
            true => {
                let paths = anchors.map(|(place, side)| hosts[place].entry(side).map(|e| e.path));
                if let [Some(l), Some(r)] = paths
                    && l != r
                {
                    return None;
                }
                out += 1;
                State::NewPath
            }
            false => State::Tracked,
        };
        let fits = |s: &Option<State>| match s {
            None => true,
            // One end has closed and is forgotten: the other end notices that.
            Some(_) if states.contains(&None) => true,
            // This neighbour has been removed itself.
            Some(State::Tombstone) => expected == State::Tracked,
            Some(s) => *s == expected,
        };
        if !states.iter().all(fits) {
            return None;
        }
    }
    Some(out)
}

/// Number of removed middleboxes for a host that is both anchors: the host relays and the proxy has
/// no socket left, or everything is as it was.
fn relayed(world: &World) -> Option<u8> {
    let host = world.host(1);
    let closed = host.sockets.iter().all(|s| s.dead);
    let state = |side| host.entry(side).map(|e| e.state());
    match Side::BOTH.map(state) {
        [Some(State::Relay), Some(State::Relay)] if closed => Some(1),
        [None | Some(State::Tracked), None | Some(State::Tracked)] => Some(0),
        _ => None,
    }
}

/// True if the last request was carried out, or was refused for the only good reason.
fn won(world: &World) -> bool {
    let last = world.host(1).endings.last();
    last.is_some_and(|e| e.removed || e.alone == Some(Alone::Already))
}

fn left_over(host: &Host) -> bool {
    let entry = |side| {
        host.entry(side).is_some_and(|e| {
            let bound = e.s.clamp != 0 || e.s.clamp_remote != 0;
            let two = matches!(e.state(), State::TwoPaths | State::RelayTwoPaths);
            bound && e.state() != State::Tombstone || two
        })
    };
    !host.records.is_empty()
        || host.held.values().any(|h| h.holds())
        || Side::BOTH.into_iter().any(entry)
}

/// Outcome if the proxy has died after the session stopped being the proxy's alone.
fn dead(config: &Configuration, world: &World) -> Option<Fate> {
    let reset = world.ends().map(|s| s.reset);
    if !world.has_died() || !world.cut || reset == [false; 2] {
        return None;
    }
    let removed = |h: &Host| h.endings.iter().any(|e| e.removed);
    if reset != [true; 2] && !finished(config, world) {
        return Some(Fate::HalfDead);
    }
    let reported = world.hosts().any(removed) && !finished(config, world);
    reported.then_some(Fate::FalselyRemoved)
}

/// True if both ends have received everything that was ever sent to them.
fn finished(config: &Configuration, world: &World) -> bool {
    let all = config.whole();
    let [client, server] = world.ends();
    (server.rcv, client.rcv) == (all[0], all[1])
}

fn starved(config: &Configuration, world: &World) -> bool {
    let sockets = |h: &Host| h.sockets.iter().any(|s| s.reset);
    if world.hosts().any(sockets) {
        return false;
    }
    // A proxy that dies before the cutover ends its session as it would without Dysco.
    if world.has_died() && !world.cut {
        return false;
    }
    let [client, server] = world.ends();
    let all = config.whole();
    (client.una, server.rcv) != (all[0], all[0]) || (server.una, client.rcv) != (all[1], all[1])
}

fn unreported(config: &Configuration, world: &World) -> bool {
    let mut asked = vec![0; config.hosts];
    for (i, request) in config.requests.iter().enumerate() {
        if let Request::Ask { at, .. } = request
            && world.asked & (1 << i) != 0
        {
            asked[*at] += 1;
        }
    }
    world.hosts().any(|h| {
        let reported = h.endings.iter().filter(|e| e.role == Role::Asker);
        h.life == 0 && reported.count() != asked[h.place]
    })
}
