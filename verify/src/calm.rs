//! How a state ends if from now on nothing goes wrong. Every step here is one
//! that the model may take as well. So where each reachable state ends well,
//! an end is always within reach, and a run whose faults stop gets there: in
//! a finite model a fair run cannot pass by for ever what it can always reach.
//! (`eventually` of the checker would not do: it sees no cycles, and judges a
//! state by the first path that led there.)

use dysco_common::State;
use dysco_daemon::protocol::{Role, Time, Timer};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::config::{Configuration, Request};
use crate::host::{Host, Twist};
use crate::place::Side;
use crate::socket::Say;
use crate::world::{World, digest};

/// More steps than any run has: it goes round in circles.
const ENDLESS: usize = 5000;

/// How a state ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// All is over and in order, and so many middleboxes are out.
    Ends {
        /// How many.
        removed: u8,
    },
    /// It goes on for ever.
    Endless,
    /// Nothing can happen any more, and a change is still under way.
    Stranded,
    /// The two anchors, or an anchor and the middlebox, are on different paths.
    Disagreement,
    /// A record, a lock, a bound or a second path is left over.
    Leftover,
    /// An end waits for bytes or for an acknowledgement that never come.
    Starved,
    /// Who asked has not been told the end.
    Untold,
    /// All was still and sound when it was asked for, and nothing came of it.
    NobodyWon,
}

impl Default for Fate {
    fn default() -> Fate {
        Fate::Ends { removed: 0 }
    }
}

/// Fates known already, by the names of states.
#[derive(Default)]
pub struct Fates(Mutex<FxHashMap<u64, Fate>>);

impl Fates {
    fn get(&self, name: u64) -> Option<Fate> {
        self.0.lock().get(&name).copied()
    }

    /// The fate of a state.
    pub fn of(&self, config: &Configuration, world: &World) -> Fate {
        let mut run = Run {
            config,
            world: world.clone(),
            fates: self,
            passed: Vec::new(),
            first: true,
            steps: 0,
            log: None,
        };
        let fate = run.finish();
        let mut known = self.0.lock();
        known.extend(run.passed.into_iter().map(|name| (name, fate)));
        fate
    }
}

/// The states that a state passes on its way to its end, in words.
pub fn explain(config: &Configuration, world: &World) -> Vec<String> {
    let mut run = Run {
        config,
        world: world.clone(),
        fates: &Fates::default(),
        passed: Vec::new(),
        first: true,
        steps: 0,
        log: Some(Vec::new()),
    };
    run.finish();
    run.log.unwrap_or_default()
}

struct Run<'a> {
    config: &'a Configuration,
    world: World,
    fates: &'a Fates,
    /// States whose run this one goes on with.
    passed: Vec<u64>,
    /// Each step so far follows from the state alone.
    first: bool,
    steps: usize,
    log: Option<Vec<String>>,
}

