//! XDP makes the same of a frame as TC, and sends it to the neighbour that TC was shown. A frame
//! that is not for XDP passes unchanged.

use dysco_common::session::translation;
use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN};
use dysco_common::{Counter, Session, State, mark};

use crate::bench::{DROP, PASS, Programs, REDIRECT, SLOT, Way, XDP_PASS, XDP_TX};
use crate::frame::{ALL_OPTIONS, Frame, Net, Options, nets};
use crate::relay::{
    BACK, GIVEN, OTHER, OUT, SENT, from_client, from_server, joined_in, with_limit,
};

/// The neighbour's address, and this host's address in all frames here.
const NEXT: [u8; 6] = [2, 9, 9, 9, 9, 9];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn joined(net: &Net, state: State) -> Programs {
    joined_in(Programs::with_hints(64), net, state)
}

/// Returns a frame of each end, and the frame that TC then sends to the other.
fn both(p: &mut Programs, net: &Net) -> [(Frame, Vec<u8>); 2] {
    let client = from_client(net, SENT, GIVEN, 100, Options::Timestamps);
    let server = from_server(net, GIVEN - BACK, SENT + OUT, 100);
    [client, server].map(|frame| {
        let (verdict, sent) = p.run(Way::In, &frame.bytes());
        assert_eq!(verdict, REDIRECT);
        (frame, sent)
    })
}

/// Returns the frame as it leaves for the neighbour.
fn to_next(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[..6].copy_from_slice(&NEXT);
    bytes[6..12].copy_from_slice(&OWN);
    bytes
}

/// Returns a relayed session to which TC has shown both neighbours.
fn taught(net: &Net) -> Programs {
    let mut p = joined(net, State::Relay);
    for (_, sent) in both(&mut p, net) {
        let (verdict, left) =
            p.run_with_mark(Way::Out, &to_next(sent.clone()), mark::RELAYED_TEACHES);
        assert_eq!((verdict, left), (PASS, to_next(sent)));
    }
    p
}

#[track_caller]
fn passes(p: &mut Programs, frame: &[u8]) {
    let before = [SLOT, OTHER].map(|slot| format!("{:?}", p.session(slot)));
    assert_eq!(p.run_xdp(frame), (XDP_PASS, frame.to_vec()));
    let after = [SLOT, OTHER].map(|slot| format!("{:?}", p.session(slot)));
    assert_eq!(before, after);
    assert_eq!(p.count(Counter::RelayedByXdp), 0);
}

#[test]
fn it_is_what_tc_makes() {
    for net in nets() {
        let mut p = taught(&net);
        let mut sent = 0;
        let mut same = |p: &mut Programs, frame: &[u8]| {
            let (verdict, by_tc) = p.run(Way::In, frame);
            assert_eq!(verdict, REDIRECT);
            assert_eq!(p.run_xdp(frame), (XDP_TX, to_next(by_tc)));
            sent += 1;
            assert_eq!(p.count(Counter::RelayedByXdp), sent);
        };
        for which in [Options::None, Options::Timestamps] {
            for len in [0, 1, 77, 1400] {
                let frame = Frame {
                    flags: ACK | PSH,
                    ecn: 2,
                    ..from_client(&net, SENT, GIVEN, len, which)
                };
                same(&mut p, &frame.bytes());
                same(&mut p, &with_limit(&frame, 2));
            }
        }
        // Numbers that wrap, and checksums of all kinds.
        for n in 0..300_u32 {
            let seq = (SENT.wrapping_sub(70_000)).wrapping_add(n.wrapping_mul(0x0101_0301));
            let frame = from_server(&net, seq, seq ^ 0xffff_0000, n as usize % 7);
            same(&mut p, &frame.bytes());
        }
        // A session of which one end has no timestamps, with different windows.
        p.change(|s| {
            s.translation.flags = translation::STRIP_TIMESTAMPS;
            (
                s.translation.wscale_local,
                s.translation.wscale_local_at_peer,
            ) = (9, 2);
        });
        let frame = from_client(&net, SENT, GIVEN, 10, Options::Timestamps);
        same(&mut p, &frame.bytes());
    }
}

/// Both programs leave the same words in the entry.
#[test]
fn what_it_learns_is_what_tc_learns() {
    for net in nets() {
        let learnt = |by_xdp: bool| {
            let mut p = taught(&net);
            let client = from_client(&net, SENT + 500, GIVEN + 9, 300, Options::Timestamps);
            let server = from_server(&net, GIVEN - BACK + 100, SENT + OUT + 7, 0);
            for frame in [client, server] {
                if by_xdp {
                    assert_eq!(p.run_xdp(&frame.bytes()).0, XDP_TX);
                } else {
                    assert_eq!(p.run(Way::In, &frame.bytes()).0, REDIRECT);
                }
            }
            assert_eq!(p.count(Counter::Relayed), 4);
            [SLOT, OTHER].map(|slot| {
                // The time of learning may differ.
                let s = Session {
                    hop: 0,
                    ..p.session(slot)
                };
                format!("{s:?}")
            })
        };
        assert_eq!(learnt(true), learnt(false));
    }
}

