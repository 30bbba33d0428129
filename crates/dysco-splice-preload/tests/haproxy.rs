//! Tests with a real HAProxy under the shim: master and worker, two threads, chrooted and as
//! another user. Needs root and haproxy.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{Daemon, PATIENCE, Run, in_network};
use dysco_common::shim::report::{FORWARD_ENDLESS, IN_ACCEPTED, REVERSE_ENDLESS};
use dysco_common::shim::{Report, ReportKind};

/// Length of a PROXY protocol v2 header of TCP over IPv4.
const HEADER: usize = 28;
const BYTES: usize = 32 << 20;

fn haproxy(dir: &Path, mode: &str, words: &[&str], server: u16) -> Run {
    let program = PathBuf::from("/usr/sbin/haproxy");
    assert!(
        program.exists(),
        "haproxy is missing: install the package haproxy"
    );
    let empty = dir.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let header = if mode == "tcp" { "send-proxy-v2" } else { "" };
    let config = format!(
        "global\n master-worker\n nbthread 2\n user nobody\n chroot {}\n\
         defaults\n mode {mode}\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
          option splice-request\n option splice-response\n\
         listen l\n bind 127.0.0.1:7002\n server s 127.0.0.1:{server} {header}\n",
        empty.display()
    );
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, config).unwrap();
    // The worker runs as another user.
    std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let socket = dir.join("shim.sock");
    let words = [&["-q", "-f", file.to_str().unwrap()], words].concat();
    Run::start(&program, &words, &socket)
}

fn client() -> TcpStream {
    let begun = Instant::now();
    // The loop ends when HAProxy listens.
    loop {
        match TcpStream::connect("127.0.0.1:7002") {
            Ok(s) => return s,
            Err(e) => assert!(begun.elapsed() < PATIENCE, "HAProxy does not listen: {e}"),
        }
        std::thread::yield_now();
    }
}

fn byte(i: usize) -> u8 {
    (i.wrapping_mul(167) ^ (i >> 9)) as u8
}

/// Sends BYTES bytes while it receives as many after `skip`, and checks each.
fn exchange(s: TcpStream, skip: usize) {
    let mut tx = s.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let all: Vec<u8> = (0..BYTES).map(byte).collect();
        tx.write_all(&all).unwrap();
    });
    let mut all = vec![0; skip + BYTES];
    (&s).read_exact(&mut all).unwrap();
    let wrong = all[skip..]
        .iter()
        .enumerate()
        .find(|(i, b)| **b != byte(*i));
    assert_eq!(wrong, None);
    sender.join().unwrap();
}

fn is_both_ways(r: &Report) -> bool {
    r.kind == ReportKind::Paired as u16
        && r.flags == IN_ACCEPTED | FORWARD_ENDLESS | REVERSE_ENDLESS
}

#[test]
fn both_directions_are_claimed_with_the_header_as_delta() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("shim.sock");
        let daemon = Daemon::start(&socket);
        std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let run = haproxy(
            dir.path(),
            "tcp",
            &[],
            listener.local_addr().unwrap().port(),
        );
        let (c, s) = (client(), listener.accept().unwrap().0);
        let keep = (c.try_clone().unwrap(), s.try_clone().unwrap());
        let server = std::thread::spawn(move || exchange(s, HEADER));
        exchange(c, 0);
        server.join().unwrap();
        let (worker, r) = std::iter::repeat_with(|| daemon.next())
            .find(|(_, r)| is_both_ways(r))
            .unwrap();
        assert_ne!(worker, run.pid(), "the worker speaks, not the master");
        assert_eq!((r.delta_forward, r.delta_reverse), (HEADER as i64, 0));
        keep.0.shutdown(Shutdown::Both).unwrap();
        drop(keep);
        std::iter::repeat_with(|| daemon.next().1)
            .find(|x| x.kind == ReportKind::Revoked as u16)
            .unwrap();
        run.terminate();
    });
}

/// The worker no longer has a path to the daemon's socket.
#[test]
fn a_chrooted_worker_finds_a_daemon_that_starts_later() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let run = haproxy(
            dir.path(),
            "tcp",
            &[],
            listener.local_addr().unwrap().port(),
        );
        let (mut c, mut s) = (client(), listener.accept().unwrap().0);
        s.read_exact(&mut [0; HEADER]).unwrap();
        let daemon = Daemon::start_abstract(&dir.path().join("shim.sock"));
        pass_until_claimed(&mut c, &mut s, &daemon);
        run.terminate();
    });
}

/// Passes bytes both ways until both directions are claimed. The shim looks for a daemon once a
/// second, and only when the program calls it.
fn pass_until_claimed(c: &mut TcpStream, s: &mut TcpStream, daemon: &Daemon) {
    let begun = Instant::now();
    while !daemon.rest().iter().any(|(_, r)| is_both_ways(r)) {
        pass(c, s);
        pass(s, c);
        assert!(begun.elapsed() < PATIENCE, "no report came");
    }
}

/// Passes some bytes from one end to the other.
fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(&[7; 1 << 16]).unwrap();
    to.read_exact(&mut [0; 1 << 16]).unwrap();
}

/// `-m` limits the address space, of which HAProxy alone needs 96 MiB here.
#[test]
fn little_address_space_suffices() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(&dir.path().join("shim.sock"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let run = haproxy(dir.path(), "tcp", &["-m", "112"], port);
        let (mut c, mut s) = (client(), listener.accept().unwrap().0);
        s.read_exact(&mut [0; HEADER]).unwrap();
        pass_until_claimed(&mut c, &mut s, &daemon);
        run.terminate();
    });
}

#[test]
fn keep_alive_http_is_never_claimed() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(&dir.path().join("shim.sock"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let run = haproxy(
            dir.path(),
            "http",
            &[],
            listener.local_addr().unwrap().port(),
        );
        let mut c = client();
        let body = vec![b'x'; 1 << 20];
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut s: Option<TcpStream> = None;
        for _ in 0..5 {
            c.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let s = s.get_or_insert_with(|| listener.accept().unwrap().0);
            head(s);
            s.write_all(answer.as_bytes()).unwrap();
            s.write_all(&body).unwrap();
            head(&mut c);
            c.read_exact(&mut vec![0; body.len()]).unwrap();
        }
        let claims = daemon.rest();
        assert!(
            claims
                .iter()
                .all(|(_, r)| r.flags & (FORWARD_ENDLESS | REVERSE_ENDLESS) == 0),
            "{claims:?}"
        );
        run.terminate();
    });
}

/// Reads up to the empty line.
fn head(s: &mut TcpStream) {
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n") {
        let mut one = [0];
        s.read_exact(&mut one).unwrap();
        got.push(one[0]);
    }
}
