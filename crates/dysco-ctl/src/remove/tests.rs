//! Tests of the exit codes, time limits and texts of removals.

use clap::Parser;

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Hosts of a chain have the time limits of the daemon's configuration.
#[test]
fn a_short_timeout_does_not_cut_off_the_wait() {
    let patience = |more: &[&str]| {
        let line = [&["remove-middlebox", "self", "--all"], more].concat();
        Line::parse_from(line).args.patience()
    };
    for more in [["--wait", "--timeout=1s"], ["--dry-run", "--timeout=1s"]] {
        assert!(patience(&more) > LONGEST, "{more:?}");
    }
    assert!(patience(&["--listen", ":8080"]) > LONGEST);
    assert_eq!(patience(&["--timeout=1s"]), PATIENCE);
}

#[test]
fn the_worst_outcome_decides_the_exit_code() {
    let done = |outcomes: &[Outcome]| Done {
        dry_run: false,
        accepted: outcomes.len(),
        removals: outcomes.iter().map(|&outcome| report(outcome)).collect(),
        left: Vec::new(),
        summary: None,
        hint: None,
    };
    use Outcome::{Pending, Refused, Removed, RolledBack, Unconfirmed};
    assert_eq!(exit(&done(&[])), Exit::Done);
    assert_eq!(exit(&done(&[Removed, Removed])), Exit::Done);
    assert_eq!(exit(&done(&[Removed, Refused])), Exit::Refused);
    assert_eq!(exit(&done(&[RolledBack, Removed])), Exit::Refused);
    assert_eq!(exit(&done(&[Refused, Pending])), Exit::TimedOut);
    assert_eq!(exit(&done(&[Removed, Unconfirmed])), Exit::Refused);
    let reported = text(&Done {
        summary: Some(Summary::of(&[report(Unconfirmed)])),
        ..done(&[Unconfirmed])
    });
    assert!(reported.contains("1 unconfirmed"), "{reported}");
}

#[test]
fn one_whose_time_ran_out_has_the_exit_code_for_it() {
    let exit_of = |outcome, timed_out| {
        exit(&Done {
            dry_run: false,
            accepted: 1,
            removals: vec![RemovalReport {
                timed_out,
                ..report(outcome)
            }],
            left: Vec::new(),
            summary: None,
            hint: None,
        })
    };
    for outcome in [Outcome::Refused, Outcome::RolledBack] {
        assert_eq!(exit_of(outcome, true), Exit::TimedOut);
        assert_eq!(exit_of(outcome, false), Exit::Refused);
    }
}

#[test]
fn what_could_not_be_tried_is_left_with_its_reason_and_never_done() {
    let done = |wait: bool| Done {
        dry_run: false,
        accepted: 1,
        removals: vec![report(Outcome::Removed)],
        left: vec![LeftReport {
            sessions: 2,
            reason: "process 7 is elsewhere".into(),
        }],
        summary: wait.then(Summary::default),
        hint: None,
    };
    for wait in [true, false] {
        assert_eq!(exit(&done(wait)), Exit::Refused);
        let reported = text(&done(wait));
        assert!(
            reported.ends_with("\n2 left: process 7 is elsewhere"),
            "{reported}"
        );
    }
    assert_eq!(json(&done(true)).unwrap()["left"][0]["sessions"], 2);
}

#[test]
fn all_reasons_are_reported_and_the_one_that_counts_first() {
    let mut refused = report(Outcome::Refused);
    refused.reason = Some("one".into());
    assert_eq!(why(&refused).as_deref(), Some("one"));
    refused.reasons = vec!["one".into(), "two".into()];
    assert_eq!(why(&refused).as_deref(), Some("one; also: two"));
}

#[test]
fn programs_hear_the_hint_too() {
    let done = Done {
        dry_run: false,
        accepted: 0,
        removals: Vec::new(),
        left: Vec::new(),
        summary: Some(Summary::default()),
        hint: Some("what is missing".into()),
    };
    assert_eq!(json(&done).unwrap()["hint"], "what is missing");
    assert!(text(&done).starts_with("what is missing\n0 removed"));
}

#[test]
fn a_dry_run_is_not_taken_for_a_removal() {
    let done = |dry_run| {
        let removals = vec![report(Outcome::Removed), report(Outcome::Refused)];
        Done {
            dry_run,
            accepted: 2,
            summary: Some(Summary::of(&removals)),
            removals,
            left: Vec::new(),
            hint: None,
        }
    };
    let dry = json(&done(true)).unwrap();
    assert_eq!(dry["removals"][0]["outcome"], "removable");
    assert_eq!(dry["removals"][1]["outcome"], "refused");
    let sum = json!({ "removable": 1, "refused": 1 });
    assert_eq!(dry["summary"], sum, "{dry:#}");
    assert!(text(&done(true)).contains("1 removable, 1 refused; nothing was changed"));
    let real = json(&done(false)).unwrap();
    assert_eq!(real["removals"][0]["outcome"], "removed");
    assert_eq!(real["summary"]["removed"], 1);
}

fn report(outcome: Outcome) -> RemovalReport {
    RemovalReport {
        session: dysco_api::SessionId(1),
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
