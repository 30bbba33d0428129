//! Name that other hosts have for a session that a middlebox has left. The session is found by
//! this name on any path, and no other session gets the name while this one is alive.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::net::{TcpListener, TcpStream};

use dysco_agent::NewPath;
use dysco_agent::common::delta::DeclaredDelta;
use dysco_agent::common::{Delta, FlowKey, State, Translation};
use plane::plane;

fn path(port: u16) -> FlowKey {
    let end = |port| ([127, 0, 0, 1], port).into();
    FlowKey::new(end(port), end(9))
}

#[tokio::test]
async fn its_name_is_the_sessions_until_it_ends() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let first = agent.find(&key).expect("it is tracked");
    let name = path(61_500);
    let translation = Translation {
        seq_out: 7,
        ..Translation::default()
    };
    let new = NewPath {
        key: name,
        ifindex: 1,
        translation,
    };
    agent.prepare(first, &new).unwrap();
    assert_eq!(agent.find_named(&name), None, "it is not left yet");
    agent.complete(first);
    assert_eq!(agent.find_named(&name), Some(first));
    assert_eq!(agent.find(&name), None, "it is no session's own five-tuple");

    let mut before = first;
    for port in [61_501, 61_502] {
        let next = agent.add_path(before).unwrap();
        agent.aim_path(next, path(port), 1).unwrap();
        assert_eq!(agent.find_named(&name), Some(before));
        agent.switch_path(next).unwrap();
        assert_eq!(agent.find_named(&name), Some(next));
        let left = agent.drop_path_before(next).unwrap();
        assert_eq!(left, before);
        let s = agent.session(next);
        assert_eq!((s.alias(), s.translation), (Some(name), translation));
        // Late packets of that path are let in. Afterwards the path belongs to no session.
        assert_eq!(agent.find_named(&name), Some(next));
        agent.collect(left);
        assert_eq!(agent.find_named(&name), Some(next), "after {left}");
        assert!(agent.in_use(&name), "another session may get it");
        before = next;
    }
    // Another path that is given up takes nothing with it.
    let tried = agent.add_path(before).unwrap();
    agent.drop_next_path(tried);
    agent.collect(tried);
    assert_eq!(agent.find_named(&name), Some(before));

    agent.collect(before);
    assert!(!agent.in_use(&name) && !agent.in_use(&key));
    assert_eq!(agent.find_named(&name), None);
}

/// A session without a middlebox has no other name, even after a failed change.
#[tokio::test]
async fn a_session_of_its_own_has_none() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let first = agent.find(&key).expect("it is tracked");
    let failed = NewPath {
        key: path(61_500),
        ifindex: 1,
        translation: Translation {
            seq_out: 7,
            ..Translation::default()
        },
    };
    agent.prepare(first, &failed).unwrap();
    agent.unprepare(first);
    let next = agent.add_path(first).unwrap();
    agent.aim_path(next, path(61_501), 1).unwrap();
    agent.switch_path(next).unwrap();
    agent.drop_path_before(next).unwrap();
    let s = agent.session(next);
    assert_eq!(s.state, State::NewPath as u32);
    assert_eq!((s.alias(), s.translation), (None, Translation::default()));
    assert_eq!(agent.find_named(&path(61_500)), None);
    assert_eq!(agent.find_named(&path(61_501)), None);
}

/// Bytes that a middlebox had added before it left are compensated on each later path, and on no
/// earlier one.
#[tokio::test]
async fn what_was_added_stays_with_the_session() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let mut before = agent.find(&key).expect("it is tracked");
    let delta = |to_server, to_client| Delta {
        to_server,
        to_client,
    };
    let mut expected = Translation::default();
    let added = [delta(0, 0), delta(20, u32::MAX), delta(0, 0), delta(3, 5)];
    for (port, delta) in (61_501..).zip(added) {
        let next = agent.add_path(before).unwrap();
        agent.lead_beyond(next, &delta);
        expected = expected.beyond(&delta);
        agent.aim_path(next, path(port), 1).unwrap();
        // A repeated request does not change the translation in use.
        agent.lead_beyond(
            next,
            &Delta {
                to_server: 99,
                ..delta
            },
        );
        assert_eq!(agent.session(before).alias(), None);
        agent.switch_path(next).unwrap();
        let left = agent.drop_path_before(next).unwrap();
        agent.collect(left);
        assert_eq!(agent.session(next).translation, expected, "port {port}");
        before = next;
    }
}

/// The report is kept with its session, and forgotten with it.
#[tokio::test]
async fn what_was_said_is_of_one_session() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let slot = agent.find(&key).expect("it is tracked");
    assert_eq!(agent.delta_of(slot), None);
    let declared = DeclaredDelta {
        created_ns: agent.session(slot).created_ns,
        delta: Delta {
            to_server: 20,
            to_client: 0,
        },
        from_client: 1,
        from_server: 2,
    };
    agent.set_delta(slot, &declared).unwrap();
    assert_eq!(agent.delta_of(slot), Some(declared));
    let another = DeclaredDelta {
        created_ns: 1,
        ..declared
    };
    agent.set_delta(slot, &another).unwrap();
    assert_eq!(agent.delta_of(slot), None, "it is of a session before");
    agent.set_delta(slot, &declared).unwrap();
    agent.collect(slot);
    assert_eq!(agent.delta_of(slot), None);
}
