//! Order of changes of chains that wait for room, or for another change of their session. A lock of
//! another change is no reason to refuse a request as long as that change may still be rolled back:
//! both would have lost.

use std::time::{Duration, Instant};

use dysco_api::SessionName;
use dysco_explain::Cause;
use dysco_proto::asks::ChainWish;
use dysco_proto::{ChangeId, KindName, Machine, Phase, Reason};

use super::ChainRequests;
use super::choice::{chain_task, task_of_chain};
use super::task::{Running, Task, Whose};
use crate::engine::chains::message::MANY;
use crate::engine::core::Core;
use crate::engine::measure;
use crate::engine::plane::{Plane, Terms};

/// Maximum time that a request waits: longer than a rollback takes, even if its hosts are silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval after which another host is asked again that holds the session for its own change.
const AGAIN: Duration = Duration::from_secs(1);

/// Requests that wait for other changes, oldest first.
pub(super) struct WaitQueue<T>(Vec<Waiting<T>>);

struct Waiting<T> {
    change: ChangeId,
    /// Earliest time of the next attempt.
    again: Instant,
    task: T,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        WaitQueue(Vec::new())
    }
}

impl<T> WaitQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn wait(&mut self, change: ChangeId, again: Instant, task: T) {
        self.0.push(Waiting {
            change,
            again,
            task,
        });
    }

    /// Removes and returns the requests that are due: the change that they wait for is over, or
    /// they have waited too long.
    fn due(
        &mut self,
        now: Instant,
        over: impl Fn(ChangeId) -> bool,
        late: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        let due = |w: &mut Waiting<T>| now >= w.again && (over(w.change) || late(&w.task));
        self.0.extract_if(.., due).map(|w| w.task).collect()
    }
}

/// Session of a request with a rate. It is judged when its turn comes.
pub(super) struct Turn {
    /// Change as it was when the request was accepted, for the report that the session has ended.
    task: Task,
}

impl Turn {
    pub(super) fn of(
        here: &Plane,
        whose: Whose,
        slot: u32,
        wish: &ChainWish,
        state: &[KindName],
    ) -> Turn {
        let s = here.agent.session(slot);
        let mut task = task_of_chain(here, whose, slot, measure::opened(&s.name()), wish);
        task.kinds = state.to_vec();
        Turn { task }
    }
}

impl ChainRequests {
    /// Returns true if another change may begin. A change that has its new path makes room: it only
    /// waits for late packets of the previous path.
    fn has_room(&self, here: &Plane) -> bool {
        let most = here.config.removal.concurrency;
        let on_their_way = || {
            self.running
                .values()
                .filter(|r| r.switched.is_none())
                .count()
        };
        self.running.len() < most.max(MANY) && on_their_way() < most
    }

    /// Returns the time at which the next session of a request with a rate may begin, if one waits
    /// and there is room.
    pub(in crate::engine) fn next_turn(&self, here: &Plane) -> Option<Instant> {
        let (_, at) = self.paced.first()?;
        let may = self.queue.is_empty() && self.has_room(here);
        may.then(|| at.unwrap_or_else(Instant::now))
    }

    /// Queues the session whose turn has come. Returns false if there is none.
    fn take_turn(&mut self, core: &mut Core) -> bool {
        let Some(Turn { mut task }) = self.paced.pop(Instant::now()) else {
            self.paced.forget_empty();
            return false;
        };
        task.asked = Instant::now();
        let named = SessionName::Id(task.session);
        match core.host.plane.slot_named(&named) {
            Some(slot) => self.take_slot(core, task.whose, slot, &task.wish, &task.kinds, false),
            None => self.refuse_task(core, &task, &Reason::Closing),
        }
        true
    }

    /// Begins waiting changes, as far as there is room.
    pub(in crate::engine) fn start_chains_waiting(&mut self, core: &mut Core) {
        while self.has_room(&core.host.plane) {
            let Some(task) = self.queue.pop_front() else {
                match self.take_turn(core) {
                    true => continue,
                    false => return,
                }
            };
            let (now, (mut task, judged)) = (core.host.plane.now(), in_turn(core, task));
            let numbered = judged.and_then(|()| {
                core.host
                    .chain_updates
                    .number_path(&core.host.plane, &mut task.order)
            });
            let begun =
                numbered.and_then(|()| core.machine().request_chain(now, task.order.clone()));
            match begun {
                Ok(change) => {
                    task.begun.get_or_insert_with(Instant::now);
                    let terms = Terms {
                        vouched: false,
                        kinds: task.kinds.clone(),
                    };
                    core.host.plane.terms.insert(change, terms);
                    let running = Running {
                        task,
                        switched: None,
                    };
                    self.running.insert(change, running);
                }
                Err(Reason::LockedByAnother(other))
                    if may_wait(&task) && !is_decided(&core.machine, other) =>
                {
                    self.wait_queue.wait(other, Instant::now(), task);
                }
                Err(reason) => self.refuse_task(core, &task, &reason),
            }
        }
    }

