//! Choice of the mode by which a proxy leaves, if the operator leaves it open: bypass if the hosts
//! on both sides are agents, local otherwise. Never return: nothing shows in advance that a
//! stateful firewall beside the proxy accepts acknowledgements of replies that bypass it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_api::{Mode, Outcome, Way};
use dysco_control::DownReason;
use dysco_explain::Cause;
use dysco_proto::{Progress, Reason, Subsession};

use super::candidates::hosts_beside;
use super::task::{Stage, Task};
use super::{Removals, Running};
use crate::engine::Plane;
use crate::engine::core::Core;
use crate::engine::neighbours::{Known, in_order};

/// Time for which neighbours are awaited: longer than a handshake may take, after which the channel
/// reports that no peer is there.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Removal whose mode is not known yet.
pub(super) struct Undecided {
    task: Task,
    until: Instant,
}

impl Undecided {
    pub(super) fn since(now: Instant, task: Task) -> Undecided {
        let until = now + PATIENCE;
        Undecided { task, until }
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

impl Removals {
    /// Accepts a removal. Its mode is chosen at once, or when the neighbours have answered.
    pub(super) fn take_on(&mut self, core: &mut Core, task: Task) {
        if let Some(why) = needs_channel(&core.host.plane, &task) {
            let report = task.refused(why);
            return self.finish(core, task.batch, report, None);
        }
        if let Some(why) = would_hold_up(&core.host.plane, &task) {
            let report = task.refused(why.cause());
            return self.finish(core, task.batch, report, Some(&why));
        }
        for ip in asked_first(&task) {
            if core.host.plane.neighbours.worth_asking(ip) {
                core.host.plane.control.reach(ip);
            }
        }
        if let Some((way, why)) = choose(&core.host.plane, &task) {
            return self.ready(core, task, way, why);
        }
        let undecided = Undecided::since(Instant::now(), task);
        self.under_way.decide_later(undecided);
    }

    /// Records that the new path of this session, between the hosts on both sides, has died.
    /// Waiting removals by that path choose another mode, or are refused. The operator of a later
    /// request may know better.
    pub(super) fn path_died(&mut self, core: &mut Core, subsession: &Subsession, silent: IpAddr) {
        let Some(hosts) = hosts_beside(&core.host.plane, subsession) else {
            return;
        };
        core.host.plane.neighbours.died_between(hosts, silent);
        let why = &Reason::PathDied(silent);
        let here = Some(in_order(hosts));
        let same =
            |task: &Task| task.way == Some(Mode::Bypass) && task.neighbours.map(in_order) == here;
        for task in self.under_way.take_waiting(same) {
            if task.mode == Mode::Auto {
                self.take_on(core, task);
            } else {
                let report = task.refused(why.cause());
                self.finish(core, task.batch, report, Some(why));
            }
        }
    }

    /// Decides the removals that can be decided now.
    pub(in crate::engine) fn decide_waiting(&mut self, core: &mut Core) {
        let now = Instant::now();
        // Removals that stay undecided keep their order.
        for _ in 0..self.under_way.undecided() {
            let Some(u) = self.under_way.next_undecided() else {
                break;
            };
            match choose(&core.host.plane, &u.task) {
                Some((way, why)) => self.ready(core, u.task, way, why),
                None if u.until <= now => {
                    for ip in asked_first(&u.task) {
                        if core.host.plane.neighbours.know(ip) == Known::Nothing {
                            core.host.plane.neighbours.did_not_answer(ip);
                        }
                    }
                    let (way, why) =
                        choose(&core.host.plane, &u.task).unwrap_or((Mode::Local, None));
                    self.ready(core, u.task, way, why);
                }
                None => self.under_way.decide_later(u),
            }
        }
        self.start_waiting(core);
    }

    fn ready(&mut self, core: &mut Core, mut task: Task, way: Mode, why: Option<String>) {
        let there = task.from == Way::Return && way == Mode::Return;
        if task.relayed && (way == Mode::Local || there) {
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            let report = {
                let mut already = Reason::AlreadyOut.cause();
                already.why += &why;
                task.refused(already)
            };
            return self.finish(core, task.batch, report, Some(&Reason::AlreadyOut));
        }
        task.way = Some(way);
        task.why = why;
        let mut reasons = std::mem::take(&mut task.objections);
        if task.dry {
            reasons.extend(lacks(&core.host.plane, &task));
        }
        if !reasons.is_empty() {
            let report = task.refused_for(reasons);
            self.finish(core, task.batch, report, None);
        } else if task.dry {
            let report = task.report(Outcome::Removed, None, None, None);
            self.finish(core, task.batch, report, None);
        } else {
            self.under_way.wait(task);
        }
    }

    /// Queues the next change of a removal after one has ended. Returns true if there is one.
    pub(super) fn goes_on(
        &mut self,
        core: &mut Core,
        running: &Running,
        progress: &Progress,
    ) -> bool {
        let next = match (running.task.way, progress) {
            (Some(Mode::Return), Progress::Removed) => next_stage(running),
            (Some(Mode::Bypass), Progress::Refused(reason) | Progress::RolledBack(reason)) => {
                no_bypass(&mut core.host.plane, running, reason)
            }
            _ => None,
        };
        let Some(task) = next else { return false };
        self.under_way.wait_first(task);
        true
    }
}

/// Returns a reason if a request names a mode that needs other hosts, and this daemon has no channel
/// to them.
fn needs_channel(here: &Plane, task: &Task) -> Option<Cause> {
    let needs = matches!(task.mode, Mode::Bypass | Mode::Return);
    (needs && !here.config.has_channel()).then(DownReason::no_channel)
}

/// Returns a reason if a bypass would take the session to a path that has recently died. A
/// request that names the mode is exempt: its operator may know that the path works again.
fn would_hold_up(here: &Plane, task: &Task) -> Option<Reason> {
    let by_itself = task.mode == Mode::Bypass && !task.by_name;
    let hosts = task.neighbours.filter(|_| by_itself)?;
    let why = here.neighbours.why_not_between(hosts)?;
    // Changes that a path makes to packets are found at once, at no cost to the session.
    matches!(why, Reason::PathDied(_)).then_some(why)
}

/// Records that the new path of this session, between the hosts on both sides, would not carry
/// it.
pub(super) fn path_meddles(here: &mut Plane, subsession: &Subsession, why: &Reason) {
    if let Some(hosts) = hosts_beside(here, subsession) {
        here.neighbours.unusable_between(hosts, why.clone());
    }
}

/// Returns the mode, and why this host chose it; `None` while a neighbour may still answer.
fn choose(here: &Plane, task: &Task) -> Option<(Mode, Option<String>)> {
    let unknown = |ip: &IpAddr| here.neighbours.know(*ip) == Known::Nothing;
    if task.dry && asked_first(task).iter().any(unknown) {
        return None;
    }
    let [left, right] = match (task.mode, task.neighbours) {
        (Mode::Auto, Some(neighbours)) => neighbours,
        // The host that is asked decides for itself.
        (Mode::Auto | Mode::Bypass, _) => {
            let why = |host| format!("{host} decides: ask there for more");
            let asks = task.ask.filter(|_| task.dry);
            return Some((Mode::Bypass, asks.map(why)));
        }
        (mode @ (Mode::Return | Mode::Local), _) => return Some((mode, None)),
    };
    match (here.neighbours.know(left), here.neighbours.know(right)) {
        (_, Known::Nobody(why)) => Some((Mode::Local, Some(nobody(right, why).to_string()))),
        (Known::Agent, Known::Agent) => match here.neighbours.why_not_between([left, right]) {
            Some(unusable) => {
                let why = format!("bypass was not tried: {unusable}");
                Some((Mode::Local, Some(why)))
            }
            None => {
                let why = "a dyscod answers on both sides".to_owned();
                Some((Mode::Bypass, Some(why)))
            }
        },
        (Known::Nobody(why), Known::Agent) => {
            Some((Mode::Local, Some(nobody(left, why).to_string())))
        }
        (_, Known::Nothing) | (Known::Nothing, _) => None,
    }
}

/// Returns the neighbours that a bypass or a return needs and that have no agent, as far as is known.
fn lacks(here: &Plane, task: &Task) -> Vec<Cause> {
    if !matches!(task.way, Some(Mode::Bypass | Mode::Return)) {
        return Vec::new();
    }
    let same = task.neighbours.filter(|[left, right]| left == right);
    let same = same.map(|[host, _]| Reason::SameHost(host).cause());
    let needed = asked_first(task).into_iter();
    let lacking = needed.filter_map(|ip| match here.neighbours.know(ip) {
        Known::Nobody(why) => Some(nobody(ip, why)),
        Known::Agent | Known::Nothing => None,
    });
    same.into_iter().chain(lacking).collect()
}

/// Returns a local removal after a bypass was refused because of the neighbours' part in it.
fn no_bypass(here: &mut Plane, running: &Running, reason: &Reason) -> Option<Task> {
    let reason = match &running.reason {
        Some(better) if *reason == Reason::Cancelled => better,
        _ => reason,
    };
    let task = &running.task;
    let may = !task.relayed && task.mode == Mode::Auto && task.ask.is_none();
    if !may || !reason.local_would_do() {
        return None;
    }
    let why = format!("bypass was not possible: {reason}");
    Some(goes_by(here, task, Mode::Local, Some(why)))
}

fn goes_by(here: &mut Plane, task: &Task, way: Mode, why: Option<String>) -> Task {
    let text = why.clone().unwrap_or_default();
    let text = format!("{} > {} goes {way}: {text}", task.local, task.remote);
    here.report(&format!("goes_{way}"), Some(task.session), text);
    Task {
        way: Some(way),
        why,
        ..task.clone()
    }
}

fn next_stage(running: &Running) -> Option<Task> {
    let stage = match running.task.stage {
        Stage::Prove => Stage::Leave,
        Stage::Leave => Stage::Return,
        Stage::Return => return None,
    };
    Some(Task {
        stage,
        since: Some(running.begun),
        switched: running.switched,
        ..running.task.clone()
    })
}

/// Returns the hosts of which it has to be known first whether they are agents: to choose a mode,
/// or to report what would happen.
fn asked_first(task: &Task) -> Vec<IpAddr> {
    match (task.mode, task.ask) {
        (_, Some(host)) if task.dry => vec![host],
        (Mode::Auto, _) => task.neighbours.into_iter().flatten().collect(),
        (Mode::Bypass, None) if task.dry => task.neighbours.into_iter().flatten().collect(),
        // The server's host sends the replies directly.
        (Mode::Return, None) if task.dry => task
            .neighbours
            .map(|[_, right]| right)
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

fn nobody(ip: IpAddr, why: Cause) -> Cause {
    why.after(format_args!("no dyscod at {ip}"))
}
