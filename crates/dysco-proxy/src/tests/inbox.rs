//! Tests of receiving on the shim's socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Number of reports, which exceeds the socket's queue if the kernel's default was not changed.
const MANY: u64 = 1_000;

/// A shim that finds the socket full must repeat lost reports, and a removal of all sessions
/// misses its pairs meanwhile.
#[test]
fn reports_are_received_while_one_is_looked_at() {
    in_network(async || {
        let side = Side::start(|_| {});
        let hello = said(ReportKind::Hello, -1, -1).to_bytes();
        side.shim
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let held = side.side.registry();
        for _ in 0..MANY {
            side.shim.send(&hello).unwrap();
        }
        drop(held);
        side.until(|s| s.reports == MANY).await;
    });
}

/// A shim reports again as soon as a new daemon's socket exists. A report that has no credentials
/// is lost, and the shim does not repeat it.
#[test]
fn reports_are_believed_from_the_first_moment_of_the_socket() {
    const STARTS: u32 = 10;
    in_network(async || {
        let dir = tempfile::tempdir().unwrap();
        let config = ProxyConfig {
            shim_socket: dir.path().join("shim.sock"),
            ..ProxyConfig::default()
        };
        let (path, stop) = (config.shim_socket.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let shim = std::thread::spawn(move || {
            let hello = said(ReportKind::Hello, -1, -1).to_bytes();
            while !stopped.load(Ordering::Relaxed) {
                let socket = UnixDatagram::unbound().unwrap();
                if socket.connect(&path).is_ok() {
                    // The daemon may be gone again.
                    while socket.send(&hello).is_ok() {}
                }
            }
        });
        for _ in 0..STARTS {
            let side = ProxySide::start(config.clone()).unwrap();
            while side.stats().reports == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(side.stats().malformed, 0);
        }
        stop.store(true, Ordering::Relaxed);
        shim.join().unwrap();
    });
}
