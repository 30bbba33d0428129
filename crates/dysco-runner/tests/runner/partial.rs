//! Services come into a session among others, and leave others behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use dysco_runner::protocol::{End, Reason, Report, Request};

use crate::lab::{Lab, Session, bytes, flood, read};
use crate::services::{MARK, double, number};

fn add(lab: &Lab, next_to: End, services: &[&str]) -> Result<(), String> {
    lab.runner.send(Request::Add {
        session: 1,
        next_to,
        behind: None,
        services: services.iter().map(|text| text.parse().unwrap()).collect(),
    });
    match lab.runner.report() {
        Report::Added { session: 1, result } => result.map_err(|cause| cause.why),
        other => panic!("{other:?}"),
    }
}

fn part(lab: &Lab, service: &str) {
    lab.runner.send(Request::Part {
        session: 1,
        services: vec![service.into()],
    });
    let parted = Report::Parted {
        session: 1,
        service: service.into(),
    };
    assert_eq!(lab.runner.report(), parted);
}

fn pass(mut from: &TcpStream, to: &TcpStream, sent: &[u8], expected: &[u8]) {
    from.write_all(sent).unwrap();
    assert_eq!(read(to, expected.len()), expected);
}

/// Each service begins with the next byte at its place, and the others go on.
#[test]
fn services_have_their_place_among_those_that_are_there() {
    let lab = Lab::start();
    let session = Session::open();
    let (opener, other) = (&session.opener, &session.other);
    lab.runner.put(1, &["double"], &session);
    pass(opener, other, b"ab", b"aabb");
    add(&lab, End::Other, &["number"]).unwrap();
    let (mut to, mut back) = (0, 0);
    pass(opener, other, b"ab", &number(b"aabb", &mut to));
    pass(other, opener, b"yz", &double(&number(b"yz", &mut back)));
    add(&lab, End::Opener, &["count", "double"]).unwrap();
    let names = |services: &[&str]| services.iter().map(ToString::to_string).collect::<Vec<_>>();
    let all = names(&["count", "double", "double", "number"]);
    assert_eq!(lab.runner.state(1).services, all);
    pass(opener, other, b"c", &number(b"cccc", &mut to));
    pass(
        other,
        opener,
        b"x",
        &double(&double(&number(b"x", &mut back))),
    );
    part(&lab, "number");
    pass(opener, other, b"d", b"dddd");
    part(&lab, "count");
    assert_eq!(lab.runner.state(1).services, names(&["double", "double"]));
    pass(other, opener, b"w", b"wwww");
    // To the other end 2, 2, 3 and 3 were added, to the opener 2, 3 and 3.
    assert_eq!(lab.runner.take(1), [10, 8]);
    lab.runner.release(1);
    lab.finish();
}

/// A service takes the place of another: it comes in behind that one, which leaves.
#[test]
fn a_service_comes_in_behind_another() {
    let lab = Lab::start();
    let session = Session::open();
    let (opener, other) = (&session.opener, &session.other);
    lab.runner.put(1, &["null", "double"], &session);
    let behind = |name: &str| {
        lab.runner.send(Request::Add {
            session: 1,
            next_to: End::Other,
            behind: Some(name.into()),
            services: vec!["number".parse().unwrap()],
        });
        match lab.runner.report() {
            Report::Added { session: 1, result } => result,
            other => panic!("{other:?}"),
        }
    };
    assert!(
        behind("count")
            .unwrap_err()
            .why
            .contains("no service count")
    );
    behind("null").unwrap();
    assert_eq!(lab.runner.state(1).services, ["null", "number", "double"]);
    part(&lab, "null");
    let mut from = 0;
    pass(opener, other, b"ab", &double(&number(b"ab", &mut from)));
    lab.runner.take(1);
    lab.runner.release(1);
    lab.finish();
}

/// A service comes and goes again and again while data flows both ways.
#[test]
fn no_byte_is_lost_while_services_come_and_go() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["count"], &session);
    let part_of_stream = bytes(1, 40_000);
    let flooded = flood([&session.opener, &session.other], &part_of_stream, || {
        for next_to in [End::Other, End::Opener].into_iter().cycle().take(20) {
            moves(&lab);
            add(&lab, next_to, &["mark"]).unwrap();
            moves(&lab);
            part(&lab, "mark");
        }
    });
    for (parts, received) in flooded {
        let marks = received.iter().filter(|byte| **byte == MARK).count();
        assert!(marks > 0, "no service has worked");
        let plain = received.iter().filter(|byte| **byte != MARK);
        let sent = std::iter::repeat_n(&part_of_stream, parts).flatten();
        assert!(plain.eq(sent), "bytes are lost, or come in another order");
    }
    let reason = Reason::Fin;
    let ended = Report::Ended { session: 1, reason };
    assert_eq!(lab.runner.report(), ended);
    lab.finish();
}

/// Waits until both directions have moved on.
fn moves(lab: &Lab) {
    let before = lab.runner.state(1).moved.read;
    let moved = || lab.runner.state(1).moved.read;
    while !moved()
        .iter()
        .zip(before)
        .all(|(now, then)| *now > then + 100_000)
    {}
}

/// A service that leaves by itself is reported, and the session keeps the others.
#[test]
fn one_that_leaves_by_itself_leaves_the_others_behind() {
    let lab = Lab::start();
    let session = Session::open();
    let mut proxy = &session.other;
    lab.runner
        .put(1, &["count", "socks=target=192.0.2.9:443"], &session);
    (&session.opener).write_all(b"hello").unwrap();
    read(proxy, 3);
    proxy.write_all(&[5, 0]).unwrap();
    read(proxy, 10);
    proxy.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(read(proxy, 5), b"hello");
    let parted = Report::Parted {
        session: 1,
        service: "socks".into(),
    };
    assert_eq!(lab.runner.report(), parted);
    assert_eq!(lab.runner.state(1).services, ["count"]);
    assert_eq!(lab.runner.take(1), [13, -12]);
    lab.runner.release(1);
    lab.finish();
}

/// All services of a request come in, or none.
#[test]
fn a_request_that_is_refused_changes_nothing() {
    let lab = Lab::start();
    let session = Session::open();
    let refused = |services: &[&str], why: &str| {
        let refusal = add(&lab, End::Other, services).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    };
    refused(&["count"], "no session 1");
    lab.runner.put(1, &["count"], &session);
    refused(&["double", "gzip"], "no service is named gzip");
    refused(
        &["double", "crypt"],
        "crypt needs dyscod on the hosts of both ends",
    );
    refused(&["double"; 16], "more than 16 services");
    pass(&session.opener, &session.other, b"ab", b"ab");
    assert_eq!(lab.runner.state(1).services, ["count"]);
    assert_eq!(lab.runner.take(1), [0, 0]);
    refused(&["double"], "its services are leaving it");
    session.opener.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&session.other).read(&mut [0]).unwrap(), 0);
    lab.runner.release(1);
    lab.finish();
}
