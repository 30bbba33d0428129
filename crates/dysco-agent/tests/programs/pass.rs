//! Packets that do not concern the programs.

use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::{Counter, EventKind, State, Translation};
use etherparse::{PacketBuilder, VlanId};

use crate::bench::{PASS, Programs, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Net, Options, nets, options};

/// A translation that changes every packet.
const LOUD: Translation = Translation {
    seq_out: 1,
    seq_in: 1,
    ts_out: 1,
    ts_in: 1,
    wscale_local: 0,
    wscale_local_at_peer: 0,
    wscale_remote_at_peer: 0,
    wscale_remote: 0,
    flags: 0,
};

#[track_caller]
fn untouched(p: &mut Programs, frame: &[u8]) {
    for way in [Way::Out, Way::In] {
        let (verdict, after) = p.run(way, frame);
        assert_eq!((verdict, &after[..]), (PASS, frame), "{way:?}");
    }
}

#[test]
fn a_tracked_session_is_untouched_and_learnt_from() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Tracked, LOUD);
        for (i, which) in ALL_OPTIONS.into_iter().enumerate() {
            let i = i as u32;
            let sent = Frame {
                seq: 100 * i,
                ack: 7000 + i,
                options: options(which, 50 + i, 60 + i, 1),
                payload: vec![1; 100],
                ..net.sent()
            };
            p.passes(Way::Out, &sent);
            let received = Frame {
                seq: 1000 * i,
                ack: 10 * i,
                options: options(which, 70 + i, 80 + i, 1),
                payload: vec![2; 1000],
                ..net.received()
            };
            p.passes(Way::In, &received);
        }
        let s = p.session(SLOT);
        assert_eq!(
            (s.snd_max, s.rcv_max, s.snd_ack, s.rcv_ack),
            (500, 5000, 7004, 40)
        );
        assert_eq!((s.bytes_out, s.bytes_in), (500, 5000));
        // Timestamps are learnt if they come first, after two NOPs.
        assert_eq!((s.tsval_out, s.tsval_in), (52, 72));
    }
}

/// The clock of an end that has sent nothing but its SYN-ACK is in the other end's first echo, of a
/// packet with the usual header or with another one.
#[test]
fn an_echo_tells_the_clock_of_an_end_that_is_silent() {
    for net in nets() {
        for (way, which) in [
            (Way::Out, Options::Timestamps),
            (Way::Out, Options::Sack),
            (Way::In, Options::Timestamps),
            (Way::In, Options::Sack),
        ] {
            let mut p = Programs::with(&net, State::Tracked, LOUD);
            p.change(|s| (s.tsval_out, s.tsval_in) = (0, 0));
            let mut clocks = |tsval, echo| {
                let frame = match way {
                    Way::Out => net.sent(),
                    _ => net.received(),
                };
                let options = options(which, tsval, echo, 1);
                p.passes(way, &Frame { options, ..frame });
                let s = p.session(SLOT);
                match way {
                    Way::Out => (s.tsval_out, s.tsval_in),
                    _ => (s.tsval_in, s.tsval_out),
                }
            };
            assert_eq!(clocks(52, 72), (52, 72), "{way:?} {which:?}");
            // The clock is known by now.
            assert_eq!(clocks(53, 73), (53, 72), "{way:?} {which:?}");
        }
    }
}

/// A retransmission teaches nothing.
#[test]
fn nothing_learnt_steps_back() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Tracked, LOUD);
        p.change(|s| (s.snd_max, s.rcv_max, s.snd_ack, s.rcv_ack) = (900, 800, 700, 600));
        p.passes(
            Way::Out,
            &Frame {
                seq: 100,
                ack: 50,
                payload: vec![1; 100],
                ..net.sent()
            },
        );
        p.passes(
            Way::In,
            &Frame {
                seq: 100,
                ack: 50,
                payload: vec![1; 100],
                ..net.received()
            },
        );
        let s = p.session(SLOT);
        assert_eq!(
            (s.snd_max, s.rcv_max, s.snd_ack, s.rcv_ack),
            (900, 800, 700, 600)
        );
        assert_eq!((s.bytes_out, s.bytes_in), (0, 0));
    }
}

#[test]
fn the_end_of_a_tracked_session_is_reported() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Tracked, LOUD);
        let flags = ACK | FIN;
        p.passes(
            Way::In,
            &Frame {
                flags,
                ..net.received()
            },
        );
        p.passes(
            Way::Out,
            &Frame {
                flags,
                ..net.sent()
            },
        );
        p.passes(
            Way::Out,
            &Frame {
                flags: RST,
                ..net.sent()
            },
        );
        p.passes(
            Way::In,
            &Frame {
                flags: RST,
                ..net.received()
            },
        );
        // Once each.
        let reported = [EventKind::Closed, EventKind::Reset].map(|k| (k, SLOT));
        assert_eq!(p.events(), reported);
    }
}

