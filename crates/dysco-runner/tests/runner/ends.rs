//! The ends of sessions.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use dysco_runner::protocol::{End, Reason, Report};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_linger;

use crate::lab::{Lab, Session, bytes, read, read_to_end};

fn ended(lab: &Lab) -> Reason {
    match lab.runner.report() {
        Report::Ended { session: 1, reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// Waits until an end sees that its connection was reset.
fn is_reset(mut end: &TcpStream) {
    let error = loop {
        match end.read(&mut [0; 4096]) {
            Ok(0) => panic!("the connection ended in order"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn abort(end: TcpStream) {
    set_socket_linger(&end, Some(Duration::ZERO)).unwrap();
}

fn half_close(turned: bool) {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["count"], &session);
    let (first, last) = match turned {
        true => (&session.other, &session.opener),
        false => (&session.opener, &session.other),
    };
    let mut one = first;
    let mut two = last;
    one.write_all(b"all").unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(last), b"all");
    let mut expected = [false; 2];
    expected[usize::from(turned)] = true;
    assert_eq!(lab.runner.state(1).ended, expected);

    // The other direction still works.
    let answer = bytes(1, 1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| two.write_all(&answer).unwrap());
        assert!(read(first, answer.len()) == answer);
    });
    two.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(first), b"");
    assert_eq!(ended(&lab), Reason::Fin);
    lab.finish();
}

#[test]
fn the_opener_ends_first() {
    half_close(false);
}

#[test]
fn the_other_end_ends_first() {
    half_close(true);
}

#[test]
fn a_reset_reaches_the_other_end_although_duplicates_are_open() {
    for of in [End::Opener, End::Other] {
        let lab = Lab::start();
        let session = Session::open();
        lab.runner.put(1, &["count"], &session);
        (&session.opener).write_all(b"1").unwrap();
        (&session.other).write_all(b"2").unwrap();
        read(&session.other, 1);
        read(&session.opener, 1);
        let (goes, stays) = match of {
            End::Opener => (session.opener, session.other),
            End::Other => (session.other, session.opener),
        };
        abort(goes);
        is_reset(&stays);
        let reset = ended(&lab);
        assert!(matches!(reset, Reason::Reset { end, .. } if end == of));
        lab.finish();
    }
}

#[test]
fn an_end_that_was_there_before_the_services_is_passed_on() {
    let lab = Lab::start();
    let session = Session::open();
    for mut end in [&session.opener, &session.other] {
        end.write_all(b"all").unwrap();
        end.shutdown(Shutdown::Write).unwrap();
    }
    // Both are in the runner's sockets: the kernel has acknowledged them.
    for socket in &session.middle {
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        poll(&mut fds, None).unwrap();
    }
    lab.runner.put(1, &["count"], &session);
    assert_eq!(read_to_end(&session.other), b"all");
    assert_eq!(read_to_end(&session.opener), b"all");
    assert_eq!(ended(&lab), Reason::Fin);
    lab.finish();
}

#[test]
fn bytes_before_a_reset_are_read() {
    let lab = Lab::start();
    let session = Session::open();
    // The reset is there before the runner looks at the socket.
    (&session.opener).write_all(b"last words").unwrap();
    abort(session.opener);
    lab.runner.put(
        1,
        &["count"],
        &Session {
            opener: session.middle[0].try_clone().unwrap(),
            other: session.other.try_clone().unwrap(),
            middle: session.middle.each_ref().map(|s| s.try_clone().unwrap()),
        },
    );
    let mut seen = Vec::new();
    let error = (&session.other).read_to_end(&mut seen).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let reset = ended(&lab);
    assert!(matches!(
        reset,
        Reason::Reset {
            end: End::Opener,
            ..
        }
    ));
    lab.finish();
}

#[test]
fn a_reset_is_seen_while_the_socket_is_not_read() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["count"], &session);
    // Nobody reads at the other end, until the runner reads no more.
    let mut opener = &session.opener;
    opener.set_nonblocking(true).unwrap();
    let part = [0; 65536];
    let mut before = None;
    loop {
        let blocked = opener.write(&part).is_err();
        let moved = lab.runner.state(1).moved;
        if blocked && before == Some(moved) && moved.waiting[0] > 0 {
            break;
        }
        before = Some(moved);
    }
    abort(session.opener);
    is_reset(&session.other);
    let reset = ended(&lab);
    assert!(matches!(
        reset,
        Reason::Reset {
            end: End::Opener,
            ..
        }
    ));
    lab.finish();
}

#[test]
fn a_service_that_fails_resets_both_ends() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["fail"], &session);
    (&session.opener).write_all(b"1").unwrap();
    is_reset(&session.other);
    is_reset(&session.opener);
    let failed = Reason::Failed {
        service: "fail".into(),
        why: "it does not like bytes".into(),
    };
    assert_eq!(ended(&lab), failed);
    lab.finish();
}
