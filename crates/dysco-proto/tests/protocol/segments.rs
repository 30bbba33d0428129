//! Changes of segments of one session's chain: those that hinder each other, and the peers that may
//! make a host an anchor.

use std::time::Duration;

use dysco_common::Element;
use dysco_proto::{ChangeId, Facts, HostEvent, Margins, Message, Order, Reason, Report, Violation};

use crate::chain_updates::{LEFT, RIGHT, element, ip, machine, session};
use crate::world::rejected;

fn chain_of(hosts: &[usize]) -> Vec<Element> {
    hosts.iter().map(|host| element(*host)).collect()
}

/// Returns a change of the chain `before` to the chain `after`.
fn order(before: &[usize], after: &[usize]) -> Order {
    let (before, after) = (chain_of(before), chain_of(after));
    Order {
        session: session(),
        margins: Margins::between(&before, &after),
        before,
        after,
        state: Vec::new(),
        paths: vec![0],
        number: 1,
    }
}

const CHAIN: [usize; 3] = [2, 3, 4];

/// The chain afterwards, the anchors that are hosts of it, and the hosts between them before and
/// after.
type Row = (
    &'static [usize],
    [Option<usize>; 2],
    &'static [usize],
    &'static [usize],
);

#[test]
fn a_segment_lies_between_the_nearest_hosts_that_stay() {
    let table: [Row; 8] = [
        (&[3, 4], [None, Some(3)], &[2], &[]),
        (&[5, 3, 4], [None, Some(3)], &[2], &[5]),
        (&[2, 4], [Some(2), Some(4)], &[3], &[]),
        (&[2, 3], [Some(3), None], &[4], &[]),
        (&[2, 3, 4, 5], [Some(4), None], &[], &[5]),
        (&[2, 5, 3, 4], [Some(2), Some(3)], &[], &[5]),
        (&[4, 3, 2], [None, None], &[2, 3, 4], &[4, 3, 2]),
        (&[], [None, None], &[2, 3, 4], &[]),
    ];
    for (after, [left, right], old, new) in table {
        let order = order(&CHAIN, after);
        assert_eq!(order.left(), left.map(ip), "{after:?}");
        assert_eq!(order.inner_right(), right.map(ip), "{after:?}");
        assert_eq!(order.segment_before(), chain_of(old), "{after:?}");
        assert_eq!(order.segment_after(), chain_of(new), "{after:?}");
        assert_eq!(order.right(), right.map_or(ip(RIGHT), ip));
        let path = new.iter().chain(&right).map(|h| element(*h));
        assert_eq!(order.path(), path.collect::<Vec<_>>());
    }
}

#[test]
fn who_has_no_hop_in_common_both_win() {
    // The change under way, the requested change, and whether it is granted.
    let table: [(&[usize], &[usize], bool); 10] = [
        (&[3, 4], &[2, 3], true),
        (&[3, 4], &[2, 4], false),
        (&[5, 3, 4], &[2, 3, 5], false),
        (&[5, 3, 4], &[2, 3, 6], true),
        (&[2, 3], &[3, 4], true),
        (&[2, 3], &[2, 3, 4, 5], false),
        (&[2, 4], &[5, 2, 3, 4], true),
        (&[5, 2, 3, 4], &[6, 2, 3, 4], false),
        (&[2, 3, 4, 5], &[5, 3, 4], false),
        (&[], &[2, 3], false),
    ];
    for (one, other, both) in table {
        let mut left = machine(LEFT);
        let first = left.request_chain(Duration::ZERO, order(&CHAIN, one));
        let second = left.request_chain(Duration::ZERO, order(&CHAIN, other));
        let expected = match both {
            true => second.clone(),
            false => Err(Reason::LockedByAnother(first.unwrap())),
        };
        assert_eq!(second, expected, "{one:?}, {other:?}");
        assert_eq!(second.is_ok(), both, "{one:?}, {other:?}");
    }
}

