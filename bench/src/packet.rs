//! Cost of a packet in the programs, on each path through them: nanoseconds per run, by
//! BPF_PROG_TEST_RUN, without the path through the stack.
//!
//! All cases take turns of a few milliseconds, so that a machine that becomes slower or faster does
//! so for all. They share one copy of the programs, and another copy after some rounds: the place
//! of a copy in the kernel's memory may make it faster by a tenth. The fastest turn of each case
//! counts. For packets that are run once, the median counts.

mod cases;
mod frame;
mod opening;
mod programs;

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dysco_common::{FlowKey, Path, Session, State};
use dysco_netns::idle;

use crate::figure::{Figure, median, sorted};
use crate::instructions::Instructions;
use crate::pair::stay;
use cases::Spec;
use opening::{Opening, SLOTS, STEPS};
use programs::{PASS, Programs};

pub(crate) use cases::TRANSLATION;
pub(crate) use frame::{TIMESTAMPS, USUAL, frame_of};
pub(crate) use programs::{Plain, REDIRECT, Way};

/// Number of copies of the programs, one after the other.
const COPIES: usize = 4;
/// Number of runs of a case in a turn.
const TURN: u32 = 20_000;
/// Number of runs per call for a relayed packet: each run decrements the TTL.
const RELAYED: u32 = 250;
/// Number of calls of the XDP program in a turn: before and after each call the kernel waits until
/// no one uses the former program.
const BY_XDP: u32 = 4;
/// Number of turns that may be lost because a neighbour was believed for too long.
const TRIES: usize = 100;
/// Number of sessions that open in a round.
const OPENED: u16 = 20;

/// Name of the case of a program that does nothing: the cost of a run alone.
pub(crate) const EMPTY: &str = "empty";
/// Slot of the session whose packets teach a neighbour.
const TEACHER: u32 = 0;
/// Mask of the Ethernet address in `Session::hop`.
const ADDRESS: u64 = (1 << 48) - 1;

/// Result of one case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Name of the case, by what the programs did with the packet.
    pub name: &'static str,
    /// Program that ran repeatedly; none if each packet is run once.
    pub way: Option<Way>,
    /// Nanoseconds per packet.
    pub ns: f64,
    /// Instructions per packet, if the processor counts them.
    pub instructions: Option<f64>,
    /// Nanoseconds of each turn, or of each packet.
    samples: Vec<f64>,
}

impl Case {
    /// Returns the case as a figure with this name.
    pub(crate) fn figure(&self, name: impl Into<String>) -> Figure {
        let (middle, mut figure) = (median(&self.samples), Figure::new(name, "ns", self.ns));
        if middle != self.ns {
            figure = figure.aside("median", middle);
        }
        if let Some(instructions) = self.instructions {
            figure = figure.aside("instructions", instructions);
        }
        figure.samples.clone_from(&self.samples);
        figure
    }
}

/// Measures all cases, with this number of rounds for each copy of the programs.
pub(crate) fn measure(rounds: u16) -> Result<Vec<Case>> {
    // Each processor remembers neighbours separately.
    let thread = std::thread::Builder::new().name("packet".into());
    let measuring = thread.spawn(move || {
        stay(0);
        let mut all: Vec<Seen> = Vec::new();
        for _ in 0..COPIES {
            let seen = with_a_copy(rounds)?;
            if all.is_empty() {
                all = seen;
            } else {
                let both = all.iter_mut().zip(seen);
                both.for_each(|(all, seen)| all.extend(seen));
            }
        }
        Ok(all.into_iter().map(Seen::case).collect())
    });
    let measured = measuring.context("failed to start a thread")?.join();
    measured.map_err(|_| anyhow!("the thread that runs the programs panicked"))?
}