#[test]
fn sessions_of_others_are_untouched() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, LOUD);
        let other = |mut f: Frame| {
            f.src.set_port(1);
            f.payload = vec![1, 2, 3];
            f
        };
        p.passes(Way::Out, &other(net.sent()));
        p.passes(Way::In, &other(net.received()));
        // The key of one direction is not that of the other.
        p.passes(Way::In, &net.sent());
        p.passes(Way::Out, &net.received());
    }
}

#[test]
fn what_was_collected_passes() {
    for net in nets() {
        for state in [State::Free, State::Closed] {
            let mut p = Programs::with(&net, state, LOUD);
            p.passes(Way::Out, &net.sent());
            p.passes(Way::In, &net.received());
        }
        let mut p = Programs::with(&net, State::NewPath, LOUD);
        p.change(|s| s.state = 77);
        p.passes(Way::Out, &net.sent());
        p.passes(Way::In, &net.received());
    }
}

/// Returns frames that would belong to the session, but for their form.
fn odd_frames(net: &Net) -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    for f in [net.sent(), net.received(), net.new_received()] {
        let f = Frame {
            payload: vec![5; 64],
            ..f
        };
        let bytes = f.bytes();
        let vlan = || {
            PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
                .single_vlan(VlanId::try_new(5).unwrap())
        };
        let mut tagged = Vec::new();
        vlan()
            .ip(f.ip())
            .tcp_header(f.tcp())
            .write(&mut tagged, &f.payload)
            .unwrap();
        all.push(("VLAN tag", tagged));
        let mut udp = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ip(f.ip())
            .udp(f.src.port(), f.dst.port())
            .write(&mut udp, &f.payload)
            .unwrap();
        all.push(("UDP", udp));
        for (what, at, with) in if f.src.is_ipv4() {
            vec![
                ("first fragment", 20, 0x20),
                ("later fragment", 21, 0x08),
                ("IP options", 14, 0x46),
                ("short IP header", 14, 0x44),
                ("ICMP", 23, 1),
                ("ethertype", 12, 0x88),
                ("data offset below 5", 46, 0x40),
                ("length below the headers", 17, 30),
            ]
        } else {
            vec![
                ("fragment header", 20, 44),
                ("hop-by-hop options", 20, 0),
                ("routing header", 20, 43),
                ("ICMP", 20, 58),
                ("ethertype", 12, 0x88),
                ("data offset below 5", 66, 0x40),
                ("length below the header", 19, 10),
            ]
        } {
            let mut b = bytes.clone();
            b[at] = with;
            all.push((what, b));
        }
        // The kernel runs no test on less than an IP header.
        for len in f.l4()..f.l4() + 20 {
            all.push(("cut short", bytes[..len].to_vec()));
        }
    }
    all
}

#[test]
fn what_is_not_plain_tcp_is_untouched() {
    for net in nets() {
        for state in [State::NewPath, State::Tombstone] {
            let mut p = Programs::with(&net, state, LOUD);
            for (what, frame) in odd_frames(&net) {
                println!("{what}, {} bytes", frame.len());
                untouched(&mut p, &frame);
            }
        }
    }
}

/// Short frames are padded: the IP length counts.
#[test]
fn padding_is_no_payload() {
    for net in nets() {
        let p = Programs::with(&net, State::Tracked, LOUD);
        let f = Frame {
            seq: 100,
            payload: vec![1],
            ..net.sent()
        };
        let mut padded = f.bytes();
        padded.extend([0; 20]);
        let (verdict, after) = p.run(Way::Out, &padded);
        assert_eq!((verdict, after), (PASS, padded));
        assert_eq!(p.session(SLOT).snd_max, 101);
    }
}

/// Noise, and good frames with noise in them. A packet that is not the session's remains
/// unchanged in every case.
#[test]
fn noise_is_untouched() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, LOUD);
        let good = Frame {
            payload: vec![5; 30],
            ..net.sent()
        }
        .bytes();
        for _ in 0..2000 {
            let len = 14 + (random() % 120) as usize;
            let noise: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            untouched(&mut p, &noise);
            // Another address, so that the packet belongs to no session.
            let mut b = good.clone();
            b[30] ^= 0x40;
            b[26] ^= 0x40;
            let at = 34 + random() as usize % (b.len() - 34);
            b[at] = random() as u8;
            untouched(&mut p, &b);
        }
        assert_eq!(p.count(Counter::Translated), 0);
    }
}
