use clap::Parser;
use dysco_api::{
    Filter, ServiceAction, ServiceAnswer, ServiceOutcome, ServiceReport, ServiceRequest,
    ServiceRow, ServiceState, SessionId, SocketOwner,
};
use serde_json::{Value, json};

use super::change::{self, Done, PutArgs, exit};
use super::*;

#[derive(Debug, Parser)]
struct Put {
    #[command(flatten)]
    args: PutArgs,
}

fn request(line: &str) -> Result<ServiceRequest, Cause> {
    let words = std::iter::once("put").chain(line.split_whitespace());
    Put::try_parse_from(words).unwrap().args.request()
}

#[test]
fn services_and_sessions_are_told_apart() {
    let named = request("+count 1a +shape=rate=20M,burst=1 10.0.0.1:80>10.0.0.2:1").unwrap();
    let services = ["count", "shape=rate=20M,burst=1"].map(|spec| spec.parse().unwrap());
    let sessions = ["1a", "10.0.0.1:80>10.0.0.2:1"].map(|name| name.parse().unwrap());
    let expected = ServiceRequest {
        sessions: sessions.into(),
        all: false,
        filter: Filter::default(),
        action: ServiceAction::Put {
            services: services.into(),
            beside_hosts: false,
        },
        dry_run: false,
        wait_ms: None,
    };
    assert_eq!(named, expected);
    let all = request("--wait +count --all --dry-run").unwrap();
    assert!(all.all && all.sessions.is_empty() && all.dry_run);
    assert_eq!(all.wait_ms, Some(60_000));
    let some = request("--filter port=80 +count --filter mode=none --wait=500ms").unwrap();
    assert!(some.all && !some.dry_run);
    assert_eq!(some.filter.to_string(), "port=80,mode=none");
    assert_eq!(some.wait_ms, Some(500));
}

#[derive(Debug, Parser)]
struct Take {
    #[command(flatten)]
    args: change::TakeArgs,
}

fn take(line: &str) -> Result<ServiceRequest, Cause> {
    let words = std::iter::once("take").chain(line.split_whitespace());
    Take::try_parse_from(words).unwrap().args.request()
}

#[test]
fn some_services_or_all_are_taken_out() {
    let all = take("1a 2b --wait").unwrap();
    assert_eq!(all.action, ServiceAction::Take);
    assert_eq!((all.sessions.len(), all.all), (2, false));
    let some = take("+count --all +shape").unwrap();
    let services = vec!["count".into(), "shape".into()];
    assert_eq!(some.action, ServiceAction::Part { services });
    assert!(some.all && some.sessions.is_empty());
    for (line, why) in [
        ("", "no session is selected"),
        ("+count", "no session is selected"),
        ("1a --all", "selected by an option as well"),
        ("+shape=rate=1M 1a", "named without arguments"),
    ] {
        let cause = take(line).unwrap_err();
        assert!(
            cause.why.contains(why) && cause.hint.is_some(),
            "{line}: {cause}"
        );
    }
}

#[test]
fn a_request_without_services_or_a_clear_selection_is_wrong() {
    for (line, why) in [
        ("1a", "no service is named"),
        ("1a --all", "no service is named"),
        ("+count", "no session is selected"),
        ("+count 1a --all", "selected by an option as well"),
        (
            "+count 1a --filter port=80",
            "selected by an option as well",
        ),
    ] {
        let cause = request(line).unwrap_err();
        assert!(cause.why.contains(why), "{line}: {cause}");
        assert!(cause.hint.is_some(), "{line}");
        let error = CliError::Usage(cause);
        assert_eq!(error.exit(), Exit::Usage);
        assert_eq!(error.json()["error"]["code"], "bad_request");
    }
}

#[test]
fn a_word_that_is_neither_gets_both_hints() {
    let cause = "count".parse::<Word>().unwrap_err().to_string();
    assert!(
        cause.starts_with("'count' names no session; give an id"),
        "{cause}"
    );
    assert!(cause.ends_with("; write a service as +NAME"), "{cause}");
    let cause = "+Count".parse::<Word>().unwrap_err().to_string();
    assert!(cause.starts_with("'Count' is no service"), "{cause}");
}

fn report(outcome: ServiceOutcome) -> ServiceReport {
    ServiceReport {
        session: SessionId(1),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 40_000).into(),
        outcome,
        services: vec!["shape=rate=20M".parse().unwrap(), "count".parse().unwrap()],
        process: Some(SocketOwner {
            pid: 7,
            name: "web".into(),
        }),
        reason: None,
        reasons: Vec::new(),
        delta: None,
        millis: None,
    }
}

