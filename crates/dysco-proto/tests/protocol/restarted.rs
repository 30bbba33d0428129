//! An anchor of a session that gets another chain dies before it has answered.

use std::time::Duration;

use dysco_proto::command::Journal;
use dysco_proto::{
    Action, ChangeId, Command, HostEvent, Machine, Margins, Message, Order, Phase, Reason,
};

use crate::chain_updates::{LEFT, NEW, OLD, RIGHT, World, element, ip, machine, session};

const NOW: Duration = Duration::ZERO;
const CHANGE: ChangeId = ChangeId([9; 16]);

fn extend() -> Message {
    Message::Extend {
        change: CHANGE,
        session: session(),
        token: [0; 2],
    }
}

fn commands(machine: &mut Machine) -> Vec<Command> {
    std::iter::from_fn(|| machine.poll_command()).collect()
}

fn said(machine: &mut Machine) -> Vec<Message> {
    std::iter::from_fn(|| machine.poll_transmit())
        .map(|(_, message)| message)
        .collect()
}

/// Returns the record that the right anchor writes before it dies.
fn record() -> Vec<u8> {
    let mut right = machine(RIGHT);
    right.handle_message(NOW, &[ip(LEFT)], extend());
    let locked = HostEvent::Locked {
        change: CHANGE,
        result: Ok(World::facts(RIGHT)),
    };
    right.handle_event(NOW, locked);
    let written = commands(&mut right)
        .into_iter()
        .find_map(|c| match c.action {
            Action::Journal(Journal::Persist { record }) => Some(record),
            _ => None,
        });
    written.expect("a record")
}

/// No host waits for the facts of the former process. The left anchor, which may have cut, takes
/// the change back at once.
#[test]
fn a_right_anchor_that_began_anew_says_so_and_leaves_no_path() {
    let mut right = machine(RIGHT);
    right.restore(NOW, &record()).expect("its own record");
    commands(&mut right);
    let query = Message::Query { change: CHANGE };
    assert_eq!(said(&mut right), [query]);

    right.handle_message(NOW, &[ip(LEFT)], extend());
    let result = Err(Reason::Restarted);
    let extended = Message::Extended {
        change: CHANGE,
        result,
    };
    assert_eq!(said(&mut right), [extended]);
    assert_eq!(commands(&mut right), []);
    assert_eq!(right.phase_of(CHANGE), Some(Phase::SettingUp));

    let reason = Reason::Restarted;
    let cancel = Message::Cancel {
        change: CHANGE,
        reason,
    };
    right.handle_message(NOW, &[ip(LEFT)], cancel);
    assert_eq!(said(&mut right), [Message::CancelAck { change: CHANGE }]);
    assert_eq!(right.phase_of(CHANGE), None);
}

/// The same holds if the left anchor is a host of the chain, and asks for the state of the change
/// instead of locking its side.
#[test]
fn who_decides_takes_a_change_back_whose_left_anchor_began_anew() {
    let mut head = machine(LEFT);
    let (before, after) = (vec![element(OLD), element(NEW)], vec![element(OLD)]);
    let order = Order {
        session: session(),
        margins: Margins::between(&before, &after),
        before,
        after,
        state: Vec::new(),
        paths: vec![0],
        number: 1,
    };
    let change = head.request_chain(NOW, order).expect("nothing is locked");
    let lead = Message::Lead {
        change,
        session: session(),
    };
    commands(&mut head);
    assert_eq!(said(&mut head), [lead]);

    head.handle_message(NOW, &[ip(OLD)], Message::Query { change });
    let reason = Reason::Restarted;
    assert_eq!(said(&mut head), [Message::Cancel { change, reason }]);
    head.handle_message(NOW, &[ip(OLD)], Message::Abandoned { change });
    assert_eq!(said(&mut head), [Message::Release { change }]);
    head.handle_message(NOW, &[ip(OLD)], Message::Released { change });
    assert_eq!(head.phase_of(change), None);
}
