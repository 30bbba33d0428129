//! Tests with real sockets in separate network namespaces. Needs root.

mod inbox;
mod kernel;
mod port;
mod relay;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use dysco_common::shim::{MAGIC, Report, ReportKind, VERSION, report};
use tokio::sync::broadcast::Receiver;

use super::*;
use relay::{Relay, Script};

/// Runs a test in a fresh network namespace with its loopback up.
fn in_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests need root, for network namespaces");
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.expect("iproute2 is missing").success());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The proxy's side, with a test in the role of the shim.
struct Side {
    side: ProxySide,
    events: Receiver<PairEvent>,
    shim: UnixDatagram,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Side {
    fn start(change: impl FnOnce(&mut ProxyConfig)) -> Side {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shim.sock");
        let mut config = ProxyConfig {
            shim_socket: path.clone(),
            ..ProxyConfig::default()
        };
        change(&mut config);
        let side = ProxySide::start(config).unwrap();
        let shim = UnixDatagram::unbound().unwrap();
        shim.connect(&path).unwrap();
        Side {
            events: side.subscribe(),
            side,
            shim,
            path,
            _dir: dir,
        }
    }

    /// Sends a report and waits for the resulting event.
    async fn tell(&mut self, r: &Report) -> PairEvent {
        self.shim.send(&r.to_bytes()).unwrap();
        self.event().await
    }

    async fn event(&mut self) -> PairEvent {
        tokio::time::timeout(Duration::from_secs(20), self.events.recv())
            .await
            .expect("no event came")
            .unwrap()
    }

    /// Sends a datagram that causes no event, and waits until it was counted.
    async fn counted(&self, bytes: &[u8], of: fn(&ShimStats) -> u64) {
        let before = of(&self.side.stats());
        self.shim.send(bytes).unwrap();
        self.until(|s| of(s) != before).await;
    }

    /// Waits until the counters fulfil the condition.
    async fn until(&self, so: impl Fn(&ShimStats) -> bool) {
        tokio::time::timeout(Duration::from_secs(20), async {
            while !so(&self.side.stats()) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it was not counted");
    }

    async fn pair(&mut self, relay: &Relay, delta_forward: i64) -> Pair {
        match self.tell(&endless(relay, delta_forward)).await {
            PairEvent::New(p) | PairEvent::Changed(p) => p,
            PairEvent::Gone(p) => panic!("gone: {p:?}"),
        }
    }
}

fn said(kind: ReportKind, fd_in: RawFd, fd_out: RawFd) -> Report {
    Report {
        magic: MAGIC,
        version: VERSION,
        kind: kind as u16,
        flags: report::IN_ACCEPTED,
        fd_in,
        fd_out,
        pipe_forward: -1,
        pipe_reverse: -1,
        reserved: 0,
        delta_forward: 0,
        delta_reverse: 0,
        cookie_in: cookie_of(fd_in),
        cookie_out: cookie_of(fd_out),
    }
}

/// Returns the cookie of a descriptor of this process, as the shim reads it.
fn cookie_of(fd: RawFd) -> u64 {
    use std::os::fd::FromRawFd;
    // SAFETY: no pointers; this function alone owns a descriptor that is returned.
    let own = unsafe {
        match libc::dup(fd) {
            -1 => return 0,
            own => OwnedFd::from_raw_fd(own),
        }
    };
    sys::cookie(&own).unwrap_or_default()
}

fn endless(relay: &Relay, delta_forward: i64) -> Report {
    let mut r = said(ReportKind::Paired, relay.a, relay.b);
    r.flags |= report::FORWARD_ENDLESS | report::REVERSE_ENDLESS;
    (r.pipe_forward, r.pipe_reverse) = (relay.pipes[0], relay.pipes[1]);
    r.delta_forward = delta_forward;
    r
}

#[test]
fn one_direction_needs_someone_to_vouch_for_the_listener() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 10,
            ..Script::default()
        });
        let mut r = endless(&relay, 0);
        let mut side = Side::start(|_| {});
        r.flags = report::IN_ACCEPTED;
        let (PairEvent::New(pair) | PairEvent::Changed(pair) | PairEvent::Gone(pair)) =
            side.tell(&r).await;
        assert_eq!(
            side.side.transparent(&pair, false),
            Err(NotTransparent::NotSpliced)
        );
        r.flags |= report::REVERSE_ENDLESS;
        side.tell(&r).await;
        let listener = pair.a.key.local();
        let missing = NotTransparent::OneDirection {
            direction: "forward",
            listener,
        };
        assert_eq!(side.side.transparent(&pair, false), Err(missing));
        r.flags |= report::FORWARD_ENDLESS;
        side.tell(&r).await;
        assert_eq!(side.side.transparent(&pair, false), Ok(()));

