//! Tests with real sockets in separate network namespaces. Needs root.

use std::os::fd::AsRawFd;
mod inbox;
mod kernel;
mod port;
mod relay;
mod reports;

use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use dysco_common::shim::{MAGIC, Report, ReportKind, VERSION, report};
use tokio::sync::broadcast::Receiver;

use super::*;
use relay::{Relay, Script};
use reports::send_as;

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
    /// Closes the sockets of a pair.
    async fn close(&self, pair: &Pair) -> Result<Closed, CloseError> {
        let (closed, _) = self.side.leave(vec![*pair]).await.remove(0);
        closed
    }

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
        assert_eq!(side.side.stats().processes, 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(side.event().await, PairEvent::Gone(pair));
        side.until(|s| s.processes == 0).await;
        assert_eq!(side.close(&pair).await.unwrap(), Closed::Already);
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
