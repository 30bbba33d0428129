//! Bytes pass through services.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread::scope;

use dysco_runner::protocol::{Client, End, Reason, Report, Request};

use rustix::net::SendFlags;

use crate::lab::{Lab, Session, bytes, pair, read, read_to_end, send};
use crate::services::{double, number};

const LEN: usize = 3 << 20;

#[test]
fn services_do_to_a_session_what_their_functions_do_to_the_whole_stream() {
    let lab = Lab::start();
    let session = Session::open();
    let services = ["count", "double", "number", "null"];
    lab.runner.put(1, &services, &session);
    let [forward, back] = [bytes(1, LEN), bytes(2, LEN)];
    let (opener, other) = (&session.opener, &session.other);
    let [to_other, to_opener] = scope(|scope| {
        scope.spawn(|| send(opener, &forward));
        scope.spawn(|| send(other, &back));
        let readers = [other, opener].map(|end| scope.spawn(|| read_to_end(end)));
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(to_other == number(&double(&forward), &mut 0));
    assert!(to_opener == double(&number(&back, &mut 0)));
    let reason = Reason::Fin;
    let ended = Report::Ended { session: 1, reason };
    assert_eq!(lab.runner.report(), ended);
    lab.finish();
}

#[test]
fn crypt_at_both_ends_is_not_seen_by_the_ends_and_leaves_no_plain_text() {
    pair_is_not_seen(&["crypt"], |wire| {
        // The wire carries a frame with a record.
        let record = read(wire, 4 + 2 + 6 + 16);
        assert!(!record.windows(6).any(|part| part == b"secret"));
    });
}

#[test]
fn compress_and_crypt_at_both_ends_are_not_seen_by_the_ends() {
    pair_is_not_seen(&["compress", "crypt"], |_| {});
}

#[test]
fn a_runner_that_dies_ends_no_session_as_if_it_were_complete() {
    let lab = Lab::start();
    let (opener, first) = pair();
    let (second, third) = pair();
    lab.runner
        .request_half(1, &["crypt"], &[first, second], Some(End::Other));
    assert!(matches!(
        lab.runner.report(),
        Report::Put { result: Ok(()), .. }
    ));
    lab.runner.send(Request::Open { session: 1 });
    drop(third);
    assert!(matches!(
        lab.runner.report(),
        Report::Ended { reason: Reason::Reset { end: End::Other, error }, .. }
            if error.contains("handler of the other host")
    ));
    let mut rest = Vec::new();
    assert!((&opener).read_to_end(&mut rest).is_err(), "no reset");
    lab.finish();
}

/// Services at both ends of a session: `look` sees the first bytes between the two runners.
fn pair_is_not_seen(services: &[&str], look: impl Fn(&TcpStream)) {
    let lab = Lab::start();
    let (opener, first) = pair();
    let (second, third) = pair();
    let (fourth, other) = pair();
    lab.runner
        .request_half(1, services, &[first, second], Some(End::Other));
    assert!(matches!(
        lab.runner.report(),
        Report::Put { result: Ok(()), .. }
    ));
    (&opener).write_all(b"secret").unwrap();
    look(&third);

    // Both ends, from the same byte on: a fresh session.
    drop(opener);
    let (opener, first) = pair();
    let (second, third) = pair();
    for (id, middle, beyond) in [
        (2, [first, second], End::Other),
        (3, [third, fourth], End::Opener),
    ] {
        // On both hosts the last is next to the other host.
        let mut services = services.to_vec();
        if beyond == End::Opener {
            services.reverse();
        }
        lab.runner
            .request_half(id, &services, &middle, Some(beyond));
        assert!(matches!(
            lab.runner.report(),
            Report::Put { result: Ok(()), .. }
        ));
        lab.runner.send(Request::Open { session: id });
    }
    let [forward, back] = [bytes(1, LEN), bytes(2, LEN)];
    let [to_other, to_opener] = scope(|scope| {
        scope.spawn(|| send(&opener, &forward));
        scope.spawn(|| send(&other, &back));
        let readers = [&other, &opener].map(|end| scope.spawn(|| read_to_end(end)));
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(to_other == forward);
    assert!(to_opener == back);
    for _ in 0..2 {
        let report = lab.runner.report();
        assert!(matches!(
            report,
            Report::Ended {
                reason: Reason::Fin,
                ..
            }
        ));
    }
    lab.runner.release(1);
    lab.finish();
}

#[test]
fn urgent_bytes_stay_in_their_place() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["count"], &session);
    let opener = &session.opener;
    for _ in 0..100 {
        rustix::net::send(opener, b"ab!", SendFlags::OOB | SendFlags::MORE).unwrap();
        rustix::net::send(opener, b"cd", SendFlags::empty()).unwrap();
        assert_eq!(read(&session.other, 5), b"ab!cd");
    }
    lab.runner.release(1);
    lab.finish();
}

#[test]
fn a_service_is_asked_and_answers() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["null", "count"], &session);
    (&session.opener).write_all(b"12345").unwrap();
    read(&session.other, 5);
    let call = |session, service: &str, id| {
        lab.runner.send(Request::Call {
            session,
            service: service.into(),
            id,
            bytes: b"read".into(),
        });
    };
    let answer = || match lab.runner.report() {
        Report::Answer { id, result } => (
            id,
            result
                .map(|bytes| String::from_utf8(bytes.0).unwrap())
                .map_err(|cause| cause.to_string()),
        ),
        other => panic!("{other:?}"),
    };
    // `null` does not answer calls.
    call(1, "null", 6);
    call(1, "count", 7);
    assert_eq!(answer(), (7, Ok(r#"{"forward":5,"back":0}"#.into())));
    call(1, "shape", 8);
    let missing = "no service shape is in the session; look with 'dyscoctl service list'";
    assert_eq!(answer(), (8, Err(missing.into())));
    call(2, "count", 9);
    assert_eq!(answer(), (9, Err("the runner has no session 2".into())));
    lab.runner.send(Request::Take { session: 1 });
    let left = "the service has left the session";
    assert_eq!(answer(), (6, Err(left.into())));
    let parted = Report::Parted {
        session: 1,
        service: "null".into(),
    };
    assert_eq!(lab.runner.report(), parted);
    let delta = [0, 0];
    let left = Report::Left { session: 1, delta };
    assert_eq!(lab.runner.report(), left);
    lab.runner.release(1);
    lab.finish();
}

#[test]
fn a_refused_put_touches_nothing() {
    let lab = Lab::start();
    let session = Session::open();
    (&session.opener).write_all(b"early").unwrap();
    let refused = |services: &[&str], sockets: usize| {
        let sockets = &session.middle[..sockets];
        lab.runner.request_put(1, services, sockets);
        match lab.runner.report() {
            Report::Put { result, .. } => result.unwrap_err().to_string(),
            other => panic!("{other:?}"),
        }
    };
    let unknown = refused(&["socks=target=192.0.2.1:1", "gzip"], 2);
    assert!(unknown.starts_with("no service is named gzip; choose one of compress, count, crypt"));
    let few = refused(&["count"], 1);
    assert!(few.starts_with("1 descriptors came, and not 2"), "{few}");
    let (client, _) = Client::pair().unwrap();
    let fds = [client.as_fd(), client.as_fd()];
    let request = Request::Put {
        session: 1,
        opener: ([192, 0, 2, 1], 1).into(),
        other: ([192, 0, 2, 2], 2).into(),
        pair: None,
        services: Vec::new(),
    };
    lab.runner.client.send(&request, &fds).unwrap();
    let report = lab.runner.report();
    assert!(
        matches!(report, Report::Put { result: Err(cause), .. } if cause.why.contains("no TCP"))
    );
    let many = refused(&["null"; 17], 2);
    assert!(many.starts_with("more than 16 services"), "{many}");
    assert_eq!(lab.runner.list(), []);

    // The session goes on, as if nothing had been asked.
    lab.runner.put(1, &["count"], &session);
    assert_eq!(read(&session.other, 5), b"early");
    let again = refused(&["count"], 2);
    assert_eq!(again, "session 1 is there already");
    lab.runner.release(1);
    lab.finish();
}
