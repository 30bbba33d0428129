//! Reports that are not believed, not read, or too many.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use dysco_common::shim::{Report, ReportKind};

use super::super::*;
use super::relay::{Relay, Script};
use super::{Side, cookie_of, endless, in_network, said};

#[test]
fn what_is_no_report_is_counted_and_nothing_else() {
    in_network(async || {
        let side = Side::start(|_| {});
        let hello = said(ReportKind::Hello, -1, -1);
        side.counted(&hello.to_bytes(), |s| s.hellos).await;
        side.counted(&hello.to_bytes(), |s| s.reports).await;
        let stats = side.side.stats();
        assert_eq!((stats.hellos, stats.processes), (1, 1), "one process");
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

/// Sends a report with another process's pid or another user's id, which root may do.
pub(super) fn send_as(path: &std::path::Path, pid: i32, uid: u32, r: &Report) {
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
