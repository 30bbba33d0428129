//! Authority: only the hosts of a session may change it.

use std::time::Duration;

use dysco_proto::{
    ChangeId, Facts, HostId, Message, Phase, Plan, Reason, Report, Subsession, Violation,
};

use super::plane::at;
use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

fn set_up_ack(change: ChangeId, new: Subsession) -> Message {
    Message::SetUpAck { change, new }
}

/// Returns all messages that a liar could send about this change.
#[expect(clippy::too_many_lines, reason = "a table")]
fn lies(change: ChangeId, links: &[Subsession], liar: HostId) -> Vec<Message> {
    let mut new = links[1];
    new.left.set_ip(liar);
    let reason = Reason::Cancelled;
    let plan = Plan {
        subsession: links[1],
        translation: Default::default(),
    };
    let mut all = vec![
        Message::Asked {
            change,
            result: Ok(()),
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
        set_up_ack(change, new),
        Message::Introduced {
            change,
            facts: Facts::default(),
        },
        Message::SetUpNack {
            change,
            reason: reason.clone(),
        },
        Message::Switched {
            change,
            cutoff: at(1),
        },
        Message::Broken { change, bytes: 1 },
        Message::Lost { change, bytes: 1 },
        Message::Drained { change },
        Message::Done { change },
        Message::DoneAck { change },
        Message::Cancel { change, reason },
        Message::CancelAck { change },
        Message::Query { change },
        Message::Status {
            change,
            phase: Phase::Completing,
        },
    ];
    for &subsession in links {
        all.push(Message::Ask { change, subsession });
        all.push(Message::Leave {
            change,
            subsession,
            beyond: links[1],
        });
        all.push(Message::Introduce {
            change,
            subsession,
            left: liar,
        });
        all.push(Message::SetUp {
            change,
            subsession,
            new,
            locked: true,
        });
        all.push(Message::RequestLock {
            change,
            subsession,
            facts: Facts::default(),
            attempt: [0; 16],
        });
    }
    all
}

/// After each step of a removal a stranger sends every message to every host. The machines do, send
/// and wait for the same as without it.
#[test]
fn a_stranger_changes_nothing() {
    let stranger: HostId = "192.0.2.66".parse().unwrap();
    let mut steps = 0;
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    loop {
        for host in 0..3 {
            let Some(machine) = world.hosts[host].machine.as_mut() else {
                panic!("nobody died")
            };
            let known = machine.changes().any(|c| c.change == change);
            let before: Vec<_> = machine.changes().collect();
            let timer = machine.poll_timeout();
            for lie in lies(change, &world.links, stranger) {
                let violations = machine.stats().violations;
                machine.handle_message(world.now, &[stranger], lie.clone());
                assert_eq!(machine.poll_command(), None, "{lie:?}");
                assert_eq!(machine.poll_timeout(), timer, "{lie:?}");
                if known {
                    assert_eq!(machine.poll_transmit(), None, "{lie:?} was answered");
                    assert_eq!(machine.stats().violations, violations + 1, "{lie:?}");
                }
                // The answer about an unknown change says at most that.
                while machine.poll_transmit().is_some() {}
                while machine.poll_report().is_some() {}
            }
            assert_eq!(machine.changes().collect::<Vec<_>>(), before);
        }
        if !world.step(HOUR) {
            break;
        }
        steps += 1;
    }
    assert!(steps > 20);
    assert!(world.settled(MIDDLE));
    // A stranger does not learn the outcome either.
    for host in &mut world.hosts {
        let machine = host.machine.as_mut().unwrap();
        for lie in lies(change, &world.links, stranger) {
            machine.handle_message(world.now, &[stranger], lie);
            assert_eq!(machine.poll_transmit(), None);
        }
    }
}

/// Once the left anchor has cut, no cancel changes anything.
#[test]
fn after_the_cut_nobody_cancels() {
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    let reason = Reason::Cancelled;
    let cancel = Message::Cancel { change, reason };
    let mut said = [0; 3];
    while world.step(HOUR) {
        for (host, from) in [(0, 1), (2, 0)] {
            let machine = world.hosts[host].machine.as_ref().unwrap();
            if machine.changes().any(|c| c.phase >= Phase::Cutting) {
                let addresses = world.hosts[from].addresses.clone();
                let cancel = cancel.clone();
                world.input(host, |m, now| m.handle_message(now, &addresses, cancel));
                world.input(host, |m, now| m.cancel(now, change));
                said[host] += 1;
            }
        }
    }
    assert!(said[0] > 3 && said[2] > 3);
    assert!(world.settled(MIDDLE));
}

/// The hosts of the session may send only the messages of their part.
#[test]
fn neighbours_speak_only_for_their_part() {
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    let at = |w: &World| {
        let m = w.hosts[2].machine.as_ref().unwrap();
        m.changes().any(|c| c.phase == Phase::Locked)
    };
    while !at(&world) {
        assert!(world.step(HOUR));
    }
    let middle = world.hosts[1].addresses.clone();
    let left = world.hosts[0].addresses.clone();
    let own = world.links[1];
    let mut new = Subsession {
        left: world.links[0].left,
        right: own.right,
    };
    let set_up = |subsession, new| Message::SetUp {
        change,
        subsession,
        new,
        locked: true,
    };
    let good = set_up(own, new);
    new.left.set_ip(middle[0]);
    let astray = set_up(own, new);
    let mut other_port = own;
    other_port.right.set_port(22);
    new.left = world.links[0].left;
    new.right = other_port.right;
    let other_service = set_up(own, new);
    let cases = [
        (&middle, good, Violation::NotItsPart),
        (&left, astray, Violation::ForeignPath),
        (&left, other_service, Violation::ForeignPath),
        (&middle, Message::Done { change }, Violation::NotItsPart),
        (&left, set_up_ack(change, new), Violation::NotItsPart),
    ];
    for (from, message, expected) in cases {
        let shown = format!("{message:?}");
        world.hosts[2].reports.clear();
        world.input(2, |m, now| m.handle_message(now, from, message));
        let last = world.hosts[2].reports.last();
        assert!(
            matches!(last, Some(Report::Violation { violation, .. }) if *violation == expected),
            "{shown}: {last:?}"
        );
    }
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
}

/// A host cannot begin a change of a session that it is not an end of, nor through a host that is
/// not an end of it.
#[test]
fn only_ends_begin() {
    let stranger: HostId = "192.0.2.66".parse().unwrap();
    let change = ChangeId([3; 16]);
    for host in 0..3 {
        for lie in lies(change, &World::new(3, Faults::default()).links, stranger) {
            let mut world = World::new(3, Faults::default());
            world.input(host, |m, now| {
                m.handle_message(now, &[stranger], lie.clone())
            });
            let machine = world.hosts[host].machine.as_mut().unwrap();
            assert_eq!(machine.stats().changes, 0, "{lie:?} began something");
        }
    }
    // The sender is an end, but the session is another host's.
    let mut world = World::new(3, Faults::default());
    let (subsession, from) = (world.links[0], world.hosts[1].addresses.clone());
    let leave = Message::Leave {
        change,
        subsession,
        beyond: world.links[1],
    };
    world.input(2, |m, now| m.handle_message(now, &from, leave));
    let machine = world.hosts[2].machine.as_ref().unwrap();
    assert_eq!(machine.stats().violations, 1);
}

/// A message that is repeated long after begins nothing.
#[test]
fn replays_begin_nothing() {
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
    let links = world.links.clone();
    for later in [Duration::ZERO, HOUR] {
        world.now += later;
        for host in 0..3 {
            for from in 0..3 {
                let addresses = world.hosts[from].addresses.clone();
                for again in lies(change, &links, addresses[1]) {
                    world.input(host, |m, now| m.handle_message(now, &addresses, again));
                }
            }
        }
        world.run(HOUR);
        assert!(world.settled(MIDDLE));
    }
}