#[test]
fn what_is_not_usual_passes() {
    for net in nets() {
        let mut p = taught(&net);
        let usual = from_client(&net, SENT, GIVEN, 50, Options::Timestamps);
        for flags in [SYN, SYN | ACK, ACK | FIN, RST, ACK | RST] {
            let frame = Frame {
                flags,
                ..usual.clone()
            };
            passes(&mut p, &frame.bytes());
        }
        for which in &ALL_OPTIONS[2..] {
            passes(&mut p, &from_client(&net, SENT, GIVEN, 50, *which).bytes());
        }
        for limit in [0, 1] {
            passes(&mut p, &with_limit(&usual, limit));
        }
        let bytes = usual.bytes();
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            bytes
        };
        let is_v6 = usual.src.is_ipv6();
        let mut others = vec![
            // Another EtherType, and another protocol: UDP, or a fragment header.
            changed(12, 0x81),
            changed(if is_v6 { 20 } else { 23 }, if is_v6 { 44 } else { 17 }),
            // For another host of the wire, for all hosts, and of no session.
            changed(5, 3),
            changed(0, 0xff),
            changed(usual.l4() + 1, bytes[usual.l4() + 1] ^ 1),
            // Shorter than its header states.
            bytes[..usual.l4() + 24].to_vec(),
        ];
        if is_v6 {
            others.push(changed(37, bytes[37] ^ 1));
        } else {
            // More fragments, a later fragment, and IP options.
            others.extend([changed(20, 0x20), changed(21, 9), changed(14, 0x46)]);
        }
        for frame in others {
            passes(&mut p, &frame);
        }
        // XDP takes this frame.
        assert_eq!(p.run_xdp(&bytes).0, XDP_TX);
    }
}

#[test]
fn only_sessions_that_leave_as_they_came_are_xdps() {
    for net in nets() {
        let frame = from_client(&net, SENT, GIVEN, 50, Options::Timestamps).bytes();
        let mut p = joined(&net, State::Relay);
        passes(&mut p, &frame);
        both(&mut p, &net);
        // The neighbour is unknown.
        passes(&mut p, &frame);
        let cases: [fn(&mut Session); 6] = [
            |s| s.ifindex = 2,
            |s| s.state = State::RelayTwoPaths as u32,
            |s| s.state = State::Tracked as u32,
            |s| s.translation.flags = translation::STRIP_ECN,
            |s| s.own_address ^= 1,
            // Too long ago.
            |s| s.hop = s.hop.wrapping_sub(8 << 48),
        ];
        for change in cases {
            let mut p = taught(&net);
            p.change(change);
            passes(&mut p, &frame);
        }
    }
}

/// TC asks the kernel again while it sees packets, but only for relayed ones.
#[test]
fn only_a_relayed_packet_teaches() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        let [_, (_, to_client)] = both(&mut p, &net);
        // These ports have no session.
        let mut other = to_next(to_client.clone());
        let l4 = net.sent().l4();
        other[l4 + 1] ^= 1;
        assert_eq!(
            p.run_with_mark(Way::Out, &other, mark::RELAYED_TEACHES).0,
            PASS
        );
        assert_eq!([SLOT, OTHER].map(|slot| p.session(slot).hop), [0, 0]);
        // Without the mark the packet is the proxy's own, and dropped.
        assert_eq!(p.run(Way::Out, &to_next(to_client.clone())).0, DROP);
        assert_eq!(p.session(OTHER).hop, 0);
        let (verdict, _) = p.run_with_mark(Way::Out, &to_next(to_client), mark::RELAYED_TEACHES);
        assert_eq!(verdict, PASS);
        let learnt = p.session(OTHER);
        let address = |word: u64| word.to_ne_bytes()[..6].to_vec();
        assert_eq!(address(learnt.hop), NEXT);
        assert_eq!(address(learnt.own_address), OWN);
        assert_eq!(p.session(SLOT).hop, 0);
    }
}

/// Packets on the paths of a chain on one side are left to TC.
#[test]
fn a_side_with_a_chain_is_left_to_tc() {
    for net in nets() {
        let mut p = taught(&net);
        let frame = from_client(&net, SENT, GIVEN, 10, Options::Timestamps).bytes();
        let with = |p: &mut Programs, relay| {
            let s = p.session(SLOT);
            p.put(SLOT, &Session { relay, ..s });
        };
        with(&mut p, OTHER + 1);
        passes(&mut p, &frame);
        with(&mut p, 0);
        assert_eq!(p.run_xdp(&frame).0, XDP_TX);
    }
}
