//! Inputs of peers that may send them, but that do not fit together.

use std::time::Duration;

use dysco_proto::{
    ChangeId, Facts, HostEvent, Machine, Message, MessageName, Phase, Plan, Progress, Reason,
    RecordError, Report, Subsession, Violation,
};

use super::world::{Faults, World};

const HOUR: Duration = Duration::from_secs(3600);
const MIDDLE: usize = 1;

fn plan_of(subsession: Subsession) -> Plan {
    Plan {
        subsession,
        translation: Default::default(),
    }
}

/// First identifier that host 0 of the world draws.
const ATTEMPT: [u8; 16] = 1u128.to_be_bytes();

/// Returns a removal at the first moment at which a host is in this phase.
fn until(host: usize, phase: Phase) -> (World, ChangeId) {
    let mut world = World::new(3, Faults::default());
    let change = world.leave(MIDDLE).unwrap().unwrap();
    loop {
        let machine = world.hosts[host].machine.as_ref().unwrap();
        if machine.changes().any(|c| c.phase == phase) {
            return (world, change);
        }
        assert!(world.step(HOUR), "host {host} was never in {phase}");
    }
}

fn say(world: &mut World, from: usize, to: usize, message: Message) {
    let addresses = world.hosts[from].addresses.clone();
    world.input(to, |m, now| m.handle_message(now, &addresses, message));
}

fn ends_refused(world: &World, reason: Reason) {
    assert!(!world.settled(MIDDLE));
    let ends = world.ends(MIDDLE);
    assert!(
        matches!(&ends[..], [(_, Progress::Refused(r))] if *r == reason),
        "{ends:?}"
    );
}

#[test]
fn a_plan_must_fit_the_lock() {
    let inconsistent = Reason::Inconsistent(MessageName::AckLock);
    // Before the left anchor has taken its own lock, and for another subsession than the middle has
    // named.
    for own_lock in [false, true] {
        let (mut world, change) = until(0, Phase::Locking);
        let subsession = world.links[usize::from(!own_lock)];
        while own_lock && !world.sent.contains(&"RequestLock") {
            assert!(world.step(HOUR));
        }
        let plan = plan_of(subsession);
        say(
            &mut world,
            MIDDLE,
            0,
            Message::AckLock {
                change,
                attempt: ATTEMPT,
                plan,
            },
        );
        world.run(HOUR);
        ends_refused(&world, inconsistent.clone());
    }
}

/// The plan was meant for a process that has ended.
#[test]
fn a_plan_for_another_attempt_grants_nothing() {
    let (mut world, change) = until(0, Phase::Locking);
    while !world.sent.contains(&"RequestLock") {
        assert!(world.step(HOUR));
    }
    let plan = plan_of(world.links[1]);
    let attempt = [9; 16];
    let granted = Message::AckLock {
        change,
        attempt,
        plan,
    };
    say(&mut world, MIDDLE, 0, granted);
    let phases: Vec<_> = world.hosts[0]
        .machine
        .iter()
        .flat_map(Machine::changes)
        .map(|c| c.phase)
        .collect();
    assert_eq!(phases, [Phase::Locking]);
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
}

#[test]
fn the_left_anchor_is_who_was_introduced() {
    let change = |subsession, left| {
        move |change| match left {
            Some(left) => Message::Introduce {
                change,
                subsession,
                left,
            },
            None => Message::RequestLock {
                change,
                subsession,
                facts: Facts::default(),
                attempt: [0; 16],
            },
        }
    };
    let links = World::new(3, Faults::default()).links;
    let another = "192.0.2.66".parse().ok();
    let cases = [
        (0, MIDDLE, Phase::Leaving, change(links[1], None)),
        (MIDDLE, 2, Phase::Locked, change(links[1], another)),
    ];
    for (from, to, phase, message) in cases {
        let (mut world, change) = until(to, phase);
        world.hosts[to].reports.clear();
        let message = message(change);
        say(&mut world, from, to, message);
        let expected = Violation::NotItsPart;
        assert!(
            matches!(&world.hosts[to].reports[..],
                [Report::Violation { violation, .. }] if *violation == expected),
            "host {to}: {:?}",
            world.hosts[to].reports
        );
        world.run(HOUR);
        assert!(world.settled(MIDDLE));
    }
}

fn refusal(machine: &mut Machine) -> Option<Reason> {
    let ends = std::iter::from_fn(|| machine.poll_report());
    ends.filter_map(|r| match r {
        Report::Progress {
            progress: Progress::Refused(reason),
            ..
        } => Some(reason),
        _ => None,
    })
    .last()
}

/// Client, middlebox and server are on fewer than three hosts.
#[test]
fn three_hosts_are_needed() {
    let template = World::new(3, Faults::default());
    let [a, b] = template.links[..] else {
        panic!("three hosts have two links")
    };
    let me = a.right.ip();
    let (client, server) = (a.left.ip(), b.right.ip());
    for twice in [client, server] {
        let mut world = World::new(3, Faults::default());
        let mut addresses = world.hosts[MIDDLE].addresses.clone();
        addresses.push(twice);
        world.input(MIDDLE, |m, _| m.set_addresses(addresses));
        world.leave(MIDDLE).unwrap().unwrap();
        world.run(HOUR);
        ends_refused(&world, Reason::EndAtMiddlebox(twice));
    }

    let mut machine = Machine::new(vec![me, b.left.ip()], || [1; 16]);
    let change = machine.request_leave(Duration::ZERO, a).unwrap();
    let command = machine.poll_command();
    assert_eq!(command.map(|c| c.name()), Some("Measure"));
    let mut around = b;
    around.right.set_ip(client);
    let result = Ok(super::plan::facts().0).map(|mut m| {
        (m.subsession_a, m.subsession_b) = (a, around);
        m
    });
    machine.handle_event(Duration::ZERO, HostEvent::Measured { change, result });
    assert_eq!(refusal(&mut machine), Some(Reason::SameHost(client)));

    let mut right = Machine::new(vec![server, client], || [2; 16]);
    let message = Message::Introduce {
        change,
        subsession: b,
        left: client,
    };
    right.handle_message(Duration::ZERO, &[b.left.ip()], message);
    let answer = right.poll_transmit();
    let reason = Reason::SameHost(server);
    let nack = Message::NackLock { change, reason };
    assert_eq!(answer, Some((b.left.ip(), nack)));
}

#[test]
fn bad_records_are_refused() {
    let (mut world, change) = until(0, Phase::Draining);
    let record = world.hosts[0].plane.records[&change].clone();
    let now = world.now;
    let machine = world.hosts[0].machine.as_mut().unwrap();
    let mut restore = |bytes: &[u8]| machine.restore(now, bytes).unwrap_err();
    assert!(matches!(restore(&record), RecordError::Duplicate(c) if c == change));
    assert!(matches!(restore(&[]), RecordError::Version(None)));
    let mut other = record.clone();
    other[0] += 1;
    assert!(matches!(restore(&other), RecordError::Version(Some(_))));
    for end in 1..record.len() {
        let error = restore(&record[..end]);
        assert!(matches!(error, RecordError::Malformed(_)), "{error}");
    }
    world.run(HOUR);
    assert!(world.settled(MIDDLE));
}
