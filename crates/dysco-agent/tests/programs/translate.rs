//! Sessions that use only the new path.

use dysco_common::session::translation::{STRIP_ECN, STRIP_TIMESTAMPS};
use dysco_common::tcp::{ACK, CWR, ECE, FIN, RST};
use dysco_common::{Counter, EventKind, State, Translation};

use crate::bench::{OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Net, Options, nets, options};

/// Numbers that wrap around.
pub(crate) const T: Translation = Translation {
    seq_out: 0xf000_0001,
    seq_in: 0x7fff_fff3,
    ts_out: 0xffff_ff05,
    ts_in: 0x0123_4567,
    wscale_local: 7,
    wscale_local_at_peer: 9,
    wscale_remote_at_peer: 8,
    wscale_remote: 6,
    flags: 0,
};

/// Returns a segment of the local end, and the same on the new path.
pub(crate) fn outgoing(net: &Net, which: Options, len: usize) -> (Frame, Frame) {
    let payload: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
    let sent = Frame {
        seq: 0x1fff_fff0,
        ack: 0x8000_0000,
        window: 1027,
        options: options(which, 100, 2_000_000_000, 0x8000_1000),
        payload: payload.clone(),
        ..net.sent()
    };
    let wire = Frame {
        seq: 0x0fff_fff1,
        ack: 0x0000_000d,
        window: 256,
        options: options(which, 0xffff_ff69, 2_000_000_000 - 0x0123_4567, 0x0000_100d),
        payload,
        ..net.new_sent()
    };
    (sent, wire)
}

/// Returns a segment of the new path, and the same as the local end receives it.
fn incoming(net: &Net, which: Options, len: usize) -> (Frame, Frame) {
    let payload: Vec<u8> = (0..len).map(|i| i as u8 ^ 0xa5).collect();
    let wire = Frame {
        seq: 0xffff_ffff,
        ack: 0x0fff_fff1,
        window: 20_000,
        options: options(which, 0xffff_ffff, 0, 0x0fff_ffff),
        payload: payload.clone(),
        ..net.new_received()
    };
    let delivered = Frame {
        seq: 0x7fff_fff2,
        ack: 0x1fff_fff0,
        // 80,000 does not fit.
        window: 65_535,
        options: options(which, 0x0123_4566, 0xfb, 0x1fff_fffe),
        payload,
        ..net.received()
    };
    (wire, delivered)
}

#[test]
fn every_segment_is_translated_whole() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        for which in ALL_OPTIONS {
            for len in [0, 1, 2, 3, 7, 100, 1399] {
                let (sent, wire) = outgoing(&net, which, len);
                p.becomes(Way::Out, &sent, REDIRECT, &wire);
                let (wire, delivered) = incoming(&net, which, len);
                p.becomes(Way::In, &wire, OK, &delivered);
            }
        }
        assert_eq!(
            p.count(Counter::Translated),
            2 * 7 * ALL_OPTIONS.len() as u64
        );
        assert_eq!(
            p.session(SLOT).new_out + p.session(SLOT).new_in,
            2 * 7 * ALL_OPTIONS.len() as u32
        );
    }
}

/// A complete checksum that equals the sum of the pseudo-header is changed as a complete one:
/// the kernel knows its kind.
#[test]
fn a_checksum_that_looks_like_its_pseudo_headers_is_changed_as_a_whole() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        for which in [Options::None, Options::Timestamps, Options::Sack] {
            let (mut sent, mut wire) = outgoing(&net, which, 2);
            let looks_so = |payload: &u16| {
                sent.payload = payload.to_ne_bytes().to_vec();
                sent.bytes() == sent.partial_bytes()
            };
            let payload = (0..=u16::MAX).find(looks_so).expect("such a payload");
            wire.payload = payload.to_ne_bytes().to_vec();
            p.becomes(Way::Out, &sent, REDIRECT, &wire);
        }
    }
}

/// The anchor whose session the wire has changes only addresses.
#[test]
fn identity_changes_addresses_alone() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, Translation::default());
        for which in ALL_OPTIONS {
            let (sent, _) = outgoing(&net, which, 77);
            let (src, dst) = (net.new_local, net.new_remote);
            p.becomes(
                Way::Out,
                &sent,
                REDIRECT,
                &Frame {
                    src,
                    dst,
                    ..sent.clone()
                },
            );
            let (wire, _) = incoming(&net, which, 77);
            let (src, dst) = (net.remote, net.local);
            p.becomes(
                Way::In,
                &wire,
                OK,
                &Frame {
                    src,
                    dst,
                    ..wire.clone()
                },
            );
        }
    }
}

