//! How a state ends if from now on nothing goes wrong: see the other `calm`.

use dysco_daemon::protocol::{ChangeId, Machine, Message, Order, Role, Time, Timer};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::config::{Configuration, LEFT, RIGHT};
use super::host::{self, Host, address};
use super::world::World;
use crate::host::{NOW, Twist};
use crate::world::digest;

/// More steps than any run has: it goes round in circles.
const ENDLESS: usize = 2000;

/// How a state ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// All is over and in order.
    #[default]
    Ends,
    /// It goes on for ever.
    Endless,
    /// Nothing can happen any more, and a change is still under way.
    Stranded,
    /// The two anchors are on different paths, or on one that carries nothing.
    Disagreement,
    /// A record, a lock, or a second path is left over.
    Leftover,
    /// A host that is left out still knows the session.
    Remembered,
    /// Who asked has not been told the end.
    Untold,
    /// Nothing went wrong, and nothing came of what was asked for.
    NobodyWon,
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
        let mut run = Run::new(config, world, self);
        let fate = run.finish();
        let mut known = self.0.lock();
        known.extend(run.passed.into_iter().map(|name| (name, fate)));
        fate
    }
}

/// The states that a state passes on its way to its end, in words.
pub fn explain(config: &Configuration, world: &World) -> Vec<String> {
    let fates = Fates::default();
    let mut run = Run::new(config, world, &fates);
    run.log = Some(Vec::new());
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

impl<'a> Run<'a> {
    fn new(config: &'a Configuration, world: &World, fates: &'a Fates) -> Run<'a> {
        Run {
            config,
            world: world.clone(),
            fates,
            passed: Vec::new(),
            first: true,
            steps: 0,
            log: None,
        }
    }

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
                return judge(&self.world);
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
            if !self.step() {
                return None;
            }
        }
    }

    /// The next thing that daemons have to do.
    fn step(&mut self) -> bool {
        let (config, world) = (self.config, &mut self.world);
        let down = world.hosts().position(|h| h.machine.is_none());
        let busy = world.hosts().position(|h| !h.events.is_empty());
        let carried = [LEFT, RIGHT]
            .into_iter()
            .find(|p| world.carried(*p).is_some());
        let late = [LEFT, RIGHT]
            .into_iter()
            .find(|p| world.waits_late(*p).is_some());
        if let Some(place) = down {
            world.start(config, place);
        } else if !world.net.is_empty() {
            world.deliver(config, 0, false, Twist::Plain);
        } else if let Some(place) = busy {
            world.happen(config, place, 0, Twist::Plain);
        } else if let Some(place) = carried {
            world.look(config, place, Twist::Plain);
        } else if let Some(place) = late {
            world.late(config, place);
        } else {
            return false;
        }
        true
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
fn judge(world: &World) -> Fate {
    let under_way = |m: &Machine| m.changes().next().is_some() || m.waits().next().is_some();
    if world
        .hosts()
        .any(|h| h.machine.as_ref().is_some_and(under_way))
    {
        return Fate::Stranded;
    }
    let [left, right] = world.anchors();
    let route = left.plane.current;
    if !world.gone() && (route != right.plane.current || world.is_dead(route)) {
        return Fate::Disagreement;
    }
    let left_over = |h: &Host| {
        let paths = !world.gone() && (h.plane.other.is_some() || h.plane.awaits);
        !h.records.is_empty() || !h.held.is_empty() || paths
    };
    if world.hosts().any(left_over) || !is_free(left) || !is_free(right) {
        return Fate::Leftover;
    }
    let remembers = |h: &Host| h.knows.iter().any(|known| *known != route);
    if !world.gone() && !world.impatient && world.hosts().any(remembers) {
        return Fate::Remembered;
    }
    let untold = world.accepted.iter().any(|a| {
        let told = |h: &Host| {
            h.endings
                .iter()
                .any(|e| e.change == a.change && e.role == Role::Head)
        };
        a.life == left.life && !told(left)
    });
    if untold {
        return Fate::Untold;
    }
    if world.pure && !world.accepted.is_empty() && route.is_none() {
        return Fate::NobodyWon;
    }
    Fate::Ends
}

/// Would an anchor take part in another change?
fn is_free(host: &Host) -> bool {
    let Some(mut machine) = host.machine.clone() else {
        return false;
    };
    let session = host::session();
    if host.place == LEFT {
        let order = Order {
            session,
            before: Vec::new(),
            after: Vec::new(),
            state: Vec::new(),
        };
        return machine.request_chain(NOW, order).is_ok();
    }
    let message = Message::Extend {
        change: ChangeId([0xff; 16]),
        session,
        token: [0; 2],
    };
    machine.handle_message(NOW, &[address(LEFT)], message);
    machine.poll_command().is_some()
}
