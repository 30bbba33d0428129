//! Results of changes of chains, for people and for programs.

use dysco_api::{ChainOutcome, ChainReport, Element, Exit};
use dysco_explain::Cause;
use serde::Serialize;
use serde_json::Value;

use crate::output::{listed, micros, or_dash, rename_outcomes, rendered, table};

/// Outcome of a dry run for a session that could have the chain.
const CHANGEABLE: &str = "changeable";

/// Result of the command.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    pub(super) dry_run: bool,
    pub(super) accepted: usize,
    pub(super) changes: Vec<ChainReport>,
}

/// Returns the exit code of the worst outcome.
pub(super) fn exit(done: &Done) -> Exit {
    let changed = |r: &ChainReport| r.outcome == ChainOutcome::Changed;
    if done.changes.iter().any(|r| r.timed_out) {
        Exit::TimedOut
    } else if done.changes.iter().all(changed) {
        Exit::Done
    } else {
        Exit::Refused
    }
}

/// Returns advice if no session was selected.
fn hint(done: &Done) -> Option<&'static str> {
    let none = done.accepted == 0 && done.changes.is_empty();
    none.then_some(
        "no session to give another chain: --all, --filter and --through are about those \
         that this host has opened; elsewhere name them, or say --through self on a \
         host that they pass",
    )
}

/// Returns the result for programs. A dry run has its own outcome.
pub(super) fn json(done: &Done) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(done)?;
    if let Some(hint) = hint(done) {
        value["hint"] = hint.into();
    }
    if done.dry_run {
        rename_outcomes(&mut value["changes"], "changed", CHANGEABLE);
    }
    Ok(value)
}

/// Returns the result for people.
pub(super) fn text(done: &Done, wait: bool) -> String {
    if let Some(hint) = hint(done) {
        return hint.into();
    }
    if !wait {
        let accepted = done.accepted;
        return format!("begun for {accepted} sessions; see 'dyscoctl monitor'");
    }
    let mut rows = table([
        "ID", "LOCAL", "REMOTE", "OUTCOME", "BEFORE", "AFTER", "SWITCHED", "ENDED", "WHY",
    ]);
    for report in &done.changes {
        let outcome = match report.outcome {
            ChainOutcome::Changed if done.dry_run => CHANGEABLE,
            ChainOutcome::Changed => "changed",
            ChainOutcome::Refused => "refused",
            ChainOutcome::RolledBack => "rolled back",
        };
        rows.add_row([
            report.session.to_string(),
            report.local.to_string(),
            report.remote.to_string(),
            outcome.into(),
            chain(&report.before),
            chain(&report.after),
            or_dash(report.request_to_switch_us.map(micros)),
            or_dash(report.request_to_end_us.map(micros)),
            or_dash(report.reason.as_ref().map(Cause::to_string)),
        ]);
    }
    let count = |outcome| done.changes.iter().filter(|r| r.outcome == outcome).count();
    let [changed, refused, back] = [
        ChainOutcome::Changed,
        ChainOutcome::Refused,
        ChainOutcome::RolledBack,
    ]
    .map(count);
    let sum = match done.dry_run {
        true => format!("{changed} {CHANGEABLE}, {refused} refused; nothing was changed"),
        false => format!("{changed} changed, {refused} refused, {back} rolled back"),
    };
    format!("{}\n\n{sum}", rendered(&rows))
}

fn chain(elements: &[Element]) -> String {
    match elements {
        [] => "direct".into(),
        elements => listed(elements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: ChainOutcome, timed_out: bool) -> ChainReport {
        ChainReport {
            session: dysco_api::SessionId(1),
            local: ([10, 0, 0, 1], 40000).into(),
            remote: ([10, 0, 0, 2], 80).into(),
            outcome,
            reason: None,
            timed_out,
            before: Vec::new(),
            after: Vec::new(),
            request_to_switch_us: None,
            request_to_end_us: None,
            change_id: None,
        }
    }

    #[test]
    fn one_whose_time_ran_out_has_the_exit_code_for_it() {
        use ChainOutcome::{Changed, Refused, RolledBack};
        let exit_of = |changes: &[(ChainOutcome, bool)]| {
            let changes = changes
                .iter()
                .map(|(outcome, late)| report(*outcome, *late));
            exit(&Done {
                dry_run: false,
                accepted: 1,
                changes: changes.collect(),
            })
        };
        assert_eq!(exit_of(&[]), Exit::Done);
        assert_eq!(exit_of(&[(Changed, false)]), Exit::Done);
        assert_eq!(
            exit_of(&[(Changed, false), (Refused, false)]),
            Exit::Refused
        );
        let late = [(Refused, false), (RolledBack, true)];
        assert_eq!(exit_of(&late), Exit::TimedOut);
    }

    #[test]
    fn where_no_session_was_meant_it_says_who_has_them() {
        for (accepted, dry_run) in [(0, false), (0, true), (1, false)] {
            let changes = Vec::new();
            let done = Done {
                dry_run,
                accepted,
                changes,
            };
            let said = json(&done).unwrap()["hint"].is_string();
            assert_eq!(said, accepted == 0);
            assert_eq!(text(&done, dry_run).contains("no session"), accepted == 0);
        }
    }

    #[test]
    fn a_dry_run_is_not_taken_for_a_change() {
        let done = |dry_run| Done {
            dry_run,
            accepted: 1,
            changes: vec![report(ChainOutcome::Changed, false)],
        };
        let dry = json(&done(true)).unwrap();
        assert_eq!(dry["changes"][0]["outcome"], "changeable", "{dry:#}");
        assert!(text(&done(true), true).contains("1 changeable, 0 refused"));
        let real = json(&done(false)).unwrap();
        assert_eq!(real["changes"][0]["outcome"], "changed", "{real:#}");
    }
}