/// The packet's checksum is that of the pseudo-header, or complete. With other options the
/// kernel's helper changes it, and takes the kind from the packet's metadata.
#[test]
fn a_super_packet_keeps_the_kind_of_its_checksum() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        for which in [Options::None, Options::Timestamps] {
            let (sent, wire) = outgoing(&net, which, 1400);
            let (heard, delivered) = incoming(&net, which, 1400);
            for (way, from, verdict, to) in [
                (Way::Out, sent, REDIRECT, wire),
                (Way::In, heard, OK, delivered),
            ] {
                let got = p.run_super(way, &from.partial_bytes());
                assert_eq!(got, (verdict, to.partial_bytes()), "{way:?} {which:?}");
                let got = p.run_super(way, &from.bytes());
                assert_eq!(got.1, to.bytes(), "{way:?} {which:?}");
            }
        }
    }
}

#[test]
fn what_is_on_the_wire_already_goes_on() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        p.passes(Way::Out, &outgoing(&net, Options::Timestamps, 10).1);
    }
}

/// The next hop that the kernel's lookup found for one packet serves the next ones. It is valid
/// for some ticks only, so the test tries pairs until both fall into them.
#[test]
fn the_next_hop_is_remembered_for_its_interface() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        let (sent, wire) = outgoing(&net, Options::Timestamps, 10);
        p.becomes(Way::Out, &sent, REDIRECT, &wire);
        let mut there = wire.bytes();
        there[..6].copy_from_slice(&[2, 0, 0, 0xab, 0xcd, 0xef]);
        let taken = |p: &mut Programs| {
            assert_eq!(p.run(Way::Out, &there), (PASS, there.clone()));
            p.run(Way::Out, &sent.bytes()) == (OK, there.clone())
        };
        assert!((0..1000).any(|_| taken(&mut p)), "never sent there");
        // A hop found for another session serves one that has found none.
        let shared = |p: &mut Programs| {
            p.passes(Way::Out, &wire);
            assert_eq!(p.run(Way::Out, &there), (PASS, there.clone()));
            p.change(|s| s.hop = 0);
            p.run(Way::Out, &sent.bytes()) == (OK, there.clone())
        };
        assert!((0..1000).any(|_| shared(&mut p)), "not shared");
        // As if the kernel had found it behind another interface.
        p.change(|s| s.ifindex += 1);
        assert!((0..10).all(|_| !taken(&mut p)));
    }
}

#[test]
fn an_option_of_one_side_only_is_overwritten() {
    for net in nets() {
        let t = Translation {
            flags: STRIP_TIMESTAMPS,
            ..T
        };
        let mut p = Programs::with(&net, State::NewPath, t);
        for which in [Options::Timestamps, Options::Sack, Options::Odd] {
            let (sent, mut wire) = outgoing(&net, which, 33);
            let at = if matches!(which, Options::Odd) { 3 } else { 2 };
            wire.options[at..at + 10].fill(1);
            p.becomes(Way::Out, &sent, REDIRECT, &wire);
            let (wire, mut delivered) = incoming(&net, which, 33);
            delivered.options[at..at + 10].fill(1);
            p.becomes(Way::In, &wire, OK, &delivered);
        }
    }
}

