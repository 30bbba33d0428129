//! An end that does not read.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use crate::lab::{LONG, Lab, Session, bytes, read, read_to_end};
use crate::services::double;

/// Size of each buffer of the kernel. It takes twice as much.
const KERNEL: usize = 64 * 1024;

/// The runner's limit for what waits for a socket, and a read.
const RUNNER: usize = 256 * 1024 + 64 * 1024;

/// A connection with small buffers.
fn small_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, KERNEL).unwrap();
    let opener = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for end in [&opener, &other] {
        set_socket_send_buffer_size(end, KERNEL).unwrap();
        set_socket_recv_buffer_size(end, KERNEL).unwrap();
        end.set_read_timeout(Some(LONG)).unwrap();
    }
    (opener, other)
}

/// Writes until neither the kernel nor the runner takes more. Returns the number of bytes.
fn fill(lab: &Lab, mut opener: &TcpStream, bytes: &[u8]) -> usize {
    opener.set_nonblocking(true).unwrap();
    let (mut sent, mut before) = (0, None);
    loop {
        let n = opener.write(&bytes[sent..]).unwrap_or(0);
        sent += n;
        assert!(sent < bytes.len(), "everything was taken");
        let moved = lab.runner.state(1).moved;
        if n == 0 && before == Some(moved) && moved.waiting[0] > 0 {
            opener.set_nonblocking(false).unwrap();
            return sent;
        }
        before = Some(moved);
    }
}

fn slow_reader(services: &[&str], factor: usize, whole: fn(&[u8]) -> Vec<u8>) {
    let lab = Lab::start();
    let (opener, first) = small_pair();
    let (second, other) = small_pair();
    let session = Session {
        opener,
        other,
        middle: [first, second],
    };
    lab.runner.put(1, services, &session);
    let data = bytes(1, 16 << 20);
    let sent = fill(&lab, &session.opener, &data);
    let moved = lab.runner.state(1).moved;
    let waiting = moved.waiting[0] as usize;
    assert!(waiting <= factor * RUNNER, "{waiting} bytes wait");
    // Two buffers on each side; the kernel counts with its own overhead.
    let most = factor * RUNNER + 4 * 2 * KERNEL * 2;
    assert!(sent <= most, "{sent} bytes were taken");

    // Another session is not held up.
    let quick = Session::open();
    lab.runner.put(2, &["count"], &quick);
    for _ in 0..100 {
        (&quick.opener).write_all(b"ping").unwrap();
        assert_eq!(read(&quick.other, 4), b"ping");
    }
    // Nor is the other direction.
    (&session.other).write_all(b"back").unwrap();
    let back = whole(b"back");
    assert_eq!(read(&session.opener, back.len()), back);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&session.opener).write_all(&data[sent..]).unwrap();
            session.opener.shutdown(Shutdown::Write).unwrap();
        });
        assert!(read_to_end(&session.other) == whole(&data));
    });
    let moved = lab.runner.release(1);
    let len = data.len() as u64;
    assert_eq!((moved.read[0], moved.waiting), (len, [0, 0]));
    lab.runner.release(2);
    lab.finish();
}

#[test]
fn a_slow_reader_stops_the_writer() {
    slow_reader(&["count"], 1, |bytes| bytes.into());
}

#[test]
fn a_slow_reader_behind_a_service_that_adds_bytes_stops_the_writer() {
    slow_reader(&["double"], 2, double);
}

#[test]
fn a_slow_reader_stops_the_writer_without_services() {
    slow_reader(&[], 1, |bytes| bytes.into());
}

#[test]
fn a_service_without_flow_control_does_not_fill_the_memory() {
    let lab = Lab::start();
    let (opener, first) = small_pair();
    let (second, other) = small_pair();
    let session = Session {
        opener,
        other,
        middle: [first, second],
    };
    lab.runner.put(1, &["flood"], &session);
    fill(&lab, &session.opener, &bytes(1, 16 << 20));
    let waiting = lab.runner.state(1).moved.waiting[0] as usize;
    assert!(waiting <= 3 * RUNNER, "{waiting} bytes wait");
    lab.runner.release(1);
    // From now on a reader gets only the bytes that are left in the kernel.
    drop(session.middle);
    assert!((&session.other).read(&mut [0; 10]).unwrap() > 0);
    lab.finish();
}
