//! Tests of receiving on the shim's socket.

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
