//! Tests of parsing and printing on the local API.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn names_are_read_as_they_are_printed() {
    let id = SessionId::new(0x12, 0xab);
    assert_eq!((id.slot(), id.generation()), (0x12, 0xab));
    for name in [
        "ab00000012",
        "10.0.0.1:80>10.0.0.2:40000",
        "[fd00::1]:80>[fd00::2]:1",
    ] {
        assert_eq!(name.parse::<SessionName>().unwrap().to_string(), name);
    }
    for bad in [
        "",
        "+1",
        "xyz",
        "10.0.0.1:80",
        "10.0.0.1>10.0.0.2",
        "1ffffffffffffffff",
    ] {
        assert!(bad.parse::<SessionName>().is_err(), "{bad}");
    }
    for name in ["self", "10.0.0.1", "fd00::1", "proxy1.example"] {
        assert_eq!(name.parse::<HostName>().unwrap().to_string(), name);
    }
    for bad in ["", "a b", "a/b", &"x".repeat(254)] {
        assert!(bad.parse::<HostName>().is_err(), "{bad}");
    }
    // A name that is of no use on other hosts stays a name.
    for name in ["self", "10.0.0.1", "localhost", "nobody.invalid"] {
        let mut host: HostName = name.parse().unwrap();
        host.look_up();
        assert_eq!(host.to_string(), name);
    }
    for filter in [
        "host=10.0.0.1,port=80,state=tracked,removable=yes",
        "mode=local,chain=10.0.0.9,proxy=:80,peer=fd00::1",
        "mode=none,chain=yes,proxy=haproxy",
        "chain=no,proxy=haproxy.service,proxy=12,removable=no",
    ] {
        assert_eq!(filter.parse::<Filter>().unwrap().to_string(), filter);
    }
    for (bad, why) in [
        ("host", "filters nothing"),
        ("host=x", "filters nothing"),
        ("port=x", "filters nothing"),
        ("port=", "filters nothing"),
        ("removable=maybe", "filters nothing"),
        ("port=0", "use 1 to 65535"),
        ("port=65536", "use 1 to 65535"),
        ("port=99999999999", "use 1 to 65535"),
        ("peer=x", "filters nothing"),
        ("chain=maybe", "filters nothing"),
        ("proxy=a/b", "filters nothing"),
        ("mode=auto", "use bypass, return, local or none"),
        ("state=", "use one of opening"),
        ("state=foo", "'foo' is no state of a session"),
    ] {
        let reported = bad.parse::<Filter>().unwrap_err().to_string();
        assert!(reported.contains(why), "{bad}: {reported}");
    }
    for state in STATES {
        assert!(FILTER_HELP.contains(state), "{state}");
        let filter = format!("state={}", state.to_uppercase());
        assert_eq!(
            filter.parse::<Filter>().unwrap().to_string(),
            format!("state={state}")
        );
    }
}

#[test]
fn joined_filters_select_what_all_of_them_select() {
    let joined = |filters: &[&str]| {
        let filters = filters.iter().map(|f| f.parse::<Filter>().unwrap());
        filters.collect::<Filter>().to_string()
    };
    assert_eq!(
        joined(&["port=80,mode=none", "", "peer=::1"]),
        "port=80,mode=none,peer=::1"
    );
    assert_eq!(joined(&[]), "");
}

fn session_report() -> SessionReport {
    let end = |s: &str| s.parse().unwrap();
    SessionReport {
        proxy: Some(Relayer {
            pid: 7,
            name: "a-proxy-of-a-lo".into(),
            unit: Some("haproxy.service".into()),
            listener: end("10.0.0.1:80"),
        }),
        state: "new-path".into(),
        path: Some(PathReport {
            local: end("10.0.0.1:61000"),
            remote: end("10.0.0.3:80"),
        }),
        opened_as: Some(PathReport {
            local: end("10.0.0.1:80"),
            remote: end("10.0.0.7:40000"),
        }),
        ..SessionReport::tracked(SessionId(1), end("10.0.0.1:80"), end("10.0.0.2:40000"))
    }
}

