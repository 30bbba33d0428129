//! The SYN of a chained session, from host to host.

use std::net::SocketAddr;

use dysco_common::chain::PAYLOAD;
use dysco_common::policy::{Families, Otherwise, PolicyRule};
use dysco_common::tcp::{ACK, RST};
use dysco_common::{Addr, Counter, EventKind, FlowKey, State, mark};

use super::{FIRST, ISN, SECOND, all};
use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, Way, stamp, stamped};
use crate::frame::{Frame, mirror, on};

#[test]
fn a_rule_sends_the_syn_to_the_first_host_with_what_it_has_to_know() {
    for h in all() {
        let other = Addr::from(h.net.new_local.ip());
        for data in [&b""[..], b"a", b"fast open"] {
            for chain in [vec![h.middlebox], vec![h.middlebox, other]] {
                let mut p = h.opener(&chain);
                let steered = h.steered(data, &chain[1..]);
                p.becomes(Way::Out, &h.syn(data), REDIRECT, &steered);
                // The SYN's second pass, to the neighbour.
                p.passes(Way::Out, &steered);
                let s = p.session(FIRST);
                assert_eq!(s.state, State::NewPath as u32);
                assert_eq!(s.two.chained, 1);
                assert_eq!((s.path, s.laid_by), (h.subsession(FIRST as u16), 7 << 8));
                assert_eq!(p.count(Counter::ChainSent), 1);
            }
        }
    }
}

/// The next hop that was found on the second pass of one SYN serves the SYNs behind it.
#[test]
fn the_next_hop_of_a_syn_is_remembered() {
    for h in all() {
        let mut p = h.opener(&[h.middlebox]);
        let (syn, steered) = (h.syn(b""), h.steered(b"", &[]));
        p.becomes(Way::Out, &syn, REDIRECT, &steered);
        let there = |frame: &Frame| {
            let mut there = frame.bytes();
            there[..6].copy_from_slice(&[2, 0, 0, 0xab, 0xcd, 0xef]);
            there
        };
        let taken = |p: &mut Programs| {
            let learnt = there(&steered);
            assert_eq!(p.run(Way::Out, &learnt), (PASS, learnt));
            let (verdict, out) = p.run(Way::Out, &syn.bytes());
            (verdict, there(&stamped(&steered, &out))) == (OK, out)
        };
        assert!((0..1000).any(|_| taken(&mut p)), "never sent there");
    }
}

#[test]
fn what_arrives_is_the_sessions_own_syn() {
    for h in all() {
        for data in [&b""[..], b"a", b"fast open"] {
            let mut p = h.middlebox();
            let (got, want) = (h.steered(data, &[]), h.syn(data));
            p.becomes(Way::In, &got, OK, &want);
            let s = p.session(FIRST);
            assert_eq!(s.state, State::NewPath as u32);
            let key = FlowKey::new(h.net.remote, h.net.local);
            let path = FlowKey::new(got.dst, got.src);
            assert_eq!((s.key, s.path), (key, path));
            assert_eq!(s.rcv_max, want.seq.wrapping_add(1 + data.len() as u32));
            assert_eq!(p.count(Counter::ChainReceived), 1);
            assert_eq!(p.count(Counter::ChainNat), 0);
        }
    }
}

/// SYN, answer and data, both ways through a middlebox's host.
#[test]
fn a_middlebox_sees_the_session_itself_and_the_wire_subsessions() {
    for h in all() {
        let next = Addr::from(h.net.remote.ip());
        let mut p = h.middlebox();
        p.hop(next, &h.hop(h.net.new_remote));
        p.becomes(Way::In, &h.steered(b"x", &[]), OK, &h.syn(b"x"));
        let port = |a: SocketAddr, port| SocketAddr::new(a.ip(), port);
        let right = FlowKey::new(port(h.net.new_remote, 61_000 + SECOND as u16), h.net.remote);
        let payload = h.payload(right, &[]);
        let sent = Frame {
            payload: [b"x", &payload.to_bytes()[..]].concat(),
            ..on(right, &h.syn(b"x"))
        };
        p.becomes(Way::Out, &h.syn(b"x"), REDIRECT, &sent);
        let (left, joined) = (p.session(FIRST), p.session(SECOND));
        assert_eq!((left.joined, joined.joined), (SECOND + 1, FIRST + 1));

        let mirrored = mirror(right);
        p.becomes(Way::In, &on(mirrored, &h.syn_ack()), OK, &h.syn_ack());
        let back = FlowKey::new(left.path.local(), left.path.remote());
        p.becomes(Way::Out, &h.syn_ack(), REDIRECT, &on(back, &h.syn_ack()));
        let opened = [(EventKind::Opened, SECOND), (EventKind::Opened, FIRST)];
        assert_eq!(p.events(), opened);
        assert_eq!(p.session(FIRST).local.isn, 5000);
        assert_eq!(p.session(SECOND).remote.isn, 5000);

        let data = Frame {
            seq: ISN.wrapping_add(1),
            ack: 5001,
            payload: b"hello".to_vec(),
            ..h.net.sent()
        };
        let forth = mirror(left.path);
        p.becomes(Way::In, &on(forth, &data), OK, &data);
        p.becomes(Way::Out, &data, REDIRECT, &on(right, &data));
    }
}