impl Run<'_> {
    fn note(&mut self) {
        if let Some(log) = &mut self.log
            && log.len() < 60
        {
            log.push(self.world.to_string());
        }
    }

    fn finish(&mut self) -> Fate {
        let mut rounds = FxHashSet::default();
        loop {
            self.first = true;
            if let Some(known) = self.settle() {
                return known;
            }
            self.first = false;
            let name = digest(&self.world);
            if !rounds.insert(name) || self.steps > ENDLESS {
                return Fate::Endless;
            }
            self.repeat_all();
            if digest(&self.world) != name {
                continue;
            }
            if !self.expire_all() {
                return judge(self.config, &self.world);
            }
        }
    }

    /// Until only time helps. The fate, if it is known on the way.
    fn settle(&mut self) -> Option<Fate> {
        loop {
            if self.first {
                let name = digest(&self.world);
                if let Some(fate) = self.fates.get(name) {
                    return Some(fate);
                }
                self.passed.push(name);
            }
            self.note();
            self.steps += 1;
            if self.steps > ENDLESS {
                return Some(Fate::Endless);
            }
            if !self.control() && !self.data() {
                return None;
            }
        }
    }

    /// The next thing that daemons have to do.
    fn control(&mut self) -> bool {
        let down = self.world.hosts().position(|h| h.machine.is_none());
        let busy = self.world.hosts().position(|h| !h.events.is_empty());
        if let Some(place) = down {
            self.world.start(self.config, place);
        } else if !self.world.net.is_empty() {
            self.world.deliver(self.config, 0, false, Twist::Plain);
        } else if let Some(place) = busy {
            self.world.happen(self.config, place, 0, Twist::Plain);
        } else {
            return false;
        }
        true
    }

    /// All that sockets have to say; false if nothing changes by it.
    fn data(&mut self) -> bool {
        let before = digest(&self.world);
        for place in 0..self.config.hosts {
            for side in Side::BOTH {
                self.talk(place, side);
            }
        }
        for place in 0..self.config.hosts {
            for side in Side::BOTH {
                if self.world.collectable(self.config, place, side) {
                    self.world.collect(self.config, place, side, Twist::Plain);
                }
            }
        }
        digest(&self.world) != before
    }

    fn talk(&mut self, place: usize, side: Side) {
        if self.world.must_reset(place, side) {
            self.world
                .packet(self.config, place, side, Say::Reset, false);
        }
        for say in [Say::New, Say::Again, Say::Ack] {
            self.world.packet(self.config, place, side, say, false);
        }
    }

    fn repeat_all(&mut self) {
        for (_, place, timer) in self.timers(|insists, _| insists.then_some(Time::ZERO)) {
            self.world.repeat(self.config, place, timer);
            let _ = self.settle();
        }
    }

    fn expire_all(&mut self) -> bool {
        let due = self.timers(|_, deadline| deadline);
        for (_, place, timer) in &due {
            let machine = self.world.host(*place).machine.as_ref();
            let waits = machine
                .is_some_and(|m| m.waits().any(|w| w.timer == *timer && w.deadline.is_some()));
            if waits {
                self.world.expire(self.config, *place, *timer, Twist::Plain);
                let _ = self.settle();
            }
        }
        !due.is_empty()
    }

    /// Timers that something is wanted of, the earliest first.
    fn timers(
        &self,
        wanted: impl Fn(bool, Option<Time>) -> Option<Time>,
    ) -> Vec<(Time, usize, Timer)> {
        let mut found = Vec::new();
        for host in self.world.hosts() {
            for w in host.machine.iter().flat_map(|m| m.waits()) {
                found.extend(wanted(w.insists, w.deadline).map(|at| (at, host.place, w.timer)));
            }
        }
        found.sort_unstable();
        found
    }
}

/// What must hold when nothing is left to happen.
fn judge(config: &Configuration, world: &World) -> Fate {
    let changes = |h: &Host| {
        h.machine
            .as_ref()
            .is_some_and(|m| m.changes().next().is_some() || m.waits().next().is_some())
    };
    if world.hosts().any(changes) {
        return Fate::Stranded;
    }
    let Some(removed) = removed(world) else {
        return Fate::Disagreement;
    };
    if world.hosts().any(left_over) {
        return Fate::Leftover;
    }
    if starved(config, world) {
        return Fate::Starved;
    }
    if untold(config, world) {
        return Fate::Untold;
    }
    if world.pure && world.asked != 0 && removed == 0 {
        return Fate::NobodyWon;
    }
    Fate::Ends { removed }
}

/// How many middleboxes are out, if all entries agree about it.
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
        // Both sessions are over and forgotten: who is left finds out.
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
            // One end has closed and is forgotten: the other finds out.
            Some(_) if states.contains(&None) => true,
            // A neighbour that is out itself.
            Some(State::Tombstone) => expected == State::Tracked,
            Some(s) => *s == expected,
        };
        if !states.iter().all(fits) {
            return None;
        }
    }
    Some(out)
}

fn left_over(host: &Host) -> bool {
    let entry = |side| {
        host.entry(side).is_some_and(|e| {
            e.s.clamp != 0 && e.state() != State::Tombstone || e.state() == State::TwoPaths
        })
    };
    !host.records.is_empty()
        || host.held.values().any(|h| h.holds())
        || Side::BOTH.into_iter().any(entry)
}

fn starved(config: &Configuration, world: &World) -> bool {
    let sockets = |h: &Host| h.sockets.iter().any(|s| s.reset);
    if world.hosts().any(sockets) {
        return false;
    }
    let last = config.hosts - 1;
    let client = world.host(0).sockets[Side::Right as usize];
    let server = world.host(last).sockets[Side::Left as usize];
    let all = [0, 1].map(|d| config.bytes[d] + u8::from(config.closes[d]));
    (client.una, server.rcv) != (all[0], all[0]) || (server.una, client.rcv) != (all[1], all[1])
}

fn untold(config: &Configuration, world: &World) -> bool {
    let mut asked = vec![0; config.hosts];
    for (i, request) in config.requests.iter().enumerate() {
        if let Request::Ask { at, .. } = request
            && world.asked & (1 << i) != 0
        {
            asked[*at] += 1;
        }
    }
    world.hosts().any(|h| {
        let told = h.endings.iter().filter(|e| e.role == Role::Asker);
        h.life == 0 && told.count() != asked[h.place]
    })
}