fn with_a_copy(rounds: u16) -> Result<Vec<Seen>> {
    let specs = cases::all();
    let opened = u32::from(rounds) * u32::from(OPENED) * SLOTS;
    let own = 1 + specs.len() as u32;
    let mut host = Programs::load(own + opened, false)?;
    let mut by_xdp = Programs::load(own + opened, true)?;
    for programs in [&mut host, &mut by_xdp] {
        programs.free(own..own + opened)?;
        programs.enter(TEACHER, &teacher(), Path::New)?;
    }
    opening::prepare(&mut by_xdp, &mut host)?;
    let mut runs = Vec::with_capacity(specs.len());
    for (at, spec) in specs.into_iter().enumerate() {
        let programs = match spec.way {
            Way::Xdp => &mut by_xdp,
            _ => &mut host,
        };
        runs.push(Run::prepare(spec, at, programs)?);
    }
    let tracked = runs.iter().find(|run| run.spec.name == "tracked");
    let tracked = tracked.context("no session is tracked")?.key;
    let counter = Instructions::begin().ok();
    let mut took = vec![Vec::new(); STEPS.len()];
    for round in 0..rounds {
        for run in &mut runs {
            let programs = match run.spec.way {
                Way::Xdp => &mut by_xdp,
                _ => &mut host,
            };
            let done = run.turn(programs, counter.as_ref());
            done.with_context(|| format!("failed to measure {}", run.spec.name))?;
        }
        let mut opening = Opening {
            opener: &by_xdp,
            host: &host,
            tracked: &tracked,
            took: std::mem::take(&mut took),
        };
        (0..OPENED).try_for_each(|n| opening.open(round * OPENED + n))?;
        took = opening.took;
    }
    let mut all: Vec<_> = runs.into_iter().map(|run| run.seen).collect();
    let steps = STEPS.into_iter().zip(took);
    all.extend(steps.map(|(name, samples)| Seen {
        samples,
        ..Seen::new(name, None)
    }));
    Ok(all)
}

/// Observations of a case.
struct Seen {
    name: &'static str,
    /// Program that the packet passed; none if the packet passed several, once each.
    way: Option<Way>,
    samples: Vec<f64>,
    fewest: Option<f64>,
}

impl Seen {
    fn new(name: &'static str, way: Option<Way>) -> Seen {
        Seen {
            name,
            way,
            samples: Vec::new(),
            fewest: None,
        }
    }

    fn extend(&mut self, other: Seen) {
        self.samples.extend(other.samples);
        let fewest = self.fewest.into_iter().chain(other.fewest);
        self.fewest = fewest.reduce(f64::min);
    }

    fn case(self) -> Case {
        let quickest = || sorted(&self.samples).first().copied();
        Case {
            name: self.name,
            way: self.way,
            ns: match self.way {
                Some(_) => quickest().unwrap_or(f64::NAN),
                None => median(&self.samples),
            },
            instructions: self.fewest,
            samples: self.samples,
        }
    }
}

/// Five-tuple whose translated packets go to the neighbour that other packets with the same
/// addresses need.
fn teaches() -> FlowKey {
    FlowKey::new(([10, 0, 1, 1], 3999).into(), ([10, 0, 1, 2], 80).into())
}

/// Session of that five-tuple. The entry's own five-tuple is a different one: a hint that has not
/// been set leads here.
fn teacher() -> Session {
    Session {
        state: State::NewPath as u32,
        path: teaches(),
        ifindex: 1,
        ..Session::default()
    }
}

/// A case during its measurement.
struct Run {
    spec: Spec,
    slot: u32,
    key: FlowKey,
    frame: Vec<u8>,
    seen: Seen,
}

impl Run {
    /// Enters the session of the case.
    fn prepare(spec: Spec, at: usize, programs: &mut Programs) -> Result<Run> {
        let (slot, key) = (TEACHER + 1 + at as u32, spec.key(at));
        if let Some((by, session)) = spec.entry {
            let path = match spec.relays() {
                true => FlowKey::new(key.remote(), key.local()),
                false => key,
            };
            programs.enter(
                slot,
                &Session {
                    key,
                    path,
                    ..session
                },
                by,
            )?;
        }
        Ok(Run {
            frame: spec.frame(&key),
            seen: Seen::new(spec.name, Some(spec.way)),
            spec,
            slot,
            key,
        })
    }