#[test]
fn sent_or_received_again_a_syn_makes_no_second_session() {
    for h in all() {
        let mut opener = h.opener(&[h.middlebox]);
        let mut there = h.middlebox();
        let steered = h.steered(b"", &[]);
        for _ in 0..3 {
            opener.becomes(Way::Out, &h.syn(b""), REDIRECT, &steered);
            there.becomes(Way::In, &steered, OK, &h.syn(b""));
        }
        assert_eq!(opener.count(Counter::Tracked), 1);
        assert_eq!(there.count(Counter::Tracked), 1);
        // A replay finds the session established, or another session in its place.
        there.run(Way::Out, &h.syn_ack().bytes());
        there.drops(Way::In, &steered, Counter::DroppedSyn);
        let other = Frame {
            seq: 1,
            ..steered.clone()
        };
        there.drops(Way::In, &other, Counter::ChainTaken);
        assert_eq!(there.session(FIRST).remote.isn, ISN);
    }
}

#[test]
fn the_port_of_an_ended_session_may_be_used_again() {
    for h in all() {
        let mut p = h.opener(&[h.middlebox]);
        p.run(Way::Out, &h.syn(b"").bytes());
        let reset = Frame {
            flags: RST | ACK,
            ..h.net.sent()
        };
        let path = h.subsession(FIRST as u16);
        let back = mirror(path);
        p.becomes(
            Way::In,
            &on(
                back,
                &Frame {
                    src: h.net.remote,
                    dst: h.net.local,
                    ..reset.clone()
                },
            ),
            OK,
            &Frame {
                src: h.net.remote,
                dst: h.net.local,
                ..reset
            },
        );
        p.run(Way::Out, &h.syn(b"").bytes());
        assert_eq!(p.session(SECOND).path, h.subsession(SECOND as u16));
        assert_eq!(p.find(&h.net.key()).unwrap().slot, SECOND);
    }
}

/// Every altered byte of a payload is detected, and has no effect.
#[test]
fn altered_payloads_are_dropped_and_counted() {
    let refused = [Counter::ChainLayout, Counter::ChainKey, Counter::ChainProof];
    for h in all() {
        let mut p = h.middlebox();
        let good = h.steered(b"", &[]);
        for at in (0..PAYLOAD).step_by(3) {
            let mut bad = good.clone();
            bad.payload[at] ^= 0x40;
            // Without its magic, the packet is any SYN with data, as strangers may send.
            let want = if at < 4 { PASS } else { DROP };
            assert_eq!(p.run(Way::In, &bad.bytes()).0, want, "byte {at}");
        }
        let all: u64 = refused.iter().map(|c| p.count(*c)).sum();
        assert_eq!(all as usize, (4..PAYLOAD).filter(|at| at % 3 == 0).count());
        p.hop(good.src.ip().into(), &h.hop(good.dst));
        for at in 0..4 {
            let mut bad = good.clone();
            bad.payload[at] ^= 0x40;
            p.drops(Way::In, &bad, Counter::ChainLayout);
            // A neighbour's own data comes with TCP Fast Open.
            bad.options.extend([34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]);
            assert_eq!(p.run(Way::In, &bad.bytes()).0, PASS);
        }
        assert_eq!(p.count(Counter::ChainReceived), 0);
        let path = FlowKey::new(good.dst, good.src);
        for len in [4, 20, 100, 255] {
            let mut cut = good.clone();
            cut.payload.truncate(len);
            p.drops(Way::In, &cut, Counter::ChainLayout);
            let mut long = good.clone();
            long.payload.push(0);
            p.drops(Way::In, &long, Counter::ChainLayout);
        }
        assert!(!p.find(&path).is_some_and(|f| f.is_new()));
    }
}

