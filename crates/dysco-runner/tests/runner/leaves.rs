//! Services leave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::thread::scope;

use dysco_runner::protocol::{Reason, Report, Request};

use crate::lab::{Lab, Session, bytes, read, read_to_end, send};
use crate::services::MARK;

/// Reads everything, and tells once when a part is there.
fn read_and_tell(mut from: &TcpStream, part: usize, tell: impl FnOnce()) -> Vec<u8> {
    let mut seen = vec![0; part];
    from.read_exact(&mut seen).unwrap();
    tell();
    seen.extend(read_to_end(from));
    seen
}

#[test]
fn services_are_taken_out_while_data_flows_and_no_byte_is_lost() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["mark", "count", "mark"], &session);
    let len = 24 << 20;
    let [forward, back] = [bytes(1, len), bytes(2, len)];
    let (opener, other) = (&session.opener, &session.other);
    let (tell, told) = channel();
    let (delta, received) = scope(|scope| {
        scope.spawn(|| send(opener, &forward));
        scope.spawn(|| send(other, &back));
        let readers = [other, opener].map(|end| {
            let tell = tell.clone();
            scope.spawn(move || read_and_tell(end, 1 << 20, || tell.send(()).unwrap()))
        });
        told.recv().unwrap();
        told.recv().unwrap();
        let delta = lab.runner.take(1);
        (delta, readers.map(|reader| reader.join().unwrap()))
    });
    let reason = Reason::Fin;
    let ended = Report::Ended { session: 1, reason };
    assert_eq!(lab.runner.report(), ended);
    for (direction, sent) in [forward, back].iter().enumerate() {
        let received = &received[direction];
        let marks = received.iter().filter(|byte| **byte == MARK).count();
        assert_eq!(marks as i64, delta[direction]);
        assert!(marks > 0, "the services left before they worked");
        assert!(marks < 2 * len / 100, "the services left after the session");
        let plain = received.iter().filter(|byte| **byte != MARK);
        assert!(plain.eq(sent), "bytes of direction {direction} differ");
    }
    lab.finish();
}

#[test]
fn the_delta_holds_at_every_still_moment_until_the_release() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["mark"], &session);
    let volley = |n: usize, marks: usize| {
        let sent = bytes(3, n);
        (&session.opener).write_all(&sent).unwrap();
        let seen = read(&session.other, n + marks);
        let plain = seen.iter().filter(|byte| **byte != MARK);
        assert!(plain.eq(&sent));
    };
    volley(1000, 10);
    assert_eq!(lab.runner.take(1), [10, 0]);
    for n in [1, 100_000, 17] {
        volley(n, 0);
        let state = lab.runner.state(1);
        assert_eq!(state.services, Vec::<String>::new());
        assert_eq!((state.delta, state.taken), ([10, 0], true));
        let moved = state.moved;
        assert_eq!(moved.waiting, [0; 2]);
        assert_eq!(moved.written[0], moved.read[0] + 10);
    }
    // A second request is answered like the first.
    assert_eq!(lab.runner.take(1), [10, 0]);
    let moved = lab.runner.release(1);
    assert_eq!(moved.written, [moved.read[0] + 10, 0]);

    // The duplicates work, and neither end has noticed.
    let [first, second] = &session.middle;
    (&session.opener).write_all(b"on").unwrap();
    assert_eq!(read(first, 2), b"on");
    let mut second = second;
    second.write_all(b"by").unwrap();
    assert_eq!(read(&session.other, 2), b"by");
    let missing = Report::Invalid {
        cause: "the runner has no session 1".into(),
    };
    lab.runner.send(Request::Take { session: 1 });
    assert_eq!(lab.runner.report(), missing);
    lab.finish();
}

#[test]
fn socks_leaves_by_itself_after_the_handshake() {
    let lab = Lab::start();
    let session = Session::open();
    lab.runner.put(1, &["socks=target=192.0.2.9:443"], &session);
    (&session.opener).write_all(b"hello").unwrap();
    let mut proxy = &session.other;
    assert_eq!(read(proxy, 3), [5, 1, 0]);
    proxy.write_all(&[5, 0]).unwrap();
    let request = [5, 1, 0, 1, 192, 0, 2, 9, 1, 187];
    assert_eq!(read(proxy, 10), request);
    proxy
        .write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0, b'w'])
        .unwrap();
    assert_eq!(read(proxy, 5), b"hello");
    assert_eq!(read(&session.opener, 1), b"w");
    let delta = [13, -12];
    let left = Report::Left { session: 1, delta };
    assert_eq!(lab.runner.report(), left);
    session.opener.shutdown(Shutdown::Both).unwrap();
    lab.runner.release(1);
    lab.finish();
}
