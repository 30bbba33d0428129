//! By which way a proxy leaves: bypass where the hosts on both sides are
//! agents, local otherwise.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Removals, Running, Task};
use crate::api::{Mode, Outcome};
use crate::engine::Engine;
use crate::engine::neighbours::Known;
use crate::protocol::{Progress, Reason};

/// How long is waited for neighbours: longer than a handshake may take, after
/// which the channel says itself that nobody is there.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A removal whose way is not known yet.
pub(super) struct Undecided {
    task: Task,
    until: Instant,
}

impl Undecided {
    pub fn task(&self) -> &Task {
        &self.task
    }
}

impl Removals {
    /// When a decision is due whatever the neighbours say.
    pub fn next_decision(&self) -> Option<Instant> {
        self.undecided.iter().map(|u| u.until).min()
    }
}

impl Engine {
    /// Takes a removal on: at once, or when the neighbours have answered.
    pub(super) fn take_on(&mut self, task: Task) {
        if task.mode == Mode::Auto {
            for ip in task.neighbours.into_iter().flatten() {
                if self.neighbours.worth_asking(ip) {
                    self.control.reach(ip);
                }
            }
        }
        if let Some((way, why)) = self.choose(&task) {
            return self.ready(task, way, why);
        }
        let until = Instant::now() + PATIENCE;
        self.removals.undecided.push(Undecided { task, until });
    }

    /// Decides what can be decided by now.
    pub(in crate::engine) fn decide_waiting(&mut self) {
        let now = Instant::now();
        for u in std::mem::take(&mut self.removals.undecided) {
            match self.choose(&u.task) {
                Some((way, why)) => self.ready(u.task, way, why),
                None if u.until <= now => {
                    let silent = u.task.neighbours.into_iter().flatten();
                    let silent = silent.filter(|ip| self.neighbours.know(*ip) == Known::Nothing);
                    let silent: Vec<IpAddr> = silent.collect();
                    for ip in &silent {
                        self.neighbours.did_not_answer(*ip);
                    }
                    let why = silent.first().map(|ip| nobody(*ip, "no answer in time"));
                    self.ready(u.task, Mode::Local, why);
                }
                None => self.removals.undecided.push(u),
            }
        }
        self.start_waiting();
    }

    /// The way, and why this host chose it; `None` while a neighbour may still
    /// answer.
    fn choose(&self, task: &Task) -> Option<(Mode, Option<String>)> {
        let neighbours = match (task.mode, task.neighbours) {
            (Mode::Auto, Some(neighbours)) => neighbours,
            // The host that is asked decides by itself.
            (Mode::Auto | Mode::Bypass, _) => return Some((Mode::Bypass, None)),
            (Mode::Local, _) => return Some((Mode::Local, None)),
        };
        let known = neighbours.map(|ip| (ip, self.neighbours.know(ip)));
        for (ip, known) in &known {
            if let Known::Nobody(why) = known {
                return Some((Mode::Local, Some(nobody(*ip, why))));
            }
        }
        let both = known.iter().all(|(_, known)| *known == Known::Agent);
        both.then(|| {
            let why = "a dyscod answers on both sides".to_owned();
            (Mode::Bypass, Some(why))
        })
    }

    fn ready(&mut self, mut task: Task, way: Mode, why: Option<String>) {
        if task.relayed && way == Mode::Local {
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            let report = task.refused(format!("{}{why}", Reason::AlreadyOut));
            return self.finish(task.batch, report);
        }
        task.way = Some(way);
        task.why = why;
        if task.dry {
            let report = task.report(Outcome::Removed, None, None, None);
            self.finish(task.batch, report);
        } else {
            self.removals.waiting.push_back(task);
        }
    }

    /// Where a bypass was refused for the neighbours' part in it, the proxy's
    /// host does it by itself. True if it will.
    pub(super) fn falls_to_local(&mut self, running: &Running, progress: &Progress) -> bool {
        let (Progress::Refused(reason) | Progress::RolledBack(reason)) = progress else {
            return false;
        };
        let reason = match &running.reason {
            Some(better) if *reason == Reason::Cancelled => better,
            _ => reason,
        };
        let task = &running.task;
        let may = !task.relayed
            && task.mode == Mode::Auto
            && task.way == Some(Mode::Bypass)
            && task.ask.is_none();
        if !may || !reason.local_would_do() {
            return false;
        }
        let why = format!("bypass was not possible: {reason}");
        let text = format!("{} > {} goes local: {why}", task.local, task.remote);
        self.report("goes_local", Some(task.session), text);
        let mut task = task.clone();
        task.way = Some(Mode::Local);
        task.why = Some(why);
        self.removals.waiting.push_front(task);
        true
    }
}

fn nobody(ip: IpAddr, why: &str) -> String {
    format!("no dyscod at {ip}: {why}")
}
