//! Decoding errors: bytes that are not messages are refused, one kind of fault at a time.

use std::net::IpAddr;

use dysco_common::chain::MAX_CHAIN;
use dysco_common::{Delta, Element};
use dysco_proto::{
    ChangeId, DecodeError, EncodeError, Facts, MAX_MESSAGE, Message, Phase, Plan, Reason,
    Subsession, VERSION,
};
use proptest::prelude::*;

use super::plane::at;

const CHANGE: ChangeId = ChangeId([7; 16]);

fn subsession() -> Subsession {
    Subsession {
        left: "[2001:db8::1]:40000".parse().unwrap(),
        right: "192.0.2.1:443".parse().unwrap(),
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn one_of_each() -> Vec<Message> {
    let change = CHANGE;
    let subsession = subsession();
    let reason = Reason::NotTransparent("mode http".into());
    let plan = Plan {
        subsession,
        translation: Default::default(),
    };
    vec![
        Message::Ask { change, subsession },
        Message::Asked {
            change,
            result: Err(Reason::LockedByAnother(change)),
        },
        Message::Leave {
            change,
            subsession,
            beyond: subsession,
        },
        Message::Introduce {
            change,
            subsession,
            left: subsession.left.ip(),
        },
        Message::Introduced {
            change,
            facts: Facts::default(),
        },
        Message::RequestLock {
            change,
            subsession,
            facts: Facts::default(),
            attempt: [0; 16],
        },
        Message::AckLock {
            change,
            attempt: [0; 16],
            plan,
        },
        Message::NackLock {
            change,
            reason: reason.clone(),
        },
        Message::SetUp {
            change,
            subsession,
            new: subsession,
            locked: true,
        },
        Message::SetUpAck {
            change,
            new: subsession,
        },
        Message::SetUpNack {
            change,
            reason: reason.clone(),
        },
        Message::Switched {
            change,
            cutoff: at(9),
        },
        Message::Broken { change, bytes: 7 },
        Message::Lost { change, bytes: 7 },
        Message::Drained { change },
        Message::Done { change },
        Message::DoneAck { change },
        Message::Cancel {
            change,
            reason: reason.clone(),
        },
        Message::CancelAck { change },
        Message::Query { change },
        Message::Status {
            change,
            phase: Phase::Draining,
        },
        Message::Suspect { change, round: 1 },
        Message::Muted { change, round: 1 },
        Message::Keep { change, round: 1 },
        Message::Back {
            change,
            round: 1,
            reason: reason.clone(),
        },
        Message::Enlist {
            change,
            session: subsession,
            next: subsession.right.ip(),
            before: vec![Element::Host(subsession.left.ip())],
            paths: vec![0, 3],
            number: 4,
        },
        Message::AskDelta {
            change,
            session: subsession,
        },
        Message::TellDelta {
            change,
            result: Ok(Delta {
                to_server: 20,
                to_client: 20u32.wrapping_neg(),
            }),
        },
    ]
}

#[test]
fn each_message_comes_back() {
    for message in one_of_each() {
        let bytes = message.encode().unwrap();
        assert_eq!(Message::decode(&bytes).unwrap(), message);
        assert_eq!(message.change(), CHANGE);
    }
}

#[test]
fn truncated_anywhere_is_refused() {
    for message in one_of_each() {
        let bytes = message.encode().unwrap();
        for end in 1..bytes.len() {
            let error = Message::decode(&bytes[..end]).unwrap_err();
            assert!(matches!(error, DecodeError::Malformed(_)), "{error}");
        }
    }
    assert!(matches!(Message::decode(&[]), Err(DecodeError::Empty)));
}

#[test]
fn too_much_is_refused() {
    let mut bytes = Message::Query { change: CHANGE }.encode().unwrap();
    bytes.push(0);
    let error = Message::decode(&bytes);
    assert!(matches!(error, Err(DecodeError::Trailing(1))));
    bytes.resize(MAX_MESSAGE + 1, 0);
    let error = Message::decode(&bytes);
    assert!(matches!(error, Err(DecodeError::Oversized(_))));
    let long = Message::Cancel {
        change: CHANGE,
        reason: Reason::Failed("x".repeat(MAX_MESSAGE).into()),
    };
    assert!(matches!(long.encode(), Err(EncodeError::Oversized(_))));
}

#[test]
fn another_version_is_refused_and_named() {
    let mut bytes = Message::Query { change: CHANGE }.encode().unwrap();
    bytes[0] = VERSION + 1;
    let error = Message::decode(&bytes).unwrap_err();
    assert!(matches!(error, DecodeError::Version(v) if v == VERSION + 1));
    assert!(error.to_string().contains("same release"));
}

/// Text from another host reaches a terminal escaped.
#[test]
fn foreign_text_is_escaped() {
    let shown = Reason::Failed("\u{1b}[2Jgone\n".into()).to_string();
    assert!(!shown.contains(['\u{1b}', '\n']), "{shown:?}");
}

proptest! {
    #[test]
    fn a_chain_comes_back(hosts in prop::collection::vec(any::<IpAddr>(), 0..=MAX_CHAIN)) {
        let message = Message::Open {
            change: CHANGE,
            chain: hosts.into_iter().map(Element::Host).collect(),
            token: [1, 2],
            right: Default::default(),
        };
        let bytes = message.encode().unwrap();
        prop_assert_eq!(Message::decode(&bytes).unwrap(), message);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let _ = Message::decode(&bytes);
        let mut versioned = bytes;
        versioned.insert(0, VERSION);
        if let Ok(message) = Message::decode(&versioned) {
            // A message that was decoded can be encoded. (Not always to the same bytes: numbers may
            // have been padded.)
            prop_assert_eq!(Message::decode(&message.encode().unwrap()).unwrap(), message);
        }
    }
}
