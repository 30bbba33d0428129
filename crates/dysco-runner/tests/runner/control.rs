//! The connection to `dyscod`.

use std::io::Write;
use std::os::fd::AsFd;

use dysco_runner::protocol::{Client, Report, Request, listen};
use rustix::net::SendFlags;

use crate::lab::{Lab, Runner, Session, read};

#[test]
fn sessions_go_on_without_dyscod_and_a_later_one_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runner");
    let lab = Lab::listening(Some(listen(&path).unwrap()));
    let session = Session::open();
    lab.runner.put(7, &["mark"], &session);
    let thread = lab.abandon();
    let volley = |n: usize, seen: usize| {
        (&session.opener).write_all(&vec![1; n]).unwrap();
        read(&session.other, seen);
    };
    volley(100, 101);

    let runner = Runner::new(Client::connect(&path).unwrap());
    let state = runner.state(7);
    assert_eq!(state.services, ["mark"]);
    assert_eq!(
        (state.moved.read, state.moved.written),
        ([100, 0], [101, 0])
    );
    assert_eq!(runner.take(7), [1, 0]);
    drop(runner);
    volley(1000, 1000);

    // A third one replaces it, and the runner ends with the last session.
    let runner = Runner::new(Client::connect(&path).unwrap());
    assert_eq!(runner.state(7).delta, [1, 0]);
    let moved = runner.release(7);
    assert_eq!(moved.written[0], moved.read[0] + 1);
    drop(runner);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_runner_without_dyscod_ends_with_its_last_session_and_tells_a_later_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runner");
    let lab = Lab::listening(Some(listen(&path).unwrap()));
    let [kept, ends] = [Session::open(), Session::open()];
    lab.runner.put(1, &["count"], &kept);
    lab.runner.put(2, &["count"], &ends);
    let thread = lab.abandon();
    let close = |session: Session| {
        for end in [&session.opener, &session.other] {
            end.shutdown(std::net::Shutdown::Write).unwrap();
        }
        read(&session.opener, 0);
        assert_eq!(crate::lab::read_to_end(&session.opener), b"");
        assert_eq!(crate::lab::read_to_end(&session.other), b"");
    };
    close(ends);
    let runner = Runner::new(Client::connect(&path).unwrap());
    assert!(matches!(runner.report(), Report::Ended { session: 2, .. }));
    drop(runner);
    close(kept);
    thread.join().unwrap().unwrap();
}

#[test]
fn bad_messages_are_reported_and_the_runner_goes_on() {
    let lab = Lab::start();
    let client = lab.runner.client.as_fd();
    for bad in [&b"no request"[..], &vec![b' '; 70_000]] {
        rustix::net::send(client, bad, SendFlags::empty()).unwrap();
        assert!(matches!(lab.runner.report(), Report::Invalid { .. }));
    }
    assert_eq!(lab.runner.list(), []);
    lab.finish();
}

#[test]
fn a_long_list_comes_in_parts() {
    let lab = Lab::start();
    let sessions: Vec<Session> = (0..70).map(|_| Session::open()).collect();
    for (id, session) in sessions.iter().enumerate() {
        let services = ["count"; 16];
        lab.runner.put(id as u64, &services, session);
    }
    let listed: Vec<u64> = lab.runner.list().iter().map(|s| s.session).collect();
    assert_eq!(listed, (0..70).collect::<Vec<u64>>());
    for id in listed {
        lab.runner.release(id);
    }
    lab.finish();
}

#[test]
fn reports_wait_for_a_dyscod_that_does_not_read() {
    let lab = Lab::start();
    // More than the socket takes; the runner reads no more requests before its reports go.
    let mut asked = 0;
    while asked < 20_000 {
        match lab.runner.client.send(&Request::List, &[]) {
            Ok(()) => asked += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    for _ in 0..asked {
        assert!(matches!(lab.runner.report(), Report::Sessions { .. }));
    }
    lab.finish();
}