    /// Queues a change again that was rolled back because another host holds the session for its
    /// own change. Returns the change in all other cases.
    pub(super) fn unless_it_waits(
        &mut self,
        running: Running,
        why: Option<&Reason>,
    ) -> Option<Running> {
        match why {
            Some(Reason::LockedByAnother(other)) if may_wait(&running.task) => {
                let again = Instant::now() + AGAIN;
                self.wait_queue.wait(*other, again, running.task);
                None
            }
            _ => Some(running),
        }
    }

    /// Judges the changes again whose obstacle is over, before later requests.
    pub(in crate::engine) fn wake_chains(&mut self, core: &mut Core) {
        let mut wait_queue = std::mem::take(&mut self.wait_queue);
        let machine = core.machine();
        let over = |change| is_decided(machine, change);
        let due = wait_queue.due(Instant::now(), over, |task| !may_wait(task));
        self.wait_queue = wait_queue;
        if due.is_empty() {
            return;
        }
        for task in due.into_iter().rev() {
            match judged_anew(core, task) {
                (task, Ok(())) => self.queue.push_front(task),
                (task, Err(why)) => self.refuse_task(core, &task, &why),
            }
        }
        self.start_chains_waiting(core);
    }
}

/// Judges a change again if another request has changed its chain while it waited.
fn in_turn(core: &Core, task: Task) -> (Task, Result<(), Reason>) {
    // A younger session may have the addresses and ports of one that has waited for long.
    let named = SessionName::Id(task.session);
    if core.host.plane.slot_named(&named).is_none() {
        return (task, Err(Reason::Closing));
    }
    let slot = core.host.plane.find(&task.order.session);
    let now = slot.map(|slot| {
        core.host
            .plane
            .chain_now(slot, &core.host.plane.agent.session(slot))
    });
    match now {
        Some(now) if now != task.order.before => judged_anew(core, task),
        _ => (task, Ok(())),
    }
}

/// Judges a change again whose session another request may have changed. If that request was
/// about another segment, both win.
fn judged_anew(core: &Core, task: Task) -> (Task, Result<(), Reason>) {
    let Some(slot) = core.host.plane.find(&task.order.session) else {
        return (task, Err(Reason::Closing));
    };
    let (mut now, judged) = chain_task(core, task.whose, slot, &task.wish, &task.kinds);
    let same = now.order.is_about_segment_of(&task.order);
    if !same || now.whole != task.whole {
        return (task, Err(changed()));
    }
    (now.asked, now.begun) = (task.asked, task.begun);
    (now, judged)
}

/// Returns true if a change is over or cannot be rolled back any more: then it has won.
fn is_decided(machine: &Machine, change: ChangeId) -> bool {
    let phase = machine.phase_of(change);
    matches!(phase, None | Some(Phase::Completing | Phase::Closing))
}

fn may_wait(task: &Task) -> bool {
    task.asked.elapsed() < PATIENCE
}

fn changed() -> Reason {
    let why = "another change has changed its chain while this one waited";
    Reason::NoSuchChain(Cause::new(why).hint("ask again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ChangeId = ChangeId([1; 16]);
    const OTHER: ChangeId = ChangeId([2; 16]);

    #[test]
    fn who_waits_for_a_change_is_woken_when_that_is_over_in_the_order_that_they_came() {
        let now = Instant::now();
        let mut wait_queue = WaitQueue::default();
        for (change, task) in [(ONE, "a"), (OTHER, "b"), (ONE, "c")] {
            wait_queue.wait(change, now, task);
        }
        let never = |_: &&str| false;
        assert!(wait_queue.due(now, |_| false, never).is_empty());
        assert_eq!(
            wait_queue.due(now, |change| change == ONE, never),
            ["a", "c"]
        );
        assert_eq!(wait_queue.due(now, |_| true, never), ["b"]);
        assert!(wait_queue.due(now, |_| true, never).is_empty());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let now = Instant::now();
        let mut wait_queue = WaitQueue::default();
        wait_queue.wait(ONE, now, "old");
        wait_queue.wait(ONE, now, "new");
        assert_eq!(
            wait_queue.due(now, |_| false, |task| *task == "old"),
            ["old"]
        );
    }

    #[test]
    fn another_host_is_not_asked_again_at_once() {
        let now = Instant::now();
        let mut wait_queue = WaitQueue::default();
        wait_queue.wait(ONE, now + AGAIN, "a");
        assert!(wait_queue.due(now, |_| true, |_| false).is_empty());
        assert_eq!(wait_queue.due(now + AGAIN, |_| true, |_| false), ["a"]);
    }
}
