//! A session that this host relays is given paths on one side. The relay's entries remain,
//! relayed packets find the path, and no path is left behind.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::net::{TcpListener, TcpStream};

use dysco_agent::common::session::part;
use dysco_agent::common::{FlowKey, State, Translation};
use dysco_agent::{Agent, Joint};
use plane::plane;

/// Returns a connection: the slot of the end that opened it, and of the end that accepted it.
fn connected(agent: &Agent, listener: &TcpListener) -> ([u32; 2], TcpStream) {
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = [opened.local_addr().unwrap(), opened.peer_addr().unwrap()];
    let find = |key: FlowKey| agent.find(&key).expect("it is tracked");
    let slots = [
        find(FlowKey::new(ends[0], ends[1])),
        find(FlowKey::new(ends[1], ends[0])),
    ];
    (slots, opened)
}

fn path(port: u16) -> FlowKey {
    let end = |port| ([127, 0, 0, 1], port).into();
    FlowKey::new(end(port), end(9))
}

#[tokio::test]
async fn paths_come_and_go_and_the_relay_stays() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ([_, a], _one) = connected(&agent, &listener);
    let ([b, _], _other) = connected(&agent, &listener);
    let translation = Translation {
        seq_out: 0xffff_0000,
        seq_in: 7,
        ..Translation::default()
    };
    agent.join(&Joint {
        a,
        b,
        translation,
        ifindex_a: 1,
        ifindex_b: 1,
    });
    agent.cut_pair(a, b);
    agent.relay(a);
    agent.relay(b);
    assert!(!agent.is_steered([a, b]));

    // A path that is not taken leaves nothing behind.
    let next = agent.add_path(b).unwrap();
    let from = agent.session(a);
    let (relay, s) = (agent.session(b), agent.session(next));
    assert_eq!(relay.snd_max, from.rcv_max.wrapping_add(0xffff_0000));
    assert_eq!(relay.snd_ack, from.rcv_ack.wrapping_sub(7));
    assert_eq!((s.snd_max, s.rcv_max), (relay.snd_max, relay.rcv_max));
    assert_eq!((s.relay, from.relay), (b + 1, b + 1));
    assert!(agent.is_steered([a, b]));
    assert_eq!(agent.drop_next_path(next), Some(next));
    assert!(!agent.is_steered([a, b]));
    agent.collect(next);

    let mut before = b;
    let key = relay.key;
    for port in [61_501, 61_502] {
        let next = agent.add_path(before).unwrap();
        agent.aim_path(next, path(port), 1).unwrap();
        agent.switch_path(next).unwrap();
        assert_eq!(agent.find(&key), Some(next));
        // There and back.
        agent.switch_back(next).unwrap();
        assert_eq!(agent.find(&key), Some(before));
        agent.switch_path(next).unwrap();
        let left = agent.drop_path_before(next);
        assert_eq!(left, (before != b).then_some(before));
        assert_eq!(agent.session(b).state, State::Relay as u32);
        assert_eq!(agent.session(b).two.part, part::BEFORE);
        assert_eq!(agent.path_of_relay(b), Some(next));
        assert_eq!(agent.session(next).relayed_by(), Some(b));
        assert_eq!(agent.session(a).relayed_by(), None);
        left.into_iter().for_each(|slot| agent.collect(slot));
        before = next;
    }
    // If taking another path fails, the path that is taken remains.
    let next = agent.add_path(before).unwrap();
    agent.drop_next_path(next);
    agent.collect(next);
    assert!(agent.is_steered([a, b]));
    for slot in [a, b, before] {
        agent.collect(slot);
    }
    assert!(!agent.in_use(&key) && !agent.in_use(&path(61_502)));
}
