//! Real sockets in network namespaces of their own. Needs root.

mod relay;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
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

/// The proxy's side with a test that plays the shim.
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

    /// Sends a report and waits for what comes of it.
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

    /// Sends something that makes no event, and waits until it was counted.
    async fn counted(&self, bytes: &[u8], of: fn(&ShimStats) -> u64) {
        let before = of(&self.side.stats());
        self.shim.send(bytes).unwrap();
        tokio::time::timeout(Duration::from_secs(20), async {
            while of(&self.side.stats()) == before {
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
    }
}

fn endless(relay: &Relay, delta_forward: i64) -> Report {
    let mut r = said(ReportKind::Paired, relay.a, relay.b);
    r.flags |= report::FORWARD_ENDLESS | report::REVERSE_ENDLESS;
    (r.pipe_forward, r.pipe_reverse) = (relay.pipes[0], relay.pipes[1]);
    r.delta_forward = delta_forward;
    r
}

/// Frames on the loopback, from now on.
struct Capture(OwnedFd);

impl Capture {
    fn start() -> Capture {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers; the descriptor is ours alone.
        let fd = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(all));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Capture(fd)
    }

    /// TCP segments that were sent meanwhile. Sends a datagram of its own
    /// after them, to be sure that the capture works and has seen all.
    fn segments(&self) -> usize {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.send_to(b"last", udp.local_addr().unwrap()).unwrap();
        let (mut tcp, mut last) = (0, false);
        let mut frame = [0u8; 256];
        while let Ok(n) = nix::unistd::read(&self.0, &mut frame) {
            assert!(n > 24);
            // IPv4's protocol byte, after 14 bytes of Ethernet.
            tcp += usize::from(frame[23] == 6);
            last |= frame[23] == 17;
        }
        assert!(last, "the capture saw not even its own datagram");
        tcp
    }
}

#[test]
fn a_true_claim_is_confirmed_at_full_speed_both_ways() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 28,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 28).await;
        assert!(!pair.a.opened_here && pair.b.opened_here);
        assert_eq!(side.side.find(&pair.a.key), Some(pair));
        let mut while_running = 0;
        for _ in 0..20 {
            let m = side.side.measure(&pair).await.unwrap();
            assert_eq!((m.delta_forward, m.delta_reverse), (28, 0));
            while_running += usize::from(relay.running());
        }
        assert!(
            while_running > 0,
            "the streams ended before a measurement did"
        );
        relay.finish();
    });
}

#[test]
fn a_claim_of_too_little_is_a_lie_also_at_full_speed() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 28,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        for claim in [27, 0, -1] {
            let pair = side.pair(&relay, claim).await;
            match side.side.measure(&pair).await {
                Err(MeasureError::DeltaMismatch {
                    direction: "forward",
                    claimed,
                    seen,
                    ..
                }) => {
                    assert_eq!(claimed, claim);
                    assert!(seen > claim && seen <= 28, "seen {seen}");
                }
                other => panic!("{other:?}"),
            }
        }
        relay.finish();
    });
}

#[test]
fn a_claim_of_too_much_is_never_confirmed() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 20,
            ..Script::default()
        });
        let mut side = Side::start(|c| c.still_limit = Duration::from_millis(50));
        let pair = side.pair(&relay, 29).await;
        relay.wait_for_streams();
        match side.side.measure(&pair).await {
            Err(MeasureError::NeverStill {
                direction: "forward",
                claimed: 29,
                seen,
                ..
            }) => {
                assert_eq!(seen, Some(28));
            }
            other => panic!("{other:?}"),
        }
        relay.finish();
    });
}

#[test]
fn a_proxy_that_waits_in_its_splices_is_measured_too() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            blocking: true,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        // Both movers hold their pipe's lock, waiting for data.
        let m = side.side.measure(&pair).await.unwrap();
        assert_eq!((m.delta_forward, m.delta_reverse), (0, 0));
        relay.finish();
    });
}

#[test]
fn a_fin_is_no_byte() {
    in_network(async || {
        // The client's FIN has passed through both sockets, the server's not.
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            half_close: true,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        let m = side.side.measure(&pair).await.unwrap();
        assert_eq!((m.delta_forward, m.delta_reverse), (0, 0));
        relay.finish();
    });
}

#[test]
fn a_silent_close_sends_nothing_and_can_be_repeated() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        relay.wait_for_quiet();
        let capture = Capture::start();
        assert_eq!(side.side.close_silently(&pair).await.unwrap(), Closed::Now);
        assert!(matches!(side.event().await, PairEvent::Gone(_)));
        assert_eq!(
            side.side.close_silently(&pair).await.unwrap(),
            Closed::Already
        );
        relay.proxy_closed();
        assert_eq!(
            capture.segments(),
            0,
            "the proxy's close was seen on the wire"
        );
        assert_eq!(
            side.side.close_silently(&pair).await.unwrap(),
            Closed::Already
        );
        assert!(matches!(
            side.side.measure(&pair).await,
            Err(MeasureError::Gone(_))
        ));
    });
}

#[test]
fn other_sockets_on_the_same_descriptors_are_left_alone() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 10,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let mut pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        pair.a.cookie += 1_000_000;
        assert!(matches!(
            side.side.close_silently(&pair).await,
            Err(CloseError::Changed(_))
        ));
        assert_eq!(
            side.side.transparent(&pair),
            Err(NotTransparent::Gone(pair.id))
        );
        assert!(matches!(
            side.side.measure(&pair).await,
            Err(MeasureError::Gone(_))
        ));
        relay.finish();
    });
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
            side.side.transparent(&pair),
            Err(NotTransparent::NotSpliced)
        );
        r.flags |= report::REVERSE_ENDLESS;
        side.tell(&r).await;
        let listener = pair.a.key.local();
        let missing = NotTransparent::OneDirection {
            direction: "forward",
            listener,
        };
        assert_eq!(side.side.transparent(&pair), Err(missing));
        r.flags |= report::FORWARD_ENDLESS;
        side.tell(&r).await;
        assert_eq!(side.side.transparent(&pair), Ok(()));

        let mut vouching = Side::start(|c| c.transparent_listeners = vec![listener]);
        r.flags = report::IN_ACCEPTED | report::REVERSE_ENDLESS;
        vouching.tell(&r).await;
        assert_eq!(vouching.side.transparent(&pair), Ok(()));
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
        // The server's side first: the client's side is A all the same.
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
        assert_eq!(side.side.transparent(&pair), Ok(()));
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
fn pairs_go_with_their_process() {
    in_network(async || {
        let mut side = Side::start(|_| {});
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(ours))
            .spawn()
            .unwrap();
        send_as(
            &side.path,
            child.id() as i32,
            &said(ReportKind::Paired, 0, 1),
        );
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

/// Sends a report with another process's number: root may.
fn send_as(path: &std::path::Path, pid: i32, r: &Report) {
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
    let shim = UnixDatagram::unbound().unwrap();
    let ucred = libc::ucred {
        pid,
        uid: 0,
        gid: 0,
    };
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