        let mut vouching = Side::start(|c| c.transparent_listeners = vec![listener]);
        r.flags = report::IN_ACCEPTED | report::REVERSE_ENDLESS;
        vouching.tell(&r).await;
        assert_eq!(vouching.side.transparent(&pair, false), Ok(()));
        relay.finish();
    });
}

#[test]
fn a_program_declares_each_direction_by_itself() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 10,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        // The report names the server's side first. The client's side becomes A nevertheless.
        let mut r = said(ReportKind::Called, relay.b, relay.a);
        r.flags = report::FORWARD_ENDLESS;
        r.delta_forward = 5;
        let PairEvent::New(pair) = side.tell(&r).await else {
            panic!()
        };
        assert_eq!((pair.id.fd_a, pair.id.fd_b), (relay.a, relay.b));
        assert!(pair.reverse.declared && !pair.forward.endless);
        let mut r = said(ReportKind::Called, relay.a, relay.b);
        r.flags |= report::FORWARD_ENDLESS;
        let PairEvent::Changed(pair) = side.tell(&r).await else {
            panic!()
        };
        assert!(pair.reverse.declared && pair.forward.declared);
        assert_eq!((pair.forward.delta, pair.reverse.delta), (0, 5));
        assert_eq!(side.side.transparent(&pair, false), Ok(()));
        let gone = said(ReportKind::Revoked, relay.b, relay.a);
        assert!(matches!(side.tell(&gone).await, PairEvent::Gone(_)));
        assert_eq!(side.side.pairs(), []);
        relay.finish();
    });
}

#[test]
fn what_is_no_report_is_counted_and_nothing_else() {
    in_network(async || {
        let side = Side::start(|_| {});
        let hello = said(ReportKind::Hello, -1, -1);
        side.counted(&hello.to_bytes(), |s| s.hellos).await;
        side.counted(&hello.to_bytes(), |s| s.reports).await;
        assert_eq!(side.side.stats().hellos, 1, "one process");
        let mut long = hello.to_bytes().to_vec();
        long.push(0);
        side.counted(b"", |s| s.malformed).await;
        side.counted(&hello.to_bytes()[1..], |s| s.malformed).await;
        side.counted(&long, |s| s.malformed).await;
        let mut unknown = hello;
        unknown.kind = 9;
        side.counted(&unknown.to_bytes(), |s| s.malformed).await;
        let not_ours = said(ReportKind::Paired, side.shim.as_raw_fd(), 1 << 20);
        side.counted(&not_ours.to_bytes(), |s| s.refused).await;
        assert_eq!(side.side.pairs(), []);
    });
}

