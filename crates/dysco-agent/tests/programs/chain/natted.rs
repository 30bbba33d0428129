//! A NAT on a host of the chain, or before it.

use std::net::SocketAddr;

use dysco_common::chain::{Chain, WireElement};
use dysco_common::rule::Rule;
use dysco_common::tcp::RST;
use dysco_common::{Addr, Counter, EventKind, FlowKey, FlowRef, State, mark};

use super::*;
use crate::bench::{OK, REDIRECT, Way, stamped};
use crate::frame::{Frame, mirror, on};

/// Packets have one name, requests the other, which no other session gets while this one is
/// alive.
#[test]
fn behind_a_nat_a_session_has_two_names() {
    for h in all() {
        let renamed = FlowKey::new(SocketAddr::new(h.net.new_remote.ip(), 33_333), h.net.remote);
        let name = mirror(h.net.key());
        let path = h.subsession(FIRST as u16);
        let syn = Frame {
            src: path.local(),
            dst: path.remote(),
            payload: h.payload_of(renamed, path, &[]).to_bytes().to_vec(),
            ..h.syn(b"")
        };
        let mut p = h.middlebox();
        let own = Frame {
            src: renamed.local(),
            ..h.syn(b"")
        };
        p.becomes(Way::In, &syn, OK, &own);
        let mut s = p.session(FIRST);
        assert_eq!((s.key, s.alias()), (mirror(renamed), Some(name)));
        assert_eq!(p.find(&name), Some(FlowRef::alias(&name, FIRST)));

        let other = h.subsession(FIRST as u16 + 1);
        let by_name = Frame {
            src: other.local(),
            dst: other.remote(),
            payload: h.payload_of(h.net.key(), other, &[]).to_bytes().to_vec(),
            ..h.syn(b"")
        };
        p.drops(Way::In, &by_name, Counter::ChainTaken);
        s.life.reset = 1;
        p.put(FIRST, &s);
        p.becomes(Way::In, &by_name, OK, &h.syn(b""));
        let now = p.find(&name).map(|flow| (flow.slot, flow.is_alias()));
        // The refused session has given its slot back, behind all others.
        assert_eq!(now, Some((SECOND + 1, false)));
    }
}

/// The session may have passed here by its own five-tuple a moment ago.
#[test]
fn behind_a_nat_a_name_is_taken_from_what_is_over() {
    for h in all() {
        let renamed = FlowKey::new(SocketAddr::new(h.net.new_remote.ip(), 33_333), h.net.remote);
        let name = mirror(h.net.key());
        let by = |session, slot| {
            let path = h.subsession(slot);
            Frame {
                src: path.local(),
                dst: path.remote(),
                payload: h.payload_of(session, path, &[]).to_bytes().to_vec(),
                ..h.syn(b"")
            }
        };
        let mut p = h.middlebox();
        assert_eq!(p.run(Way::In, &by(h.net.key(), 10).bytes()).0, OK);
        let mut s = p.session(FIRST);
        s.state = State::Tombstone as u32;
        p.put(FIRST, &s);
        assert_eq!(p.run(Way::In, &by(renamed, 11).bytes()).0, OK);
        assert_eq!(p.find(&name), Some(FlowRef::alias(&name, SECOND)));
        // Nor does a hint lead to the earlier session.
        p.drops(Way::In, &by(h.net.key(), 12), Counter::ChainTaken);
        // And back again.
        let mut s = p.session(SECOND);
        s.state = State::Tombstone as u32;
        p.put(SECOND, &s);
        assert_eq!(p.run(Way::In, &by(h.net.key(), 12).bytes()).0, OK);
    }
}

/// The state that a host has of a session that stays there is found by one five-tuple.
#[test]
fn a_session_that_stays_is_not_renamed() {
    let token = [1, 2];
    for h in all() {
        let renamed = FlowKey::new(SocketAddr::new(h.net.new_remote.ip(), 33_333), h.net.remote);
        for (first, then) in [(h.net.key(), renamed), (renamed, h.net.key())] {
            let mut p = h.middlebox();
            let comes = |session, slot, live: bool| {
                let path = h.subsession(slot);
                let mut payload = h.payload_of(session, path, &[]);
                let last = if live {
                    WireElement::live(token)
                } else {
                    WireElement::default()
                };
                payload.set_rest(&Chain::of(&[h.middlebox]).unwrap(), &last);
                payload.mac = payload.proof(KEY);
                Frame {
                    src: path.local(),
                    dst: path.remote(),
                    payload: payload.to_bytes().to_vec(),
                    ..h.syn(b"")
                }
            };
            assert_eq!(p.run(Way::In, &comes(first, 10, false).bytes()).0, OK);
            p.drops(Way::In, &comes(then, 11, true), Counter::ChainTaken);
        }
    }
}

