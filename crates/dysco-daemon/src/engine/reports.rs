//! Reports of the protocol machine, and what requests want from each other.

use std::time::Instant;

use dysco_proto::{Report, Role};

use super::Engine;

impl Engine {
    /// Handles the machine's report on how far a change is. `at` is the time of the reported event.
    pub(super) fn take_report(&mut self, report: Report, at: Instant) {
        match report {
            Report::Progress {
                change,
                role,
                subsession,
                progress,
            } => {
                let asked_here =
                    self.removals.has_begun(change) || self.chain_requests.has_begun(change);
                self.core
                    .tally
                    .part_ended(change, role, &subsession, &progress, asked_here);
                let chain = matches!(role, Role::Head | Role::Tail | Role::Lead | Role::Member);
                let core = &mut self.core;
                match chain {
                    true => (self.chain_requests).chain_progress(
                        core,
                        change,
                        role,
                        &subsession,
                        progress,
                        at,
                    ),
                    false => {
                        (self.removals).progress(core, change, role, &subsession, progress, at)
                    }
                }
            }
            Report::Violation {
                change,
                from,
                message,
                violation,
            } => {
                let from = from.map_or("an unknown host".to_owned(), |f| f.to_string());
                let text = format!("{message} from {from} was ignored: {violation}");
                self.core
                    .host
                    .plane
                    .report_part(Some(change.to_string()), "violation", None, text);
            }
            Report::Trouble { change, reason } => {
                let text = format!("change {change}: {reason}");
                self.core
                    .host
                    .plane
                    .report_part(Some(change.to_string()), "trouble", None, text);
            }
        }
        self.settle_requests();
    }

    /// Passes on what removals want from the requests for chains, and what has become of it.
    pub(super) fn settle_requests(&mut self) {
        loop {
            if let Some(leaving) = self.removals.next_leaving() {
                self.chain_requests.leave_chains(&mut self.core, &leaving);
            } else if let Some(ended) = self.chain_requests.next_ended() {
                self.removals.left_chain(&mut self.core, ended);
            } else {
                return;
            }
        }
    }
}
