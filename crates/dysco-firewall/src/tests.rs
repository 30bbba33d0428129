//! Documents that are refused, and their schema.

use std::net::SocketAddr;

use dysco_proto::KindName;
use serde_json::{Value, json};

use super::document::{Document, check_size, schema};
use super::five_tuple::FiveTuple;
use super::{Fault, Seen, StateError, check, conntrack::ConntrackState, has_each};

fn end(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A session whose addresses are not translated.
pub(crate) fn plain() -> Seen {
    Seen::plain(FiveTuple {
        source: end("10.0.1.1:40000"),
        destination: end("10.0.3.1:80"),
    })
}

/// The same session with a translated source.
pub(crate) fn translated() -> Seen {
    let session = plain().session;
    let translated = FiveTuple {
        source: end("10.0.3.99:50000"),
        ..session
    };
    Seen {
        session,
        translated,
    }
}

pub(crate) fn entry() -> Value {
    let end = json!({"window_scale": 7, "sack": true, "close_first": false, "liberal": false});
    json!({
        "assured": true, "seen_reply": true, "timeout_s": 432_000, "mark": 7,
        "tcp": {"state": "established", "original": end, "reply": end},
    })
}

fn document(seen: &Seen, state: Value) -> Document {
    Document::new(seen, KindName::Conntrack, &state)
}

/// Returns the fault for which a document is refused before the kernel is asked.
fn fault(session: &FiveTuple, document: Document) -> Fault {
    match check(session, &[document]) {
        Err(error @ StateError::Refused { .. }) => {
            assert!(error.is_bad_request(), "{error}");
            let StateError::Refused { fault, .. } = error else {
                unreachable!()
            };
            *fault
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn another_version_is_refused() {
    let mut document = document(&plain(), entry());
    document.version = 2;
    assert_eq!(fault(&plain().session, document), Fault::Version(2));
}

#[test]
fn only_the_sessions_own_five_tuple_is_taken() {
    let seen = translated();
    let header = |awaited: &FiveTuple| document(&seen, entry()).check_header(awaited);
    // Either end may name the session, on either side of the translation.
    for own in [seen.session, seen.translated] {
        assert!(header(&own).is_ok() && header(&own.reversed()).is_ok());
    }
    let mut foreign = seen.session;
    foreign.source.set_port(40001);
    let refused = fault(&foreign, document(&seen, entry()));
    assert_eq!(refused, Fault::Foreign(foreign));
}

#[test]
fn impossible_five_tuples_are_refused() {
    let mut mixed = plain();
    mixed.translated.source = end("[fd00::1]:1");
    let mut no_port = plain();
    no_port.session.source.set_port(0);
    no_port.translated = no_port.session;
    let mut group = plain();
    group.translated.destination = end("224.0.0.1:80");
    for seen in [mixed, no_port, group] {
        let refused = fault(&seen.session, document(&seen, entry()));
        assert_eq!(refused, Fault::Impossible, "{seen:?}");
    }
}

#[test]
fn an_entry_that_cannot_be_is_refused() {
    let wrong = [
        ("/timeout_s", json!(0)),
        ("/labels", json!("beef")),
        ("/tcp/state", json!("syn_sent")),
        ("/tcp/reply/window_scale", json!(15)),
        ("/zone", json!({"id": 0, "direction": "reply"})),
        ("/mark", json!(-1)),
        ("/colour", json!("red")),
    ];
    for (at, value) in wrong {
        let mut state = entry();
        state["labels"] = json!("");
        state["zone"] = json!({"id": 0});
        match state.pointer_mut(at) {
            Some(there) => *there = value,
            None => state[at.trim_start_matches('/')] = value,
        }
        let refused = fault(&plain().session, document(&plain(), state));
        assert!(matches!(refused, Fault::Malformed(_)), "{at}: {refused}");
    }
}

#[test]
fn a_kind_that_was_asked_for_must_be_there() {
    let (session, entry) = (plain().session, document(&plain(), entry()));
    let all = [entry];
    has_each(&session, &[], &[]).unwrap();
    has_each(&session, &[KindName::Conntrack], &all).unwrap();
    let both = [KindName::Conntrack, KindName::SetElement];
    for (kinds, there, missing) in [
        (&both[..1], &[][..], "conntrack"),
        (&both, &all, "set_element"),
    ] {
        let error = has_each(&session, kinds, there).unwrap_err();
        assert!(!error.is_bad_request());
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn too_much_is_refused() {
    let one = document(&plain(), entry());
    assert!(check_size(&vec![one.clone(); 64]).is_ok());
    assert!(check_size(&vec![one.clone(); 65]).is_err());
    let mut long = one;
    long.state["labels"] = json!("0".repeat(super::limits::MAX_BYTES));
    let error = check_size(&[long]).expect_err("too long");
    assert!(error.is_bad_request(), "{error}");
}

#[test]
fn a_scale_of_zero_is_not_an_absent_one() {
    let mut state = entry();
    state["tcp"]["original"]["window_scale"] = json!(0);
    let reply = state["tcp"]["reply"].as_object_mut().expect("an object");
    reply.remove("window_scale");
    let read: ConntrackState = serde_json::from_value(state).expect("an entry");
    assert_eq!(read.tcp.original.window_scale, Some(0));
    assert_eq!(read.tcp.reply.window_scale, None);
    let again = serde_json::to_value(&read).expect("JSON");
    let again: ConntrackState = serde_json::from_value(again).expect("an entry");
    assert_eq!(again, read);
}

/// The variable `DYSCO_WRITE_SCHEMA=1` writes the schema anew.
#[test]
fn the_schema_that_is_documented_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/state.schema.json");
    let text = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
    if std::env::var_os("DYSCO_WRITE_SCHEMA").is_some() {
        std::fs::write(path, &text).expect("the schema can be written");
    }
    let documented = std::fs::read_to_string(path).expect("the schema can be read");
    assert_eq!(documented, text, "run the test with DYSCO_WRITE_SCHEMA=1");
}