    /// Runs the case for one turn. The programs' counters prove that each run took the same path.
    fn turn(&mut self, programs: &mut Programs, counter: Option<&Instructions>) -> Result<()> {
        let repeat = if self.spec.relays() { RELAYED } else { TURN };
        let (before, mut runs) = (self.counted(programs)?, 0);
        let mut took = Duration::ZERO;
        let calls = match self.spec.way {
            Way::Xdp => BY_XDP,
            _ => TURN / repeat,
        };
        for _ in 0..calls {
            took += self.call(programs, repeat, &mut runs)?;
        }
        self.seen
            .samples
            .push(took.as_nanos() as f64 / f64::from(calls));
        if let Some(counter) = counter {
            let mut of = |repeat| -> Result<u64> {
                let before = counter.so_far()?;
                self.call(programs, repeat, &mut runs)?;
                Ok(counter.so_far()? - before)
            };
            // Both times include the cost of the call.
            let (one, all) = (of(1)?, of(repeat)?);
            let each = all.saturating_sub(one) as f64 / f64::from(repeat - 1);
            let fewest = self.seen.fewest.into_iter().chain([each]);
            self.seen.fewest = fewest.reduce(f64::min);
        }
        let counted = self.counted(programs)? - before;
        let all = self.spec.counter.is_none() || counted == runs;
        ensure!(all, "{runs} runs were counted as {counted}");
        Ok(())
    }

    fn counted(&self, programs: &Programs) -> Result<u64> {
        let counter = self.spec.counter;
        counter.map_or(Ok(0), |counter| programs.count(counter))
    }

    /// Time of a run, as the mean of `repeat` runs. `runs` counts all runs, including lost ones.
    fn call(&self, programs: &mut Programs, repeat: u32, runs: &mut u64) -> Result<Duration> {
        let mut said = None;
        for _ in 0..TRIES {
            if self.spec.way == Way::Nothing {
                return Ok(idle::run(&self.frame, repeat)?);
            }
            if self.spec.taught {
                self.teach(programs)?;
            }
            let (verdict, took) = programs.run(self.spec.way, &self.frame, repeat)?;
            *runs += u64::from(repeat);
            // The last run had this verdict, and so had the runs before it: a neighbour that is
            // forgotten is not found again during the call.
            if verdict == self.spec.verdict {
                return Ok(took);
            }
            ensure!(self.spec.taught, "{verdict}, not {}", self.spec.verdict);
            said = Some(verdict);
        }
        bail!("{said:?} each time, not {}", self.spec.verdict)
    }

    /// Teaches the programs the neighbour of the packet.
    fn teach(&self, programs: &mut Programs) -> Result<()> {
        let (verdict, ..) = programs.pass(Way::Out, &USUAL.leaves(&teaches()), 0)?;
        ensure!(verdict == PASS, "a packet that teaches was not passed");
        if self.spec.way == Way::Xdp {
            // XDP requires that TC has found the session before. It uses the session's own
            // neighbour, and this host's address on that link.
            programs.pass(Way::In, &self.frame, 0)?;
            let hop = programs.session(TEACHER)?.hop;
            let own_address = hop & ADDRESS;
            let session = programs.session(self.slot)?;
            programs.put(
                self.slot,
                &Session {
                    hop,
                    own_address,
                    ..session
                },
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_of_the_programs_runs() {
        let measured = measure(1).unwrap();
        assert_eq!(measured.len(), cases::all().len() + STEPS.len());
        assert!(measured.iter().all(|case| case.ns > 0.0));
    }
}