#[test]
fn a_filter_looks_at_both_ends_and_the_path() {
    let session = session_report();
    let shows = |filter: &str| filter.parse::<Filter>().unwrap().matches(&session);
    assert!(shows("host=10.0.0.7"));
    assert!(shows("") && shows("host=10.0.0.3") && shows("port=40000,state=new-path"));
    // Listings print this state once a session is over.
    let over = SessionReport {
        ended: true,
        ..session.clone()
    };
    let shown = |filter: &str| filter.parse::<Filter>().unwrap().matches(&over);
    assert!(shown("state=ended") && !shown("state=new-path") && !shows("state=ended"));
    // A port of the session or of its path matches.
    assert!(shows("port=80") && shows("port=61000") && !shows("port=61001"));
    assert!(!shows("host=10.0.0.4") && !shows("port=80 removable=no"));
    // Only the remote ends match.
    for peer in ["10.0.0.2", "10.0.0.3", "10.0.0.7"] {
        assert!(shows(&format!("peer={peer}")), "{peer}");
    }
    assert!(!shows("peer=10.0.0.1"));
}

#[test]
fn a_filter_knows_the_proxy_the_mode_and_the_chain() {
    let mut session = session_report();
    let shows = |session: &SessionReport, filter: &str| {
        let filter: Filter = filter.parse().unwrap();
        filter.matches(session)
    };
    for (name, meant) in [
        ("7", true),
        ("8", false),
        (":80", true),
        ("10.0.0.1:80", true),
        ("10.0.0.3:80", false),
        ("haproxy.service", true),
        ("nginx.service", false),
        // The kernel truncates the name like this.
        ("a-proxy-of-a-long-name", true),
        ("a-proxy", false),
    ] {
        assert_eq!(shows(&session, &format!("proxy={name}")), meant, "{name}");
    }
    session.proxy = None;
    assert!(!shows(&session, "proxy=7"));
    assert!(shows(&session, "mode=none") && !shows(&session, "mode=local"));
    session.mode = Some(Mode::Local);
    assert!(!shows(&session, "mode=none") && shows(&session, "mode=local"));
    assert!(!shows(&session, "mode=bypass"));
    assert!(shows(&session, "chain=no") && !shows(&session, "chain=yes"));
    session.chain = Some(vec![Element::Host([10, 0, 0, 9].into())]);
    assert!(shows(&session, "chain=yes") && shows(&session, "chain=10.0.0.9"));
    assert!(!shows(&session, "chain=no") && !shows(&session, "chain=10.0.0.8"));
    // A host of the chain does not know the other hosts.
    session.chain = None;
    session.state = "chained".into();
    assert!(shows(&session, "chain=yes") && !shows(&session, "chain=10.0.0.9"));
}

#[test]
fn a_filter_knows_the_sessions_with_services() {
    for services in [true, false] {
        let session = SessionReport {
            services,
            ..session_report()
        };
        for (word, wanted) in [("services=yes", true), ("services=no", false)] {
            let filter: Filter = word.parse().unwrap();
            assert_eq!(filter.matches(&session), wanted == services, "{word}");
            assert_eq!(filter.to_string(), word);
        }
    }
    assert!("services=count".parse::<Filter>().is_err());
}

/// Sessions have a shorter parser in the client than other replies.
#[test]
fn a_session_is_written_as_the_client_looks_for_it() {
    let session = session_report();
    let reply = Reply::Session(Box::new(session.clone()));
    let line = serde_json::to_vec(&reply).unwrap();
    assert!(line.starts_with(client::SESSION));
    assert_eq!(
        serde_json::from_slice::<SessionReport>(&line).unwrap(),
        session
    );
}

