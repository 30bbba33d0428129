//! Services of the packet plane.

use dysco_common::packet_services::{BURST, HORIZON, Lane, PacketServices, service};
use dysco_common::{Counter, State, Translation, mark};
use nix::time::{ClockId, clock_gettime};

use crate::bench::{DROP, PASS, Programs, SLOT, Way};
use crate::frame::{Frame, Net, nets};

/// Index of the record.
const AT: u32 = 5;
/// A second for each byte.
const SLOW: u64 = 8;

fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    std::time::Duration::from(now).as_nanos() as u64
}

/// A session on another path, with services.
fn served(net: &Net, timed: bool, out: Lane, back: Lane) -> Programs {
    let mut p = Programs::with(net, State::NewPath, Translation::default());
    p.serve(
        AT,
        &PacketServices {
            key: net.key(),
            services: service::COUNT | service::SHAPE,
            timed: u32::from(timed),
            out,
            back,
            ..PacketServices::default()
        },
    );
    p
}

fn data(frame: &Frame) -> Frame {
    Frame {
        payload: vec![7; 100],
        ..frame.clone()
    }
}

#[test]
fn packets_are_counted_on_either_path() {
    for net in nets() {
        let mut p = served(&net, false, Lane::default(), Lane::default());
        for (way, frame) in [
            (Way::ServedOut, net.sent()),
            (Way::ServedIn, net.received()),
            (Way::ServedIn, net.new_received()),
            // It has left by the session's own five-tuple before, and has been counted then.
            (Way::ServedOut, net.new_sent()),
        ] {
            p.passes(way, &data(&frame));
        }
        let record = p.served(AT);
        let counts = |lane: Lane| (lane.packets, lane.bytes, lane.dropped);
        assert_eq!(counts(record.out), (1, 100, 0));
        assert_eq!(counts(record.back), (2, 200, 0));
    }
}

#[test]
fn other_sessions_pass() {
    for net in nets() {
        let slow = Lane {
            rate: SLOW,
            due: u64::MAX / 2,
            ..Lane::default()
        };
        let mut p = served(&net, false, slow, slow);
        let other = Net {
            local: (net.local.ip(), 1).into(),
            new_local: (net.new_local.ip(), 1).into(),
            ..net
        };
        p.passes(Way::ServedOut, &other.sent());
        p.passes(Way::ServedIn, &other.received());
        p.passes(Way::ServedIn, &other.new_received());
        p.drops(Way::ServedOut, &net.sent(), Counter::DroppedOverRate);
        p.drops(Way::ServedIn, &net.received(), Counter::DroppedOverRate);
        p.drops(Way::ServedIn, &net.new_received(), Counter::DroppedOverRate);
        let (out, back) = (p.served(AT).out, p.served(AT).back);
        assert_eq!((out.dropped, back.dropped, out.packets), (1, 2, 0));
        // A copy that a program has made is none of the end's packets.
        let copy = p.run_with_mark(Way::ServedOut, &net.sent().bytes(), mark::COPY);
        assert_eq!(copy.0, PASS);
    }
}

#[test]
fn what_is_beyond_the_rate_is_dropped_and_then_passes_again() {
    for net in nets() {
        let lane = Lane {
            rate: 100_000_000,
            ..Lane::default()
        };
        let p = served(&net, false, lane, lane);
        let frame = data(&net.sent()).bytes();
        let mut passed = 0;
        while p.run(Way::ServedOut, &frame).0 == PASS {
            passed += 1;
        }
        // Bytes of the burst, and bytes that came due meanwhile at ten nanoseconds a bit.
        let size = frame.len() as u64 - 14;
        assert!(passed * size * 80 >= BURST, "{passed} packets");
        let due = p.served(AT).out.due;
        while now() < due {}
        assert_eq!(p.run(Way::ServedOut, &frame).0, PASS);
    }
}

#[test]
fn packets_leave_at_their_times() {
    for net in nets() {
        let slow = Lane {
            rate: 8_000_000,
            ..Lane::default()
        };
        let mut p = served(&net, true, slow, Lane::default());
        let frame = data(&net.sent()).bytes();
        let headers = frame.len() as u64 - 14 - 100;
        // It is 40 packets on the wire. The first ones make up for unused time.
        let size = 1_000 * (100 + 40 * headers);
        let before = now();
        let times: Vec<u64> = (0..6)
            .map(|_| {
                let (verdict, departs) = p.run_divided(Way::ServedOut, &frame, 40);
                assert_eq!(verdict, PASS);
                departs
            })
            .collect();
        let steps = times.windows(2).filter(|pair| pair[0] > before);
        assert!(steps.clone().count() >= 3, "{times:?} after {before}");
        for pair in steps {
            assert_eq!(pair[1] - pair[0], size, "{times:?}");
        }
        assert_eq!(p.served(AT).out.packets, 240);
        // A packet of the other direction cannot wait.
        p.passes(Way::ServedIn, &net.received());
    }
}

#[test]
fn what_would_wait_too_long_is_dropped() {
    for net in nets() {
        let slow = Lane {
            rate: SLOW,
            due: now() + HORIZON,
            ..Lane::default()
        };
        let p = served(&net, true, slow, Lane::default());
        let frame = net.sent().bytes();
        assert_eq!(p.run(Way::ServedOut, &frame).0, PASS);
        assert_eq!(p.run(Way::ServedOut, &frame).0, DROP);
    }
}

#[test]
fn each_packet_is_late_by_the_delay() {
    const DELAY: u64 = 3_600_000_000_000;
    for net in nets() {
        let late = Lane {
            delay_ns: DELAY,
            ..Lane::default()
        };
        let p = served(&net, true, late, Lane::default());
        let before = now();
        let (verdict, departs) = p.run_divided(Way::ServedOut, &net.sent().bytes(), 1);
        assert_eq!(verdict, PASS);
        assert!((before + DELAY..=now() + DELAY).contains(&departs));
    }
}

#[test]
fn a_record_of_another_session_with_the_same_hash_is_not_meant() {
    for net in nets() {
        let mut p = served(&net, false, Lane::default(), Lane::default());
        let mut record = p.served(AT);
        record.key.remote_port ^= 1;
        let wrong = PacketServices {
            out: Lane {
                rate: SLOW,
                due: u64::MAX / 2,
                ..Lane::default()
            },
            ..record
        };
        p.serve(AT, &wrong);
        p.passes(Way::ServedOut, &net.sent());
        assert_eq!(p.session(SLOT).key, net.key());
    }
}
