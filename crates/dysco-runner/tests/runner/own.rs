//! Connections and timers of services.

use std::io::Write;
use std::net::{Shutdown, TcpListener};

use dysco_runner::protocol::{Reason, Report};

use crate::lab::{LONG, Lab, Session, bytes, read, read_to_end, send};

fn notice(lab: &Lab) -> String {
    match lab.runner.report() {
        Report::Notify { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_opens_a_connection_of_its_own() {
    let lab = Lab::start();
    let session = Session::open();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("detour=to={}", listener.local_addr().unwrap());
    lab.runner.put(1, &[&to], &session);
    let (host, _) = listener.accept().unwrap();
    host.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(notice(&lab), "opened");
    let [forward, back] = [bytes(1, 4 << 20), bytes(2, 4 << 20)];
    std::thread::scope(|scope| {
        scope.spawn(|| send(&session.opener, &forward));
        scope.spawn(|| send(&host, &back));
        let received = scope.spawn(|| read_to_end(&host));
        assert!(read_to_end(&session.opener) == back);
        assert!(received.join().unwrap() == forward);
    });
    assert_eq!(read_to_end(&session.other), b"");
    session.other.shutdown(Shutdown::Write).unwrap();
    let reason = Reason::Fin;
    let ended = Report::Ended { session: 1, reason };
    assert_eq!(lab.runner.report(), ended);
    lab.finish();
}

#[test]
fn a_service_learns_that_its_connection_failed() {
    let lab = Lab::start();
    let session = Session::open();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("detour=to={}", listener.local_addr().unwrap());
    drop(listener);
    lab.runner.put(1, &[&to], &session);
    assert_eq!(notice(&lab), "failed");
    let delta = [0, 0];
    let left = Report::Left { session: 1, delta };
    assert_eq!(lab.runner.report(), left);
    (&session.opener).write_all(b"on").unwrap();
    assert_eq!(read(&session.other, 2), b"on");
    lab.runner.release(1);
    lab.finish();
}

#[test]
fn timers_run_out_in_order() {
    let lab = Lab::start();
    let session = Session::open();
    (&session.opener).write_all(b"held").unwrap();
    lab.runner.put(1, &["clock"], &session);
    assert_eq!(notice(&lab), "once");
    assert_eq!(notice(&lab), "twice");
    assert_eq!(read(&session.other, 4), b"held");
    lab.runner.release(1);
    lab.finish();
}
