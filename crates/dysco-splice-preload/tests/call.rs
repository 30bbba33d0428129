//! Tests of `dysco_splice` with the example relay. Needs root (for a network namespace) and a C
//! compiler.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

use common::{Daemon, Run, compile, in_network, library};
use dysco_common::shim::report::{FORWARD_ENDLESS, IN_ACCEPTED};
use dysco_common::shim::{Report, ReportKind};

/// Compiles the example, and links it with the library as its own comment says.
fn example(dir: &Path) -> std::path::PathBuf {
    let lib = library();
    let lib = lib.parent().unwrap().to_str().unwrap();
    let (at, run) = (format!("-L{lib}"), format!("-Wl,-rpath,{lib}"));
    compile(
        dir,
        "examples/relay.c",
        &[&at, &run, "-ldysco_splice_preload"],
    )
}

/// Relays once through the example, which greets the server.
fn relay(program: &Path, socket: &Path) -> Run {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let mut run = Run::bare(program, &["7001", &port, "hello"], socket);
    assert_eq!(run.line(), "listening");
    let mut client = TcpStream::connect("127.0.0.1:7001").unwrap();
    let mut server = server.accept().unwrap().0;
    client.write_all(b" world").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = String::new();
    server.read_to_string(&mut got).unwrap();
    assert_eq!(got, "hello world");
    server.write_all(b"good bye").unwrap();
    drop(server);
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    assert_eq!(got, "good bye");
    run
}

#[test]
fn a_program_declares_both_directions() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("shim.sock");
        let program = example(dir.path());
        let daemon = Daemon::start(&socket);
        let run = relay(&program, &socket);
        let pid = run.pid();
        let next = |kind: ReportKind| -> Report {
            let (who, r) = daemon.next();
            assert_eq!((who, r.kind), (pid, kind as u16));
            r
        };
        let r = next(ReportKind::Called);
        let (a, b) = (r.fd_in, r.fd_out);
        let cookies = (r.cookie_in, r.cookie_out);
        assert!(cookies.0 != 0 && cookies.1 != 0 && cookies.0 != cookies.1);
        assert_eq!(
            (r.flags, r.delta_forward),
            (FORWARD_ENDLESS | IN_ACCEPTED, 5)
        );
        let r = next(ReportKind::Called);
        assert_eq!((r.fd_in, r.fd_out), (b, a));
        assert_eq!((r.cookie_out, r.cookie_in), cookies);
        assert_eq!((r.flags, r.delta_forward), (FORWARD_ENDLESS, 0));
        let r = next(ReportKind::Revoked);
        assert_eq!((r.fd_in, r.fd_out), (a, b));
        run.finish();
    });
}

#[test]
fn without_a_daemon_it_relays_as_ever() {
    in_network(|| {
        let dir = tempfile::tempdir().unwrap();
        relay(&example(dir.path()), &dir.path().join("none.sock")).finish();
    });
}