#[test]
fn a_report_read_late_is_not_believed_of_other_sockets() {
    in_network(async || {
        let script = Script {
            bytes: 1 << 10,
            ..Script::default()
        };
        let relays = [(); 2].map(|()| Relay::start(script));
        let mut side = Side::start(|_| {});
        // The report is that of an earlier session, whose descriptors belong to these sockets
        // now.
        let late = |kind| {
            let mut r = endless(&relays[0], 0);
            r.kind = kind as u16;
            (r.cookie_in, r.cookie_out) = (cookie_of(relays[1].a), cookie_of(relays[1].b));
            r
        };
        for kind in [ReportKind::Paired, ReportKind::Called] {
            side.counted(&late(kind).to_bytes(), |s| s.refused).await;
        }
        let mut nameless = endless(&relays[0], 0);
        nameless.cookie_out = 0;
        side.counted(&nameless.to_bytes(), |s| s.refused).await;
        assert_eq!(side.side.pairs(), []);
        let pair = side.pair(&relays[0], 0).await;
        side.counted(&late(ReportKind::Revoked).to_bytes(), |s| s.reports)
            .await;
        assert_eq!(side.side.pairs(), [pair]);
        let _ = relays.map(Relay::finish);
    });
}

#[test]
fn a_report_of_an_older_release_is_counted_and_not_read() {
    in_network(async || {
        let relay = Relay::start(Script::default());
        let side = Side::start(|_| {});
        let mut old = endless(&relay, 0).to_bytes();
        old[4..6].copy_from_slice(&1u16.to_ne_bytes());
        side.counted(&old, |s| s.malformed).await;
        // The older report is shorter, because it has no cookies.
        side.counted(&old[..48], |s| s.malformed).await;
        assert_eq!(side.side.pairs(), []);
        relay.finish();
    });
}

#[test]
fn pairs_are_bounded() {
    in_network(async || {
        let relays = [(); 2].map(|()| {
            Relay::start(Script {
                bytes: 1 << 10,
                ..Script::default()
            })
        });
        let mut side = Side::start(|c| c.max_pairs = 1);
        side.pair(&relays[0], 0).await;
        side.counted(&endless(&relays[1], 0).to_bytes(), |s| s.no_room)
            .await;
        assert_eq!(side.side.pairs().len(), 1);
        let _ = relays.map(Relay::finish);
    });
}

#[test]
fn one_user_cannot_have_all_the_room() {
    in_network(async || {
        let script = Script {
            bytes: 1 << 10,
            ..Script::default()
        };
        let relays: Vec<Relay> = (0..6).map(|_| Relay::start(script)).collect();
        let mut side = Side::start(|c| c.max_pairs = 4);
        let own = std::process::id() as i32;
        let mut of_whom = relays.iter().zip([7, 7, 7, 8, 8, 9]);
        let mut tell = |side: &Side| {
            let (relay, uid) = of_whom.next().unwrap();
            send_as(&side.path, own, uid, &endless(relay, 0));
        };
        // The users get half of all, half of the rest, and the rest.
        for refused in [false, false, true, false, true, false] {
            let before = side.side.stats().over_share;
            tell(&side);
            if refused {
                side.until(|s| s.over_share > before).await;
            } else {
                assert!(matches!(side.event().await, PairEvent::New(_)));
            }
        }
        assert_eq!(side.side.pairs().len(), 4);
        // A report about a known pair takes no room.
        send_as(&side.path, own, 7, &endless(&relays[0], 1));
        assert!(matches!(side.event().await, PairEvent::Changed(_)));
        // The room of a revoked pair is free again.
        let mut gone = said(ReportKind::Revoked, relays[1].a, relays[1].b);
        gone.flags = 0;
        send_as(&side.path, own, 7, &gone);
        assert!(matches!(side.event().await, PairEvent::Gone(_)));
        send_as(&side.path, own, 8, &endless(&relays[4], 0));
        side.until(|s| s.over_share == 3).await;
        send_as(&side.path, own, 10, &endless(&relays[4], 0));
        assert!(matches!(side.event().await, PairEvent::New(_)));
        for relay in relays {
            relay.finish();
        }
    });
}