/// The state of the chain when one of the changes is done does not matter.
#[test]
fn a_change_that_is_nearly_done_keeps_its_segment() {
    let mut left = machine(LEFT);
    let first = left
        .request_chain(Duration::ZERO, order(&CHAIN, &[3, 4]))
        .unwrap();
    let refused = left.request_chain(Duration::ZERO, order(&[3, 4], &[5, 3, 4]));
    assert_eq!(refused, Err(Reason::LockedByAnother(first)));
    // The host that leaves must not join again before it has forgotten the session.
    let refused = left.request_chain(Duration::ZERO, order(&[3, 4], &[3, 4, 2]));
    assert_eq!(refused, Err(Reason::LockedByAnother(first)));
    let granted = left.request_chain(Duration::ZERO, order(&[3, 4], &[3, 5]));
    assert!(granted.is_ok(), "{granted:?}");
}

/// A host of the chain may be an anchor of both its sides at the same time, and of each side once.
#[test]
fn each_side_of_a_host_is_held_once() {
    let mut middle = machine(3);
    let from = [ip(LEFT)];
    let session = session();
    let says = |change: u8, right: bool| {
        let change = ChangeId([change; 16]);
        match right {
            true => Message::Extend {
                change,
                session,
                token: [7; 2],
            },
            false => Message::Lead { change, session },
        }
    };
    let mut asked = |change, right| {
        middle.handle_message(Duration::ZERO, &from, says(change, right));
        let held = middle.poll_command().map(|c| c.name());
        while middle.poll_command().is_some() {}
        let said = middle.poll_transmit().map(|(_, m)| m.name());
        (held, said)
    };
    assert_eq!(asked(1, true), (Some("Hold"), None));
    assert_eq!(asked(2, false), (Some("Hold"), None));
    assert_eq!(asked(3, true), (None, Some("Extended")));
    assert_eq!(asked(4, false), (None, Some("Extended")));
}

/// The right anchor reports that its end of a path rejects, and waits for the decision.
#[test]
fn the_right_anchor_says_that_a_path_rejects() {
    let mut right = machine(RIGHT);
    let (change, session) = (ChangeId([1; 16]), session());
    let token = [7; 2];
    let extend = Message::Extend {
        change,
        session,
        token,
    };
    right.handle_message(Duration::ZERO, &[ip(LEFT)], extend);
    let mut say = |event: HostEvent| {
        right.handle_event(Duration::ZERO, event);
        while right.poll_command().is_some() {}
        let said = std::iter::from_fn(|| right.poll_transmit()).last();
        said.map(|(_, message)| message)
    };
    let result = Ok(Facts::default());
    say(HostEvent::Locked { change, result });
    let result = Ok(());
    say(HostEvent::Prepared { change, result });
    let result = Err(rejected());
    let said = say(HostEvent::Prepared { change, result });
    let result = Err(rejected());
    assert_eq!(said, Some(Message::Extended { change, result }));
    // The path stays until the left anchor has released it.
    let reported = right.changes().any(|c| c.change == change);
    assert!(reported);
}

#[test]
fn only_who_opened_it_decides() {
    let change = ChangeId([1; 16]);
    let session = session();
    let token = [7; 2];
    for message in [
        Message::Lead { change, session },
        Message::Extend {
            change,
            session,
            token,
        },
    ] {
        let mut middle = machine(3);
        middle.handle_message(Duration::ZERO, &[ip(RIGHT), ip(4)], message);
        assert!(middle.poll_command().is_none() && middle.poll_transmit().is_none());
        assert!(matches!(
            middle.poll_report(),
            Some(Report::Violation {
                violation: Violation::NotItsSubsession,
                ..
            })
        ));
    }
    // Once the host is an anchor, no other peer can instruct it.
    let mut middle = machine(3);
    middle.handle_message(
        Duration::ZERO,
        &[ip(LEFT)],
        Message::Lead { change, session },
    );
    while middle.poll_command().is_some() {}
    while middle.poll_report().is_some() {}
    for message in [
        Message::Cut { change },
        Message::Release { change },
        Message::Done { change },
    ] {
        middle.handle_message(Duration::ZERO, &[ip(RIGHT)], message);
        assert!(middle.poll_command().is_none());
        assert!(matches!(
            middle.poll_report(),
            Some(Report::Violation {
                violation: Violation::NotItsPart,
                ..
            })
        ));
    }
}