#[test]
fn congestion_notification_of_one_side_only_is_cleared() {
    for net in nets() {
        let t = Translation {
            flags: STRIP_ECN,
            ..T
        };
        let mut p = Programs::with(&net, State::NewPath, t);
        for ecn in 0..4 {
            let flags = ACK | ECE | CWR;
            let (sent, wire) = outgoing(&net, Options::Timestamps, 33);
            p.becomes(Way::Out, &Frame { ecn, flags, ..sent }, REDIRECT, &wire);
            for which in [Options::Sack, Options::Timestamps] {
                let (wire, delivered) = incoming(&net, which, 33);
                let wire = Frame { ecn, flags, ..wire };
                // Congestion: this end would not echo it, so the packet is dropped and counts as
                // a loss.
                match ecn {
                    3 => p.drops(Way::In, &wire, Counter::DroppedMarked),
                    _ => p.becomes(Way::In, &wire, OK, &delivered),
                }
            }
        }
        // In other cases the field is unchanged.
        let mut p = Programs::with(&net, State::NewPath, T);
        for ecn in 0..4 {
            let flags = ACK | ECE;
            let (sent, wire) = outgoing(&net, Options::Timestamps, 33);
            let (sent, wire) = (Frame { ecn, flags, ..sent }, Frame { ecn, flags, ..wire });
            p.becomes(Way::Out, &sent, REDIRECT, &wire);
        }
    }
}

/// Without ACK the field has no meaning and remains; so does TSecr.
#[test]
fn a_reset_without_ack_keeps_the_field() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        let (sent, wire) = outgoing(&net, Options::Timestamps, 0);
        p.change(|s| s.snd_max = sent.seq);
        let sent = Frame { flags: RST, ..sent };
        let wire = Frame {
            flags: RST,
            ack: sent.ack,
            options: options(Options::Timestamps, 0xffff_ff69, 2_000_000_000, 0),
            ..wire
        };
        p.becomes(Way::Out, &sent, REDIRECT, &wire);
        assert_eq!(p.session(SLOT).life.reset & 1, 1);
        assert_eq!(p.events(), [(EventKind::Reset, SLOT)]);
    }
}

#[test]
fn both_ends_closed_is_reported_once() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        let flags = ACK | FIN;
        let (wire, delivered) = incoming(&net, Options::None, 5);
        let (sent, _) = outgoing(&net, Options::None, 5);
        p.change(|s| {
            (s.rcv_max, s.snd_ack) = (delivered.seq, delivered.seq);
            s.snd_max = sent.seq;
        });
        p.becomes(
            Way::In,
            &Frame { flags, ..wire },
            OK,
            &Frame { flags, ..delivered },
        );
        assert_eq!(p.events(), []);
        for _ in 0..2 {
            let (sent, wire) = outgoing(&net, Options::None, 5);
            p.becomes(
                Way::Out,
                &Frame { flags, ..sent },
                REDIRECT,
                &Frame { flags, ..wire },
            );
        }
        assert_eq!(p.events(), [(EventKind::Closed, SLOT)]);
    }
}

#[test]
fn malformed_options_are_dropped() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        for bad in [
            [8, 0, 1, 1],
            [8, 1, 1, 1],
            [8, 10, 1, 1],
            [1, 1, 1, 8],
            [5, 34, 0, 0],
        ] {
            let frame = |f: Frame| Frame {
                options: bad.to_vec(),
                ..f
            };
            p.drops(
                Way::In,
                &frame(net.new_received()),
                Counter::DroppedUnparsed,
            );
            p.drops(Way::Out, &frame(net.sent()), Counter::DroppedError);
            // Without a translation both fields concern only the ends.
            let p = Programs::with(&net, State::NewPath, Translation::default());
            let (got, sent) = (frame(net.new_received()), frame(net.sent()));
            assert_eq!(p.run(Way::In, &got.bytes()).0, OK);
            assert_eq!(p.run(Way::Out, &sent.bytes()).0, REDIRECT);
        }
    }
}

#[test]
fn late_segments_of_the_old_path_are_dropped() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        p.drops(Way::In, &net.received(), Counter::DroppedLateOld);
    }
}

#[test]
fn a_proxy_that_left_is_silent() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Tombstone, T);
        p.drops(Way::In, &net.received(), Counter::DroppedTombstone);
        p.drops(Way::Out, &net.sent(), Counter::DroppedTombstone);
        p.drops(
            Way::Out,
            &Frame {
                flags: RST,
                ..net.sent()
            },
            Counter::DroppedTombstone,
        );
    }
}

#[test]
fn segments_of_a_new_path_that_is_not_heard_are_dropped() {
    for net in nets() {
        for state in [
            State::Free,
            State::Opening,
            State::Tracked,
            State::Tombstone,
            State::Closed,
        ] {
            let mut p = Programs::with(&net, state, T);
            p.drops(Way::In, &net.new_received(), Counter::DroppedStray);
        }
    }
}
