//! How the shim's socket is read.

use super::*;

/// More than the socket itself holds, where the kernel's default was not changed.
const MANY: u64 = 1_000;

/// A shim that finds the socket full has to say again what did not get through, and a
/// removal of all sessions does not know of it meanwhile.
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