#[test]
fn a_host_that_is_not_there_is_refused_or_done_without() {
    for h in all() {
        for (otherwise, why) in [
            (Otherwise::Refuse, Counter::ChainRefused),
            (Otherwise::Direct, Counter::ChainDirect),
        ] {
            let mut p = h.opener(&[h.middlebox]);
            let unknown = Addr::from(h.net.local.ip());
            p.policy(0, &[h.rule(&[h.middlebox, unknown], otherwise)]);
            let verdict = if otherwise == Otherwise::Direct {
                PASS
            } else {
                DROP
            };
            let syn = h.syn(b"").bytes();
            assert_eq!(p.run(Way::Out, &syn), (verdict, syn));
            assert_eq!(p.count(why), 1);
        }
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    for h in all() {
        let chain = h.rule(&[h.middlebox], Otherwise::Refuse);
        let elsewhere = PolicyRule {
            first_port: 1,
            last_port: 7999,
            ..chain
        };
        let without = h.rule(&[], Otherwise::Refuse);
        let family = PolicyRule {
            families: if h.net.key().is_v6() {
                Families::V4
            } else {
                Families::V6
            } as u8,
            ..chain
        };
        let mut long = vec![elsewhere; 255];
        long.push(chain);
        for (rules, verdict) in [
            (vec![chain, without], REDIRECT),
            (vec![without, chain], PASS),
            (vec![elsewhere, chain], REDIRECT),
            (vec![elsewhere], PASS),
            (vec![family], PASS),
            (long, REDIRECT),
        ] {
            let mut p = h.opener(&[h.middlebox]);
            p.policy(256, &rules);
            assert_eq!(p.run(Way::Out, &h.syn(b"").bytes()).0, verdict);
        }
    }
}

/// The server's host has no agent. The last host of the chain lets the SYN go unchanged, and
/// reports the missing neighbour.
#[test]
fn the_last_host_restores_the_session_for_a_server_without_an_agent() {
    for h in all() {
        let mut p = h.middlebox();
        p.becomes(Way::In, &h.steered(b"", &[]), OK, &h.syn(b""));
        p.passes(Way::Out, &h.syn(b""));
        assert_eq!(p.count(Counter::ChainRestored), 1);
        assert_eq!(p.events(), [(EventKind::Stranger, FIRST)]);
        assert_eq!(p.session(SECOND).state, State::Opening as u32);
        // Once the server's host is known, it gets the retransmitted SYN on a subsession.
        p.hop(h.net.remote.ip().into(), &h.hop(h.net.new_remote));
        assert_eq!(p.run(Way::Out, &h.syn(b"").bytes()).0, REDIRECT);
        assert_eq!(p.session(SECOND).state, State::NewPath as u32);
    }
}

/// A NAT on the middlebox's host changes an end. If it changes the number as well, the mark
/// identifies the SYN.
#[test]
fn a_syn_that_a_nat_has_changed_finds_its_chain() {
    for h in all() {
        let next = Addr::from(h.net.remote.ip());
        let translated = SocketAddr::new(h.net.new_remote.ip(), 33_333);
        for (seq, slot) in [(ISN, None), (77, Some(FIRST)), (77, None)] {
            let mut p = h.middlebox();
            p.hop(next, &h.hop(h.net.new_remote));
            p.run(Way::In, &h.steered(b"", &[]).bytes());
            let syn = Frame {
                src: translated,
                seq,
                ..h.syn(b"")
            };
            let mark = slot.and_then(mark::of_slot).unwrap_or(0);
            let (verdict, out) = p.run_with_mark(Way::Out, &syn.bytes(), mark);
            let found = seq == ISN || slot.is_some();
            assert_eq!(verdict, if found { REDIRECT } else { PASS });
            if found {
                assert_eq!(out.len(), syn.bytes().len() + PAYLOAD);
                let s = p.session(SECOND);
                assert_eq!(s.key, FlowKey::new(translated, h.net.remote));
                assert_eq!((s.joined, s.alias()), (FIRST + 1, Some(h.net.key())));
                // The next host learns both names.
                let mut payload = h.payload_of(s.key, s.path, &[]).to_bytes();
                stamp(&mut payload, &out);
                assert_eq!(out[out.len() - PAYLOAD..], payload);
            }
        }
    }
}
