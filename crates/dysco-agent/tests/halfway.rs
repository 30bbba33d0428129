//! A process that dies between two stores of a switch. Its successor finds the path that the
//! session's packets take, and gives up the other.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::net::{Shutdown, TcpListener, TcpStream};

use aya::maps::{HashMap, Map, MapData};
use dysco_agent::common::packet_services::{PacketServices, service};
use dysco_agent::common::session::part;
use dysco_agent::common::{FlowKey, ShortKey, State};
use dysco_agent::{Agent, LAYOUT};
use plane::{plane, start};

fn path(port: u16) -> FlowKey {
    let end = |port| ([127, 0, 0, 1], port).into();
    FlowKey::new(end(port), end(9))
}

/// Returns both ends of a connection, its key, its slot, and that of a second path by `port`.
fn with_two_paths(agent: &Agent, port: u16) -> ([TcpStream; 2], FlowKey, [u32; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let (accepted, _) = listener.accept().unwrap();
    let first = agent.find(&key).expect("it is tracked");
    let next = agent.add_path(first).unwrap();
    agent.aim_path(next, path(port), 1).unwrap();
    ([opened, accepted], key, [first, next])
}

/// The end closes by the new path, on which nothing comes back. The entry of the path that stays
/// has to know, or it would outlive its session.
#[tokio::test]
async fn the_end_on_a_path_that_is_given_up_is_not_forgotten() {
    let (agent, _events) = plane();
    let ([opened, _accepted], _, [first, next]) = with_two_paths(&agent, 61_610);
    agent.switch_path(next).unwrap();
    opened.shutdown(Shutdown::Write).unwrap();
    assert_ne!(agent.session(next).life.fin_out, 0);
    agent.lead_to(first).unwrap();
    agent.repair_parts();
    assert_eq!(agent.session(first).life.fin_out, 0);
    assert_eq!(agent.drop_next_path(next), Some(next));
    assert_ne!(agent.session(first).life.fin_out, 0);
}

#[tokio::test]
async fn a_path_that_is_in_use_is_never_given_up() {
    let (agent, _events) = plane();
    let (_ends, key, [first, next]) = with_two_paths(&agent, 61_600);
    let parts = || [first, next].map(|slot| agent.session(slot).two.part);

    // On the way there: the successor is told to go back, or to continue.
    agent.lead_to(next).unwrap();
    agent.repair_parts();
    assert_eq!(parts(), [part::BEFORE, part::CURRENT]);
    agent.switch_back(next).unwrap();
    assert_eq!(
        (agent.find(&key), parts()),
        (Some(first), [part::CURRENT, part::NEXT])
    );

    // On the way back: the successor gives the new path up.
    agent.switch_path(next).unwrap();
    agent.lead_to(first).unwrap();
    agent.repair_parts();
    assert_eq!(parts(), [part::CURRENT, part::NEXT]);
    // If no record names the change, the path before is given up.
    assert_eq!(agent.drop_path_before(next), Some(next));
    assert_eq!(agent.find(&key), Some(first));
    let states = [first, next].map(|slot| agent.session(slot).state);
    assert_eq!(states[1], State::Tombstone as u32);
    assert_ne!(states[0], State::Tombstone as u32);
}

/// A process removes the key of a record, and is killed before it empties the record.
#[tokio::test]
async fn a_record_that_no_key_leads_to_is_free_again() {
    let (agent, events) = plane();
    let record = |port| PacketServices {
        key: path(port),
        created_ns: 1,
        services: service::COUNT,
        ..PacketServices::default()
    };
    agent.serve(&record(61_620)).unwrap();
    agent.serve(&record(61_621)).unwrap();
    drop((agent, events));
    let keys = MapData::from_pin(format!("/sys/fs/bpf/plane/{LAYOUT}/PACKET_SERVED")).unwrap();
    let mut keys =
        HashMap::<_, [u8; size_of::<ShortKey>()], u32>::try_from(Map::HashMap(keys)).unwrap();
    let lost = keys
        .iter()
        .map(Result::unwrap)
        .find(|(_, index)| *index == 0);
    keys.remove(&lost.unwrap().0).unwrap();
    let (agent, _events) = start("plane", |_| {});
    let left = agent.all_packet_services();
    assert!(left.len() == 1 && left[0].key == path(61_621));
    assert!(agent.unserve(&path(61_621)).is_some());
    assert!(agent.all_packet_services().is_empty());
}
