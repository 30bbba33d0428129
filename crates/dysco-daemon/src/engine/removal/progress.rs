//! The machine's reports of how far the change of a removal is.

use std::time::Instant;

use dysco_api::Mode;
use dysco_proto::{ChangeId, Progress, Reason, Role, Subsession};

use super::Removals;
use super::mode::path_meddles;
use super::report::keep_history;
use crate::engine::core::Core;

impl Removals {
    pub(in crate::engine) fn progress(
        &mut self,
        core: &mut Core,
        change: ChangeId,
        role: Role,
        subsession: &Subsession,
        progress: Progress,
        at: Instant,
    ) {
        let anchor = matches!(role, Role::Left | Role::Right);
        if anchor || !self.under_way.running().contains_key(&change) {
            self.asked_for(core, change, role, subsession, &progress);
        }
        if progress.is_end() {
            core.host.proxy_changes.held.remove(&change);
        }
        if anchor {
            return;
        }
        if let Progress::RolledBack(Reason::NewPathSilent(host)) = &progress {
            self.path_died(core, subsession, *host);
        }
        if let Progress::RolledBack(why @ Reason::PathMeddles { .. })
        | Progress::Refused(why @ Reason::PathMeddles { .. }) = &progress
        {
            path_meddles(&mut core.host.plane, subsession, why);
        }
        let Some(running) = self.under_way.get_mut(change) else {
            return;
        };
        if progress == Progress::Switched {
            running.switched = Some(at.saturating_duration_since(running.begun));
        }
        if progress.is_end() {
            self.ended(core, change, subsession, progress);
        }
    }

    /// Handles the end of a change that this host has requested.
    fn ended(
        &mut self,
        core: &mut Core,
        change: ChangeId,
        subsession: &Subsession,
        progress: Progress,
    ) {
        let mut translated = None;
        if let Progress::Refused(Reason::NotHeard(silent)) = &progress {
            // Refused by a neighbour: a client that asks again finds the session heard there.
            core.host.plane.ask_for_packets(subsession);
            translated = core.host.plane.translated(silent);
        }
        let Some(mut running) = self.under_way.end(change) else {
            return;
        };
        core.host.plane.terms.remove(&change);
        running.reason = translated.or(running.reason);
        core.host.proxy_changes.held.remove(&change);
        if progress == Progress::Removed {
            keep_history(&mut core.host.plane, change, &running.task);
            if let (Some(Mode::Bypass), Some(hosts)) = (running.task.way, running.task.neighbours) {
                core.host.plane.neighbours.lives_between(hosts);
            }
        }
        if self.goes_on(core, &running, &progress) {
            return self.start_waiting(core);
        }
        let (mut report, why) = running.end(progress);
        report.change_id = Some(change.to_string());
        self.finish(core, running.task.batch, report, why.as_ref());
        self.start_waiting(core);
    }
}
