//! Removals that take too long, or whose peer cannot be reached.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_api::Outcome;
use dysco_common::FlowKey;
use dysco_explain::Cause;
use dysco_proto::{ChangeId, Phase, Reason, Role, Subsession};

use super::{GRACE, Removals};
use crate::engine::core::Core;

/// Returns the reason for a session of which an end has not acknowledged anything since the switch.
fn unconfirmed_yet() -> Cause {
    Cause::new(
        "the session has taken the new path, and an end has not acknowledged what was sent to it \
         there: something on that path, such as a firewall, does not let it pass",
    )
    .hint("see 'dyscoctl sessions', and open the connection anew if it stands still")
}

/// Interval at which the pairs of removals that wait are kept. It is shorter than a pair lasts.
const KEEPS: Duration = Duration::from_secs(10);

impl Removals {
    /// Keeps the pairs of removals that wait, also if no shim reports them.
    fn keep_pairs(&mut self, core: &Core, now: Instant) {
        if self.kept.is_some_and(|at| now < at + KEEPS) {
            return;
        }
        self.kept = Some(now);
        let both = |sub: &Subsession| {
            [(sub.left, sub.right), (sub.right, sub.left)].map(|(at, to)| FlowKey::new(at, to))
        };
        let keys = self.under_way.sessions().flat_map(both);
        core.host.plane.proxy.need(keys);
    }

    /// Gives up the removals that have taken too long.
    pub(in crate::engine) fn removals_due(&mut self, core: &mut Core) {
        let now = Instant::now();
        self.keep_pairs(core, now);
        let mut cancel = Vec::new();
        let mut pending = Vec::new();
        for (change, r) in self.under_way.iter_mut() {
            match r.cancelled {
                None if now > r.begun + r.task.timeout => {
                    r.cancelled = Some(now);
                    cancel.push(*change);
                }
                Some(at) if now > at + GRACE => pending.push(*change),
                _ => {}
            }
        }
        let time = core.host.plane.now();
        for change in cancel {
            core.machine().cancel(time, change);
        }
        for change in pending {
            let unconfirmed = core
                .host
                .proxy_changes
                .is_unconfirmed(&core.host.plane, change);
            if let Some(r) = self.under_way.end(change) {
                core.host.plane.terms.remove(&change);
                let why = match r.task.ask {
                    None if unconfirmed => unconfirmed_yet(),
                    None => Cause::new(
                        "past the point of no return and not drained in time; it goes on by itself",
                    ),
                    Some(host) => {
                        Cause::new(format!("{host} has begun it and not told its end in time"))
                            .hint("see 'dyscoctl sessions' there")
                    }
                };
                let outcome = match unconfirmed {
                    true => Outcome::Unconfirmed,
                    false => Outcome::Pending,
                };
                let report = r.task.report(outcome, Some(why), r.switched, None);
                self.finish(core, r.task.batch, report, None);
            }
        }
        self.start_waiting(core);
    }

    /// Ends the changes that need an unreachable peer to begin.
    pub(in crate::engine) fn removals_without(&mut self, core: &mut Core, peer: IpAddr) {
        let early = |p: Phase| matches!(p, Phase::Leaving | Phase::Locking);
        core.feed_machine();
        let affected: Vec<ChangeId> = core
            .machine
            .changes()
            .filter(|c| c.role == Role::Middle && early(c.phase))
            .filter(|c| {
                let left = c.subsession.left.ip() == peer;
                let pair = core
                    .host
                    .proxy_changes
                    .held
                    .get(&c.change)
                    .and_then(|h| h.pair);
                let right = pair.is_some_and(|pair| pair.b.key.remote().ip() == peer);
                right || (left && c.phase == Phase::Leaving)
            })
            .map(|c| c.change)
            .collect();
        let asked = self.under_way.running().iter();
        let asked = asked
            .filter(|(_, r)| r.task.ask == Some(peer))
            .map(|(change, _)| *change);
        let affected: Vec<ChangeId> = affected.into_iter().chain(asked).collect();
        let now = core.host.plane.now();
        for change in affected {
            if let Some(r) = self.under_way.get_mut(change)
                && r.task.ask.is_none()
            {
                r.reason = Some(Reason::NoAgent(peer));
            }
            core.machine().cancel(now, change);
        }
    }
}