fn done(dry_run: bool, reports: impl IntoIterator<Item = ServiceReport>) -> Done {
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
    let put = report(ServiceOutcome::Put);
    let dry = done(true, [put.clone(), report(ServiceOutcome::Taken)]);
    let value = change::json(&dry).unwrap();
    assert_eq!(value["sessions"][0]["outcome"], "possible");
    assert_eq!(value["sessions"][1]["outcome"], "possible");
    let counts = json!({"possible": 2, "unchanged": 0, "refused": 0});
    assert_eq!(value["summary"], counts);
    let reported = change::text(&done(true, [put.clone()]));
    assert!(reported.contains("+shape=rate=20M +count"), "{reported}");
    let end = "1 possible, 0 unchanged, 0 refused; nothing was changed";
    assert!(reported.ends_with(end), "{reported}");
    let real = done(false, [put]);
    let reported = change::text(&real);
    assert!(reported.contains("web/7"), "{reported}");
    assert!(
        reported.ends_with("\n1 put, 0 unchanged, 0 refused"),
        "{reported}"
    );
    let value = change::json(&real).unwrap();
    let written = json!({
        "dry_run": false,
        "accepted": 1,
        "sessions": [{
            "session": "1", "local": "10.0.0.1:80", "remote": "10.0.0.2:40000",
            "outcome": "put", "services": ["shape=rate=20M", "count"],
            "process": {"pid": 7, "name": "web"},
        }],
        "summary": {
            "put": 1, "taken": 0, "entering": 0, "leaving": 0, "unchanged": 0, "refused": 0,
        },
    });
    assert_eq!(value, written);
}

#[test]
fn a_report_has_the_time_the_delta_and_every_reason() {
    let taken = ServiceReport {
        delta: Some([5, -7]),
        millis: Some(12),
        ..report(ServiceOutcome::Taken)
    };
    let refused = ServiceReport {
        reason: Some("a".into()),
        reasons: vec!["a".into(), Cause::new("b").hint("c")],
        delta: Some([0, 0]),
        ..report(ServiceOutcome::Refused)
    };
    let one_reason = ServiceReport {
        reason: Some("d".into()),
        ..report(ServiceOutcome::Refused)
    };
    let reported = change::text(&done(false, [taken, refused, one_reason]));
    for part in [
        "12 ms",
        "+5 to server, -7 to client",
        "a; also: b; c",
        " d\n",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!(reported.matches("to server").count(), 1, "{reported}");
    assert!(
        reported.ends_with("1 taken, 0 unchanged, 2 refused"),
        "{reported}"
    );
}

#[test]
fn the_exit_code_is_that_of_the_worst_outcome() {
    use ServiceOutcome::{Entering, Leaving, Put, Refused, Taken, Unchanged};
    let exit = |outcomes: &[ServiceOutcome], waited| {
        let done = done(false, outcomes.iter().copied().map(report));
        exit(&done.summary, waited)
    };
    for waited in [false, true] {
        assert_eq!(exit(&[], waited), Exit::Done);
        assert_eq!(exit(&[Put, Taken, Unchanged], waited), Exit::Done);
        assert_eq!(exit(&[Put, Refused], waited), Exit::Refused);
    }
    for goes_on in [Entering, Leaving] {
        assert_eq!(exit(&[goes_on], false), Exit::Done);
        assert_eq!(exit(&[goes_on, Refused], false), Exit::Refused);
        assert_eq!(exit(&[goes_on, Refused], true), Exit::TimedOut);
    }
}

#[test]
fn a_listing_has_a_row_for_each_session() {
    let count = ServiceRow {
        session: SessionId(0xab),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 40_000).into(),
        services: vec!["count".parse().unwrap()],
        state: ServiceState::In,
        handler: Some(77),
        peer: None,
        read: [1, 2],
        written: [1, 2],
        delta: [0, 0],
    };
    let gone = ServiceRow {
        services: Vec::new(),
        state: ServiceState::Direct,
        handler: None,
        peer: None,
        delta: [16, 0],
        ..count.clone()
    };
    let both = ServiceRow {
        peer: Some([10, 0, 0, 2].into()),
        ..count.clone()
    };
    let reported = list::listing(&[count, gone, both]);
    let rows: Vec<Vec<_>> = reported
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let names = ["ab", "10.0.0.1:80", "10.0.0.2:40000"];
    assert_eq!(rows[1], [&names[..], &["+count", "in", "77", "-"]].concat());
    let added = [
        "-", "direct", "-", "+16", "to", "server,", "+0", "to", "client",
    ];
    assert_eq!(rows[2], [&names[..], &added].concat());
    let shared = ["+count", "with", "10.0.0.2", "in", "77", "-"];
    assert_eq!(rows[3], [&names[..], &shared].concat());
    assert_eq!(list::listing(&[]), "no session has services");
}

#[test]
fn an_answer_is_printed_alone() {
    let text = |answer: Value| {
        call::text(&ServiceAnswer {
            session: SessionId(1),
            service: "count".into(),
            answer,
        })
    };
    assert_eq!(text(json!("two\nlines")), "two\nlines");
    assert_eq!(text(json!(7)), "7");
    assert_eq!(text(json!({"back": 2})), "{\n  \"back\": 2\n}");
}
