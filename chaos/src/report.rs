//! Output at the end, and for each seed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::execute::Run;
use crate::judge::{Finding, Kind};
use crate::plan::Plan;

/// Summary of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Number of plans that were run.
    pub seeds: u64,
    /// Number of sessions that were opened.
    pub sessions: u64,
    /// Number of bytes that were received and checked.
    pub bytes: u64,
    /// Number of session changes by commands. A session counts once for each change.
    pub changes: u64,
    /// Number of kills that hit something.
    pub kills: u64,
    /// Number of sessions with a fault that also occurred without Dysco.
    pub excused: u64,
    /// Number of plans, and of controls, that could not be run.
    pub not_run: u64,
    /// Number of other invariants that were broken.
    pub broken: u64,
    /// Seeds with faults.
    pub found: Vec<u64>,
    /// Number of ends that received a byte that was not sent.
    pub wrong_bytes: u64,
    /// Number of sessions that were falsely reported as removed or changed, and of commands that
    /// reported success although sessions were left.
    pub false_removed: u64,
    /// Number of sessions that ended and would not have ended without Dysco.
    pub lost_sessions: u64,
    /// Number of sessions that stalled and would not have stalled without Dysco.
    pub stalls: u64,
    /// Number of namespaces, processes, pins, held ports and entries that remained.
    pub leftovers: u64,
}

impl Report {
    /// Adds a run to the summary.
    pub(crate) fn add(&mut self, seed: u64, run: &Run, findings: &[Finding], excused: u64) {
        self.seeds += 1;
        self.excused += excused;
        self.sessions += run.sessions.iter().filter(|s| s.local.is_some()).count() as u64;
        self.bytes += run.bytes();
        self.changes += run.changes() as u64;
        self.kills += run.kills.iter().filter(|k| k.hit).count() as u64;
        for finding in findings {
            *self.field(finding.kind) += 1;
        }
        if !findings.is_empty() {
            self.found.push(seed);
        }
    }

    fn field(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::WrongBytes => &mut self.wrong_bytes,
            Kind::FalseRemoved => &mut self.false_removed,
            Kind::Lost => &mut self.lost_sessions,
            Kind::Stall => &mut self.stalls,
            Kind::Leftover => &mut self.leftovers,
            Kind::Broken => &mut self.broken,
        }
    }

    /// True if no fault was found.
    pub(crate) fn is_clean(&self) -> bool {
        let found = [self.wrong_bytes, self.false_removed, self.lost_sessions];
        let rest = [self.stalls, self.leftovers, self.broken, self.not_run];
        found.iter().chain(&rest).all(|n| *n == 0)
    }

    /// Returns the summary as text.
    pub(crate) fn text(&self) -> String {
        let Report {
            seeds,
            sessions,
            bytes,
            changes,
            kills,
            ..
        } = self;
        let Report {
            wrong_bytes,
            false_removed,
            lost_sessions,
            stalls,
            leftovers,
            ..
        } = self;
        format!(
            "{seeds} seeds: {sessions} sessions with {} MB, {changes} changes, {kills} kills\n\
             wrong bytes {wrong_bytes}, falsely removed {false_removed}, lost {lost_sessions}, \
             stalls {stalls}, left over {leftovers}; other invariants broken {}, not run {}",
            bytes / 1_000_000,
            self.broken,
            self.not_run
        )
    }
}

/// Returns the line of a seed.
pub(crate) fn line(plan: &Plan, run: &Run, findings: &[Finding], excused: u64) -> String {
    let opened = run.sessions.iter().filter(|s| s.local.is_some()).count();
    let reported = if findings.is_empty() {
        "nothing found"
    } else {
        "FOUND"
    };
    format!(
        "seed {}: {} hosts, {} boxes, {} proxies, {opened} of {} sessions, {} MB, {} commands with \
         {} changes, {} kills, {excused} excused: {reported}",
        plan.seed,
        plan.hosts.len(),
        plan.boxes.len(),
        plan.proxies.len(),
        plan.sessions.len(),
        run.bytes() / 1_000_000,
        run.operations.len(),
        run.changes(),
        run.kills.iter().filter(|k| k.hit).count(),
    )
}

/// Returns lines with the results of each command: the outcomes of sessions, and their reasons.
pub(crate) fn reported(run: &Run) -> String {
    let mut text = String::new();
    for operation in &run.operations {
        let mut outcomes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for reported in &operation.reported {
            let reason = reported.reason.as_deref().unwrap_or_default();
            *outcomes.entry((&reported.outcome, reason)).or_default() += 1;
        }
        let (ask, code) = (&operation.operation.ask, operation.code);
        text += &format!(
            "\n  {ask:?} at {} ms ends with {code:?}",
            operation.began_ms
        );
        for ((outcome, reason), sessions) in outcomes {
            text += &format!("\n    {sessions} {outcome}: {reason}");
        }
        if operation.reported.is_empty() {
            text += &format!(": {}", operation.said);
        }
    }
    text
}

/// Returns the line of a finding.
pub(crate) fn finding(finding: &Finding) -> String {
    format!("  {:?}: {}", finding.kind, finding.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_field_and_spoils_the_report() {
        let kinds = [
            Kind::WrongBytes,
            Kind::FalseRemoved,
            Kind::Lost,
            Kind::Stall,
            Kind::Leftover,
            Kind::Broken,
        ];
        for kind in kinds {
            let mut report = Report::default();
            report.add(1, &Run::default(), &[], 0);
            assert!(report.is_clean());
            let what = String::new();
            report.add(
                2,
                &Run::default(),
                &[Finding {
                    kind,
                    session: None,
                    what,
                }],
                0,
            );
            assert!(!report.is_clean() && report.found == [2], "{kind:?}");
        }
    }

    #[test]
    fn the_object_ends_with_what_must_be_zero() {
        let text = serde_json::to_string(&Report::default()).expect("JSON");
        let last = [
            "wrong_bytes",
            "false_removed",
            "lost_sessions",
            "stalls",
            "leftovers",
        ];
        let zeroes: Vec<_> = last.iter().map(|field| format!("\"{field}\":0")).collect();
        assert!(text.ends_with(&format!("{}}}", zeroes.join(","))), "{text}");
    }
}