/// Behind a NAT a packet that connection tracking refuses is for this host's own address, whose
/// stack would end the session. A packet that it passes on may be a reset of an end.
#[test]
fn a_nats_own_stack_ends_nothing() {
    for h in all() {
        // Another address than this host's own is that of a forwarded packet.
        for (from, own) in [
            (h.net.new_remote.ip(), true),
            ([192, 0, 2, 1].into(), false),
        ] {
            if from.is_ipv4() != h.net.remote.is_ipv4() {
                continue;
            }
            let next = Addr::from(h.net.remote.ip());
            let translated = SocketAddr::new(from, 33_333);
            let mut p = h.middlebox();
            p.hop(next, &h.hop(h.net.new_remote));
            p.run(Way::In, &h.steered(b"", &[]).bytes());
            let syn = Frame {
                src: translated,
                ..h.syn(b"")
            };
            assert_eq!(p.run(Way::Out, &syn.bytes()).0, REDIRECT);
            let reset = Frame {
                flags: RST,
                seq: ISN.wrapping_add(1),
                options: vec![],
                ..syn
            };
            if own {
                p.drops(Way::Out, &reset, Counter::DroppedStray);
                assert_eq!(p.session(SECOND).life.reset, 0);
            } else {
                assert_eq!(p.run(Way::Out, &reset.bytes()).0, REDIRECT);
                assert_eq!(p.session(SECOND).life.reset & 1, 1);
                assert_eq!(p.events(), [(EventKind::Reset, SECOND)]);
            }
            // In the other direction the source is no address of this host. The host refuses the
            // SYN.
            let other = Frame {
                src: h.net.remote,
                dst: h.net.local,
                seq: 0,
                ..reset
            };
            assert_eq!(p.run(Way::Out, &other.bytes()).0, REDIRECT);
            assert_eq!(p.events(), [(EventKind::Reset, FIRST)]);
        }
    }
}

/// A NAT on the middlebox's host changes the destination, and the number or not. The server
/// knows the name under which the session was opened, and its answer finds the way back.
#[test]
fn a_nat_may_change_the_destination() {
    for h in all() {
        let server = SocketAddr::new(h.net.new_local.ip(), 9090);
        let renamed = FlowKey::new(h.net.local, server);
        for (seq, slot) in [(ISN, None), (77, Some(FIRST)), (ISN, Some(FIRST))] {
            let mut p = h.middlebox();
            p.hop(server.ip().into(), &h.hop(h.net.new_remote));
            assert_eq!(p.run(Way::In, &h.steered(b"", &[]).bytes()).0, OK);
            let syn = Frame {
                seq,
                ..on(renamed, &h.syn(b""))
            };
            let mark = slot.and_then(mark::of_slot).unwrap_or(0);
            let (verdict, out) = p.run_with_mark(Way::Out, &syn.bytes(), mark);
            let s = p.session(SECOND);
            let payload = h.payload_of(renamed, s.path, &[]).to_bytes().to_vec();
            let sent = Frame {
                payload,
                ..on(s.path, &syn)
            };
            let sent = stamped(&sent, &out);
            assert_eq!((verdict, out), (REDIRECT, sent.bytes()));
            assert_eq!((s.key, s.joined), (renamed, FIRST + 1));
            assert_eq!(
                (s.path.remote, s.alias()),
                (renamed.remote, Some(h.net.key()))
            );

            let mut there = h.host_at(renamed.remote);
            there.becomes(Way::In, &sent, OK, &syn);
            let name = mirror(h.net.key());
            let s = there.session(FIRST);
            assert_eq!((s.key, s.alias()), (mirror(renamed), Some(name)));
            assert_eq!(there.find(&name), Some(FlowRef::alias(&name, FIRST)));
            let answer = on(mirror(renamed), &h.syn_ack());
            let back = on(mirror(p.session(SECOND).path), &answer);
            there.becomes(Way::Out, &answer, REDIRECT, &back);

            p.becomes(Way::In, &back, OK, &answer);
            let left = p.session(FIRST).path;
            p.becomes(Way::Out, &h.syn_ack(), REDIRECT, &on(left, &h.syn_ack()));
        }
    }
}

/// The address to ask for an agent is not the address to which the session was opened, even if this
/// host tracks other sessions.
#[test]
fn the_server_that_a_nat_has_chosen_is_asked_for() {
    for h in all() {
        let server = SocketAddr::new(h.net.new_local.ip(), 9090);
        let renamed = FlowKey::new(h.net.local, server);
        let syn = on(renamed, &h.syn(b""));
        let mut p = h.middlebox();
        p.rules(&[Rule::default()]);
        p.run(Way::In, &h.steered(b"", &[]).bytes());
        for _ in 0..2 {
            p.passes(Way::Out, &syn);
            assert_eq!(p.events(), [(EventKind::Stranger, SECOND)]);
            let s = p.session(SECOND);
            assert_eq!((s.key, s.life.opened_here), (renamed, 1));
        }
        p.hop(server.ip().into(), &h.hop(h.net.new_remote));
        assert_eq!(p.run(Way::Out, &syn.bytes()).0, REDIRECT);
        assert_eq!(p.session(SECOND).joined, FIRST + 1);
    }
}
