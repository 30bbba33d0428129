//! Removals that the configuration orders (`automatic`): begun as soon as a shim reports a session,
//! and tried again if that was not yet possible.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_api::{Outcome, RemovalReport};
use dysco_common::FlowKey;
use dysco_proxy::{Pair, PairEvent};
use tokio::sync::broadcast::error::RecvError;

use super::Removals;
use super::candidates::task_of;
use super::task::{Said, Task};
use crate::engine::core::Core;

/// Batch of removals for which no client waits.
pub(super) const AUTOMATIC: u64 = u64::MAX;
/// Time after which a refused session is tried again; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Sessions that are tried again.
#[derive(Default)]
pub(super) struct Automatic(HashMap<FlowKey, Again>);

/// Time of the next attempt, and the interval before it.
struct Again {
    at: Instant,
    wait: Duration,
}

impl Automatic {
    pub(super) fn ended(&mut self, report: &RemovalReport) {
        let key = FlowKey::new(report.local, report.remote);
        if matches!(
            report.outcome,
            Outcome::Removed | Outcome::Pending | Outcome::Unconfirmed
        ) {
            self.0.remove(&key);
            return;
        }
        let before = self.0.get(&key).map(|again| again.wait * 2);
        let wait = before.unwrap_or(FIRST_WAIT).min(LONGEST_WAIT);
        let at = Instant::now() + wait;
        self.0.insert(key, Again { at, wait });
    }

    fn due(&self, now: Instant) -> Vec<FlowKey> {
        let due = self.0.iter().filter(|(_, again)| again.at <= now);
        due.map(|(key, _)| *key).collect()
    }

    /// Records that the session waits for its turn, which may take long: meanwhile it is not due
    /// each second.
    fn taken_on(&mut self, key: &FlowKey, now: Instant) {
        if let Some(again) = self.0.get_mut(key) {
            again.at = now + again.wait;
        }
    }
}

impl Removals {
    /// Handles a shim's report of a session.
    pub(in crate::engine) fn take_pair(
        &mut self,
        core: &mut Core,
        event: Result<PairEvent, RecvError>,
    ) {
        if !core.host.plane.config.removal.automatic {
            return;
        }
        match event {
            Ok(PairEvent::New(pair) | PairEvent::Changed(pair)) => {
                self.remove_by_itself(core, &pair)
            }
            Ok(PairEvent::Gone(pair)) => drop(self.automatic.0.remove(&pair.a.key)),
            // So many reports at once that some were missed.
            Err(RecvError::Lagged(_)) => {
                for pair in core.host.plane.proxy.pairs() {
                    self.remove_by_itself(core, &pair);
                }
                self.start_waiting(core);
            }
            Err(RecvError::Closed) => {}
        }
    }

    /// Tries the sessions again that are due.
    pub(in crate::engine) fn sweep_automatic(&mut self, core: &mut Core) {
        let now = Instant::now();
        for key in self.automatic.due(now) {
            match core.host.plane.proxy.find(&key) {
                Some(pair) if core.host.plane.agent.find(&key).is_some() => {
                    self.remove_by_itself(core, &pair)
                }
                _ => drop(self.automatic.0.remove(&key)),
            }
        }
    }

    fn remove_by_itself(&mut self, core: &mut Core, pair: &Pair) {
        if core.host.plane.proxy.transparent(pair, false).is_err() {
            return;
        }
        let Some(slot) = core.host.plane.agent.find(&pair.a.key) else {
            return;
        };
        let mode = core.host.plane.config.removal.mode;
        let said = &Said::automatic();
        let task = task_of(
            &core.host.plane,
            slot,
            None,
            core.host.plane.config.removal.timeout,
            mode,
            said,
        );
        if task.relayed {
            return;
        }
        // Before the removal is begun, which may end it at once.
        let now = Instant::now();
        self.automatic.taken_on(&pair.a.key, now);
        if !self.under_way.knows(&task.subsession) {
            self.take_on(
                core,
                Task {
                    batch: AUTOMATIC,
                    ..task
                },
            );
            self.start_waiting(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::SessionId;

    use super::*;

    fn report(outcome: Outcome) -> RemovalReport {
        RemovalReport {
            session: SessionId(1),
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 40000).into(),
            outcome,
            reason: None,
            reasons: Vec::new(),
            timed_out: false,
            mode: None,
            why_mode: None,
            accepted_to_begin_us: None,
            request_to_switch_us: None,
            request_to_close_us: None,
            change_id: None,
        }
    }

    #[test]
    fn what_is_refused_is_tried_again_ever_more_seldom() {
        let mut automatic = Automatic::default();
        let mut waits = Vec::new();
        for _ in 0..12 {
            automatic.ended(&report(Outcome::Refused));
            waits.extend(automatic.0.values().map(|again| again.wait));
        }
        assert_eq!(waits.len(), 12);
        assert_eq!(waits[..3], [2, 4, 8].map(Duration::from_secs));
        assert_eq!(waits[11], LONGEST_WAIT);
        assert!(automatic.due(Instant::now()).is_empty());
        automatic.ended(&report(Outcome::Removed));
        assert!(automatic.0.is_empty());
    }

    #[test]
    fn what_waits_for_its_turn_is_not_due_each_second() {
        let mut automatic = Automatic::default();
        automatic.ended(&report(Outcome::Refused));
        let then = Instant::now() + FIRST_WAIT;
        let due = automatic.due(then);
        assert_eq!(due.len(), 1);
        automatic.taken_on(&due[0], then);
        assert!(automatic.due(then).is_empty());
        assert_eq!(automatic.due(then + FIRST_WAIT), due);
        // Having waited does not postpone the next attempt.
        automatic.ended(&report(Outcome::Refused));
        assert_eq!(automatic.0[&due[0]].wait, 2 * FIRST_WAIT);
    }
}
