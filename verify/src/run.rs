//! How a state ends if from now on nothing goes wrong. Every step here is one
//! that the model may take as well. So where each reachable state ends well,
//! an end is always within reach, and a run whose faults stop gets there: in
//! a finite model a fair run cannot pass by for ever what it can always reach.
//! (`eventually` of the checker would not do: it sees no cycles, and judges a
//! state by the first path that led there.)

use std::fmt::Display;
use std::hash::Hash;

use dysco_proto::{Machine, Time, Timer};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::parts::digest;

/// The most states that an explanation tells.
const TOLD: usize = 60;

/// A state of a model, as it goes on by itself.
pub trait Calm: Clone + Hash + Display {
    /// What is explored.
    type Configuration;
    /// How it ends.
    type Fate: Copy;

    /// It goes on for ever.
    const ENDLESS: Self::Fate;
    /// More steps than any run has: it goes round in circles.
    const STEPS: usize;

    /// The daemons that run, and where.
    fn machines(&self) -> impl Iterator<Item = (usize, &Machine)>;

    /// The next thing that can happen without time; false if there is none.
    fn step(&mut self, config: &Self::Configuration) -> bool;

    /// A timer says its message again.
    fn says_again(&mut self, config: &Self::Configuration, place: usize, timer: Timer);

    /// A timer's deadline passes.
    fn times_out(&mut self, config: &Self::Configuration, place: usize, timer: Timer);

    /// What must hold when nothing is left to happen.
    fn judge(&self, config: &Self::Configuration) -> Self::Fate;
}

/// Fates known already, by the names of states.
pub struct Fates<W: Calm>(Mutex<FxHashMap<u64, W::Fate>>);

impl<W: Calm> Default for Fates<W> {
    fn default() -> Fates<W> {
        Fates(Mutex::default())
    }
}

impl<W: Calm> Fates<W> {
    fn get(&self, name: u64) -> Option<W::Fate> {
        self.0.lock().get(&name).copied()
    }

    /// The fate of a state.
    pub fn of(&self, config: &W::Configuration, world: &W) -> W::Fate {
        let mut run = Run::new(config, world, self);
        let fate = run.finish();
        let mut known = self.0.lock();
        known.extend(run.passed.into_iter().map(|name| (name, fate)));
        fate
    }
}

/// The states that a state passes on its way to its end, in words.
pub fn explain<W: Calm>(config: &W::Configuration, world: &W) -> Vec<String> {
    let fates = Fates::default();
    let mut run = Run::new(config, world, &fates);
    run.log = Some(Vec::new());
    run.finish();
    run.log.unwrap_or_default()
}

struct Run<'a, W: Calm> {
    config: &'a W::Configuration,
    world: W,
    fates: &'a Fates<W>,
    /// States whose run this one goes on with.
    passed: Vec<u64>,
    /// Each step so far follows from the state alone.
    first: bool,
    steps: usize,
    log: Option<Vec<String>>,
}

impl<'a, W: Calm> Run<'a, W> {
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
            && log.len() < TOLD
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

    /// Until only time helps. The fate, if it is known on the way.
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
        for (_, place, timer) in self.timers(|insists, _| insists.then_some(Time::ZERO)) {
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

    /// Timers that something is wanted of, the earliest first.
    fn timers(
        &self,
        wanted: impl Fn(bool, Option<Time>) -> Option<Time>,
    ) -> Vec<(Time, usize, Timer)> {
        let mut found = Vec::new();
        for (place, machine) in self.world.machines() {
            for w in machine.waits() {
                found.extend(wanted(w.insists, w.deadline).map(|at| (at, place, w.timer)));
            }
        }
        found.sort_unstable();
        found
    }
}
