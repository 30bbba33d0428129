//! Outcome of a state if nothing goes wrong from now on. The model may also take every step that is
//! taken here. If each reachable state ends well, an end is therefore always within reach, and a
//! run whose faults stop gets there: in a finite model a fair run cannot forever bypass what it can
//! always reach. (`eventually` of the checker is not sufficient: it sees no cycles, and judges a
//! state by the first path that led there.)

use std::fmt::{Debug, Display};
use std::hash::Hash;

use dysco_proto::{Machine, Time, Timer};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::parts::digest;

/// Maximum number of states in an explanation.
const REPORTED: usize = 60;

/// A state of a model that proceeds without faults.
pub(crate) trait Quiesce: Clone + Hash + Display {
    /// Type of the configuration.
    type Configuration;
    /// Type of the outcome.
    type Fate: Copy;

    /// Outcome of a run that never comes to rest.
    const ENDLESS: Self::Fate;
    /// Maximum number of steps of a run. A run with more steps is a cycle.
    const STEPS: usize;

    /// Running machines, each with the index of its host.
    fn machines(&self) -> impl Iterator<Item = (usize, &Machine)>;

    /// Performs the next step that needs no time. Returns false if there is none.
    fn step(&mut self, config: &Self::Configuration) -> bool;

    /// Makes a timer repeat its message.
    fn says_again(&mut self, config: &Self::Configuration, place: usize, timer: Timer);

    /// Makes a timer's deadline pass.
    fn times_out(&mut self, config: &Self::Configuration, place: usize, timer: Timer);

    /// Checks what must hold when nothing is left to happen.
    fn judge(&self, config: &Self::Configuration) -> Self::Fate;
}

/// Known outcomes, by the names of states.
pub(crate) struct Fates<W: Quiesce>(Mutex<FxHashMap<u64, W::Fate>>);

impl<W: Quiesce> Default for Fates<W> {
    fn default() -> Fates<W> {
        Fates(Mutex::default())
    }
}

impl<W: Quiesce> Fates<W> {
    fn get(&self, name: u64) -> Option<W::Fate> {
        self.0.lock().get(&name).copied()
    }

    /// Returns the outcome of a state.
    pub(crate) fn of(&self, config: &W::Configuration, world: &W) -> W::Fate {
        let mut run = Run::new(config, world, self);
        let fate = run.finish();
        let mut known = self.0.lock();
        known.extend(run.passed.into_iter().map(|name| (name, fate)));
        fate
    }
}

/// Returns the states between a state and its end, in words.
fn explain<W: Quiesce>(config: &W::Configuration, world: &W) -> Vec<String> {
    let fates = Fates::default();
    let mut run = Run::new(config, world, &fates);
    run.log = Some(Vec::new());
    run.finish();
    run.log.unwrap_or_default()
}

/// Describes the rule that a state breaks and its outcome, and the states between it and its end.
pub(crate) fn account<W: Quiesce>(
    config: &W::Configuration,
    world: &W,
    broken: &impl Debug,
    fate: &impl Debug,
) -> Vec<String> {
    let mut lines = vec![format!("broken: {broken:?}, fate: {fate:?}")];
    let after = explain(config, world).into_iter();
    lines.extend(after.map(|line| format!("   {line}")));
    lines
}

struct Run<'a, W: Quiesce> {
    config: &'a W::Configuration,
    world: W,
    fates: &'a Fates<W>,
    /// States that lie on this run.
    passed: Vec<u64>,
    /// True if each step so far follows from the state alone.
    first: bool,
    steps: usize,
    log: Option<Vec<String>>,
}

impl<'a, W: Quiesce> Run<'a, W> {
    fn new(config: &'a W::Configuration, world: &W, fates: &'a Fates<W>) -> Run<'a, W> {
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
            && log.len() < REPORTED
        {
            log.push(self.world.to_string());
        }
    }

    fn finish(&mut self) -> W::Fate {
        let mut rounds = FxHashSet::default();
        loop {
            self.first = true;
            if let Some(known) = self.settle() {
                return known;
            }
            self.first = false;
            let name = digest(&self.world);
            if !rounds.insert(name) || self.steps > W::STEPS {
                return W::ENDLESS;
            }
            self.repeat_all();
            if digest(&self.world) != name {
                continue;
            }
            if !self.expire_all() {
                // Many runs end in few states.
                let known = self.fates.get(name);
                self.passed.push(name);
                return known.unwrap_or_else(|| self.world.judge(self.config));
            }
        }
    }

    /// Runs until only time helps. Returns the outcome if a state with a known outcome is passed.
    fn settle(&mut self) -> Option<W::Fate> {
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
            if self.steps > W::STEPS {
                return Some(W::ENDLESS);
            }
            if !self.world.step(self.config) {
                return None;
            }
        }
    }

    fn repeat_all(&mut self) {
        for (_, place, timer) in self.timers(|has_pending, _| has_pending.then_some(Time::ZERO)) {
            self.world.says_again(self.config, place, timer);
            let _ = self.settle();
        }
    }

    fn expire_all(&mut self) -> bool {
        let due = self.timers(|_, deadline| deadline);
        for (_, place, timer) in &due {
            let waits = |m: &Machine| m.waits().any(|w| w.timer == *timer && w.deadline.is_some());
            let still = |(at, m): (usize, &Machine)| at == *place && waits(m);
            if self.world.machines().any(still) {
                self.world.times_out(self.config, *place, *timer);
                let _ = self.settle();
            }
        }
        !due.is_empty()
    }

    /// Timers of the kind that is wanted, the earliest first.
    fn timers(
        &self,
        wanted: impl Fn(bool, Option<Time>) -> Option<Time>,
    ) -> Vec<(Time, usize, Timer)> {
        let mut found = Vec::new();
        for (place, machine) in self.world.machines() {
            for w in machine.waits() {
                found.extend(wanted(w.has_pending, w.deadline).map(|at| (at, place, w.timer)));
            }
        }
        found.sort_unstable();
        found
    }
}