/// Programs without support for pages send the same request as before.
#[test]
fn a_listing_says_only_what_is_not_usual() {
    let all = Request::Sessions(Listing::default());
    let line = serde_json::to_string(&all).unwrap();
    assert_eq!(line, r#"{"request":"sessions","filter":""}"#);
    let bare: Request = serde_json::from_str(r#"{"request":"sessions"}"#).unwrap();
    assert_eq!(bare, all);
    let page = r#"{"request":"sessions","brief":true,"after":"1a","limit":10}"#;
    let page: Request = serde_json::from_str(page).unwrap();
    let asked = Listing {
        brief: true,
        after: Some(SessionId(0x1a)),
        limit: Some(10),
        ..Listing::default()
    };
    assert_eq!(page, Request::Sessions(asked));
    let wrong = r#"{"request":"sessions","most":10}"#;
    assert!(serde_json::from_str::<Request>(wrong).is_err());
}

#[test]
fn a_summary_counts_and_ranks() {
    let report = |outcome, us| RemovalReport {
        session: SessionId(1),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 1).into(),
        outcome,
        reason: None,
        reasons: Vec::new(),
        timed_out: false,
        mode: None,
        why_mode: None,
        accepted_to_begin_us: None,
        request_to_switch_us: us,
        request_to_close_us: None,
        change_id: None,
    };
    let mut reports: Vec<_> = (1..=100)
        .rev()
        .map(|us| report(Outcome::Removed, Some(us)))
        .collect();
    reports.push(report(Outcome::Refused, None));
    let summary = Summary::of(&reports);
    assert_eq!((summary.removed, summary.refused), (100, 1));
    assert_eq!((summary.p50_us, summary.p99_us), (Some(50), Some(99)));
    assert_eq!(Summary::of([]).p50_us, None);
}

/// The C library (`dysco_delta`) writes this form.
#[test]
fn a_middleboxs_word_is_read() {
    let line = r#"{"request":"delta","session":"10.1.0.5:40000>10.2.0.7:443","to_server":20,"to_client":-7}"#;
    let request: Request = serde_json::from_str(line).unwrap();
    let reported = TellDelta {
        session: "10.1.0.5:40000>10.2.0.7:443".parse().unwrap(),
        to_server: 20,
        to_client: -7,
    };
    assert_eq!(request, Request::Delta(reported));
    assert!(request.changes(), "root alone may ask");
    let reply = Reply::Delta(DeltaReport {
        session: SessionId(1),
        to_server: 20,
        to_client: -7,
    });
    let line = serde_json::to_string(&reply).unwrap();
    assert!(line.starts_with(r#"{"reply":"delta","#), "{line}");
    let refused = Reply::Error(Failure {
        code: FailureCode::Refused,
        what: String::new(),
        why: String::new(),
        hint: String::new(),
    });
    let line = serde_json::to_string(&refused).unwrap();
    assert!(line.contains(r#""code":"refused""#), "{line}");
}

/// The C library (`dysco_service_call`) writes and reads these forms.
#[test]
fn a_programs_call_of_a_service_is_read() {
    let line = r#"{"request":"call_service","session":"10.1.0.5:40000>10.2.0.7:443","service":"shape","verb":"rate","argument":"5M"}"#;
    let request: Request = serde_json::from_str(line).unwrap();
    let call = ServiceCall {
        session: "10.1.0.5:40000>10.2.0.7:443".parse().unwrap(),
        service: "shape".into(),
        verb: "rate".into(),
        argument: Some("5M".into()),
    };
    assert_eq!(request, Request::CallService(call));
    let reply = Reply::ServiceAnswer(ServiceAnswer {
        session: SessionId(1),
        service: "shape".into(),
        answer: true.into(),
    });
    let line = serde_json::to_string(&reply).unwrap();
    let written = r#"{"reply":"service_answer","session":"1","service":"shape","answer":true}"#;
    assert_eq!(line, written);
}

#[test]
fn an_element_has_the_text_and_the_json_of_its_host() {
    for host in ["self", "fw1.example", "10.0.0.9", "fd00::9"] {
        let element: ElementName = host.parse().unwrap();
        assert_eq!(element.to_string(), host);
        assert_eq!(element, ElementName::Host(host.parse().unwrap()));
        let json = serde_json::to_value(&element).unwrap();
        assert_eq!(json, *host);
        assert_eq!(
            serde_json::from_value::<ElementName>(json).unwrap(),
            element
        );
    }
    for bad in ["", "other:web", "10.0.0.1/24"] {
        let error = bad.parse::<ElementName>().unwrap_err().to_string();
        assert!(error.contains("names no host; give"), "{error}");
        let error = serde_json::from_value::<ElementName>(bad.into()).unwrap_err();
        assert!(error.to_string().contains("names no host; give"), "{error}");
    }
}

#[test]
fn chains_in_json_are_lists_of_addresses() {
    let chain = [[10, 0, 0, 9], [10, 0, 0, 8]].map(|host| Element::Host(host.into()));
    let json = serde_json::to_string(&chain).unwrap();
    assert_eq!(json, r#"["10.0.0.9","10.0.0.8"]"#);
    assert_eq!(serde_json::from_str::<[Element; 2]>(&json).unwrap(), chain);
    let error = serde_json::from_str::<Element>(r#""other:web""#).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("'other:web' is no element of a chain; write a host's")
    );
}