/// A shim's report about closed sockets may be lost.
#[test]
fn pairs_go_with_their_sockets() {
    in_network(async || {
        let mut side = Side::start(|_| {});
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = || {
            let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (ours, listener.accept().unwrap().0)
        };
        for closed in [0, 1] {
            let (client, a) = connection();
            let (b, server) = connection();
            let r = said(ReportKind::Paired, a.as_raw_fd(), b.as_raw_fd());
            let PairEvent::New(pair) = side.tell(&r).await else {
                panic!("not new")
            };
            let mut ends = [Some(a), Some(b)];
            drop(ends[closed].take());
            assert_eq!(side.event().await, PairEvent::Gone(pair));
            assert_eq!(side.side.pairs(), []);
            drop((client, server));
        }
    });
}

#[test]
fn pairs_go_with_their_process() {
    in_network(async || {
        let mut side = Side::start(|_| {});
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let cookies = (cookie_of(theirs.as_raw_fd()), cookie_of(ours.as_raw_fd()));
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(ours))
            .spawn()
            .unwrap();
        let mut r = said(ReportKind::Paired, 0, 1);
        (r.cookie_in, r.cookie_out) = cookies;
        send_as(&side.path, child.id() as i32, 0, &r);
        let PairEvent::New(pair) = side.event().await else {
            panic!()
        };
        assert_eq!(
            pair.id,
            PairId {
                pid: child.id() as i32,
                fd_a: 0,
                fd_b: 1
            }
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(side.event().await, PairEvent::Gone(pair));
        assert_eq!(
            side.side.close_silently(&pair).await.unwrap(),
            Closed::Already
        );
    });
}

/// Sends a report with another process's pid or another user's id, which root may do.
fn send_as(path: &std::path::Path, pid: i32, uid: u32, r: &Report) {
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
    let shim = UnixDatagram::unbound().unwrap();
    let ucred = libc::ucred { pid, uid, gid: 0 };
    let bytes = r.to_bytes();
    sendmsg(
        shim.as_raw_fd(),
        &[std::io::IoSlice::new(&bytes)],
        &[ControlMessage::ScmCredentials(&ucred.into())],
        MsgFlags::empty(),
        Some(&UnixAddr::new(path).unwrap()),
    )
    .unwrap();
}

#[test]
fn what_is_sent_along_with_a_report_stops_nobody() {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
    use std::io::Write;
    in_network(async || {
        let side = Side::start(|_| {});
        let hello = said(ReportKind::Hello, -1, -1).to_bytes();
        // The last close of this socket would wait for the reader for an hour.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 1 << 16]).is_ok() {}
        slow.set_nonblocking(false).unwrap();
        let hour = libc::linger {
            l_onoff: 1,
            l_linger: 3600,
        };
        setsockopt(&slow, sockopt::Linger, &hour).unwrap();
        let sent = sendmsg::<()>(
            side.shim.as_raw_fd(),
            &[std::io::IoSlice::new(&hello)],
            &[ControlMessage::ScmRights(&[slow.as_raw_fd()])],
            MsgFlags::empty(),
            None,
        );
        let hour_less = libc::linger {
            l_onoff: 0,
            l_linger: 0,
        };
        match sent {
            // The kernel refuses descriptors on this socket, so the close in this test must not
            // wait either.
            Err(nix::Error::EPERM) => setsockopt(&slow, sockopt::Linger, &hour_less).unwrap(),
            sent => assert_eq!(sent, Ok(hello.len())),
        }
        drop(slow);
        side.counted(&hello, |s| s.reports).await;
        drop(reader);
    });
}

#[test]
fn the_socket_is_replaced_when_dead_and_kept_when_alive() {
    in_network(async || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/shim.sock");
        let config = ProxyConfig {
            shim_socket: path.clone(),
            ..ProxyConfig::default()
        };
        let first = ProxySide::start(config.clone()).unwrap();
        let Err(StartError::Socket { .. }) = ProxySide::start(config.clone()) else {
            panic!("two daemons share a socket");
        };
        drop(first);
        assert!(!path.exists());
        drop(UnixDatagram::bind(&path).unwrap());
        assert!(path.exists());
        drop(ProxySide::start(config).unwrap());
    });
}
