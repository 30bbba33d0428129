use dysco_api::SocketOption;
use dysco_explain::Cause;
use serde_json::json;

use super::*;

fn report(outcome: TuneOutcome) -> TuneReport {
    TuneReport {
        session: SessionId(1),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 40_000).into(),
        outcome,
        process: None,
        options: Vec::new(),
        reason: None,
        reasons: Vec::new(),
    }
}

fn to_bbr() -> TunedOption {
    TunedOption {
        option: SocketOption::Congestion,
        from: "cubic".into(),
        to: "bbr".into(),
    }
}

fn done(dry_run: bool, reports: impl IntoIterator<Item = TuneReport>) -> Done {
    let mut done = Done {
        dry_run,
        ..Done::default()
    };
    reports.into_iter().for_each(|report| done.add(report));
    done.accepted = done.sessions.len();
    done
}

#[test]
fn a_dry_run_claims_nothing() {
    let tuned = TuneReport {
        options: vec![to_bbr()],
        ..report(TuneOutcome::Tuned)
    };
    let dry = done(true, [tuned.clone(), report(TuneOutcome::Restored)]);
    let value = json(&dry).unwrap();
    assert_eq!(value["sessions"][0]["outcome"], "tunable");
    assert_eq!(value["sessions"][1]["outcome"], "restorable");
    let counts = json!({
        "tunable": 1, "restorable": 1, "unchanged": 0, "incomplete": 0, "refused": 0,
    });
    assert_eq!(value["summary"], counts);
    let reported = text(&done(true, [tuned.clone()]));
    assert!(reported.contains("congestion cubic to bbr"), "{reported}");
    let end = "1 tunable, 0 unchanged, 0 refused; nothing was changed";
    assert!(reported.ends_with(end), "{reported}");
    let reported = text(&done(false, [tuned]));
    assert!(
        reported.ends_with("1 tuned, 0 unchanged, 0 refused"),
        "{reported}"
    );
}

#[test]
fn every_reason_is_reported() {
    let refused = TuneReport {
        reason: Some("a".into()),
        reasons: vec!["a".into(), Cause::new("b").hint("c")],
        ..report(TuneOutcome::Refused)
    };
    let reported = text(&done(false, [refused]));
    assert!(reported.contains("a; also: b; c"), "{reported}");
    let stays = TuneReport {
        options: vec![to_bbr()],
        reason: Some("d".into()),
        ..report(TuneOutcome::Restored)
    };
    let reported = text(&done(false, [stays]));
    assert!(
        reported.contains("congestion cubic to bbr; d"),
        "{reported}"
    );
    assert!(
        reported.ends_with("1 restored, 0 unchanged, 0 refused"),
        "{reported}"
    );
}

#[test]
fn a_partial_result_is_neither_restored_nor_refused() {
    let partial = TuneReport {
        options: vec![to_bbr()],
        reason: Some("a".into()),
        reasons: vec!["a".into()],
        ..report(TuneOutcome::Incomplete)
    };
    let reported = text(&done(false, [partial]));
    assert!(
        reported.contains("congestion cubic to bbr; a"),
        "{reported}"
    );
    let end = "0 tuned, 0 unchanged, 1 incomplete, 0 refused";
    assert!(reported.ends_with(end), "{reported}");
}

#[test]
fn the_names_of_a_session_are_listed_once() {
    let one = Listed {
        session: SessionId(0xab),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 40_000).into(),
        options: vec![to_bbr(), to_bbr()],
    };
    let reported = listing(&[one]);
    assert_eq!(reported.matches("10.0.0.1:80").count(), 1, "{reported}");
    assert_eq!(reported.matches("cubic").count(), 2, "{reported}");
}
