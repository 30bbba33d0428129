//! Another path of a session that a middlebox has left. The packets that open it have the
//! numbers of the wire, the entry has those of its own end.

use std::net::SocketAddr;

use dysco_common::chain::{Payload, Token, WireElement};
use dysco_common::session::{Alias, Life, Two, part};
use dysco_common::siphash::Key;
use dysco_common::tcp::{ACK, PSH, RST, SYN};
use dysco_common::{Counter, EventKind, FlowKey, FlowRef, Path, Session, State, Translation};

use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, mirror, nets, on};

const KEY: Key = [1, 2];
const KEY_ID: u64 = 0xfeed;
const TOKEN: Token = [3, 4];
/// The slot of the new path.
const NEXT: u32 = 4;
/// Highest numbers of the local end and of the other, in the local end's space.
const SENT: u32 = 0xffff_fff0;
const RECEIVED: u32 = 90_000;

fn translation() -> Translation {
    Translation {
        seq_out: 1000,
        seq_in: 0x8000_0000,
        wscale_local: 7,
        wscale_local_at_peer: 3,
        wscale_remote_at_peer: 2,
        wscale_remote: 5,
        ..Translation::default()
    }
}

/// Returns a number that the end has sent, as it is on the wire. The function for received
/// numbers follows.
fn sent(number: u32) -> u32 {
    number.wrapping_add(translation().seq_out)
}

fn received(number: u32) -> u32 {
    number.wrapping_sub(translation().seq_in)
}

/// Returns the new path, by a firewall that has the proxy's address.
fn path(net: &Net) -> FlowKey {
    let end = |ip, port| SocketAddr::new(ip, port);
    FlowKey::new(
        end(net.new_local.ip(), 61_004),
        end(net.remote.ip(), net.new_remote.port()),
    )
}

/// Name that other hosts have for it: the bypass's five-tuple, from the client's own address.
fn name(net: &Net) -> FlowKey {
    let local = SocketAddr::new(net.local.ip(), net.new_local.port());
    FlowKey::new(local, net.new_remote)
}

/// Returns a session that its proxy has left, with an entry of another path.
fn given(net: &Net, state: State, opened: bool) -> Programs {
    let mut p = Programs::with(net, State::NewPath, translation());
    let second = Session {
        state: state as u32,
        key: net.key(),
        alias: Alias::of(&name(net)),
        path: if opened {
            path(net)
        } else {
            FlowKey::default()
        },
        ifindex: 1,
        translation: translation(),
        snd_max: SENT,
        snd_seen: SENT,
        rcv_max: RECEIVED,
        rcv_ack: SENT,
        other_path: SLOT + 1,
        two: Two {
            chained: 2,
            part: part::NEXT,
            ..Two::default()
        },
        life: Life {
            opened_here: opened.into(),
            ..Life::default()
        },
        ..Session::default()
    };
    p.put(NEXT, &second);
    if opened {
        p.flow(path(net), NEXT, Path::New);
    }
    p
}

/// Returns a session that takes that path and has not seen it carry anything yet.
fn taking(net: &Net) -> Programs {
    let mut p = given(net, State::Switching, true);
    let mut s = p.session(NEXT);
    s.two.part = part::CURRENT;
    p.put(NEXT, &s);
    p.flow(net.key(), NEXT, Path::Old);
    p
}

/// A packet that arrives by the path.
fn comes(net: &Net, seq: u32, ack: u32, flags: u8) -> Frame {
    Frame {
        seq,
        ack,
        flags,
        window: u16::MAX,
        ..on(mirror(path(net)), &net.received())
    }
}

#[test]
fn the_answer_to_its_syn_is_judged_in_the_ends_own_numbers() {
    for net in nets() {
        let mut p = given(&net, State::Joining, true);
        let of = |ack| comes(&net, received(RECEIVED), ack, SYN | ACK);
        p.drops(Way::In, &of(sent(SENT + 1)), Counter::DroppedStray);
        // A SYNPROXY's.
        let window = Frame {
            window: 0,
            ..of(sent(SENT))
        };
        p.drops(Way::In, &window, Counter::DroppedStray);
        assert_eq!(p.events(), []);
        assert_eq!(p.run(Way::In, &of(sent(SENT)).bytes()).0, DROP);
        let reported = [(EventKind::Arrived, NEXT), (EventKind::PathOpen, NEXT)];
        assert_eq!(p.events(), reported);
        let s = p.session(NEXT);
        assert_eq!((s.rcv_max, s.rcv_ack), (RECEIVED + 1, SENT));
    }
}

#[test]
fn what_opens_windows_teaches_the_ends_own_numbers() {
    for net in nets() {
        let mut p = given(&net, State::Joining, true);
        let primer = comes(&net, received(RECEIVED + 500), sent(SENT - 40), ACK | PSH);
        // The daemon waits for the packet behind it, which shows the length, unless that is
        // lost.
        for reported in [vec![], vec![(EventKind::Primed, NEXT)]] {
            assert_eq!(p.run(Way::In, &primer.bytes()).0, DROP);
            assert_eq!(p.events(), reported);
            let s = p.session(NEXT);
            assert_eq!((s.rcv_max, s.rcv_ack), (RECEIVED + 500, SENT - 40));
        }
    }
}

/// One wake-up serves both packets that open a path.
#[test]
fn the_first_of_an_opening_is_reported_with_what_shows_the_length() {
    for net in nets() {
        let mut p = given(&net, State::Joining, true);
        let announced = received(RECEIVED);
        let primer = comes(&net, announced, sent(SENT), ACK | PSH);
        let long = Frame {
            payload: vec![0; 1400],
            ..comes(&net, announced.wrapping_sub(1401), sent(SENT), ACK | PSH)
        };
        for packet in [&primer, &long] {
            assert_eq!(p.run(Way::In, &packet.bytes()).0, DROP);
        }
        let reported = [(EventKind::Arrived, NEXT), (EventKind::Primed, NEXT)];
        assert_eq!(p.events(), reported);
        // The other end shows more later.
        assert_eq!(p.run(Way::In, &primer.bytes()).0, DROP);
        assert_eq!(p.events(), [(EventKind::Primed, NEXT)]);
    }
}

/// The packet is as long as a segment may be. It is for no stack, however often it comes, until
/// the path before is given up.
#[test]
fn what_shows_the_length_is_for_no_stack() {
    for net in nets() {
        let mut p = given(&net, State::Joining, true);
        let announced = received(RECEIVED);
        let of = |begins: u32| Frame {
            payload: vec![0; 1400],
            ..comes(&net, begins, sent(SENT), ACK | PSH)
        };
        let long = of(announced.wrapping_sub(1401));
        for state in [State::Joining, State::Switching] {
            let mut s = p.session(NEXT);
            s.state = state as u32;
            p.put(NEXT, &s);
            assert_eq!(p.run(Way::In, &long.bytes()).0, DROP);
            // Its content is judged while the path opens.
            let mut reported = vec![(EventKind::Arrived, NEXT), (EventKind::Primed, NEXT)];
            if state == State::Switching {
                reported.remove(0);
            }
            assert_eq!(p.events(), reported);
            let s = p.session(NEXT);
            assert!(dysco_common::two_paths::has_length(&s));
            assert_eq!((s.rcv_max, s.rcv_ack), (RECEIVED, SENT));
        }
        // Bytes that were sent before must still be delivered if they come by this path.
        let repeated = of(announced.wrapping_sub(1400));
        assert_eq!(p.run(Way::In, &repeated.bytes()).0, OK);
    }
}

/// The end that awaits the path knows the session by the name that both ends agreed on, and by
/// no other.
#[test]
fn it_is_awaited_by_its_name() {
    for net in nets() {
        for (session, fits) in [(name(&net), true), (net.key(), false)] {
            let mut p = given(&net, State::Joining, false);
            p.key(KEY_ID, KEY);
            p.own(net.new_local.ip().into());
            p.awaits(TOKEN, NEXT);
            let mut payload = Payload::default();
            payload.fill(
                KEY_ID,
                &mirror(net.key()),
                &mirror(session),
                &mirror(path(&net)),
                0,
            );
            payload.set_rest(&Default::default(), &WireElement::live(TOKEN));
            payload.mac = payload.proof(KEY);
            let syn = Frame {
                payload: payload.to_bytes().to_vec(),
                ..comes(&net, received(RECEIVED + 70), 0, SYN)
            };
            if !fits {
                p.drops(Way::In, &syn, Counter::ChainTaken);
                continue;
            }
            assert_eq!(p.run(Way::In, &syn.bytes()).0, DROP);
            let s = p.session(NEXT);
            assert_eq!((s.path, s.rcv_max), (path(&net), RECEIVED + 71));
            // A retransmission is recognized by its number.
            p.run(Way::In, &syn.bytes());
            let joins = (EventKind::Joins, NEXT);
            assert_eq!(p.events(), [(EventKind::Arrived, NEXT), joins, joins]);
        }
    }
}

/// Both paths have the numbers of the wire. Bytes that the new one has not carried are
/// acknowledged on the path before.
#[test]
fn data_is_translated_on_both_paths() {
    for net in nets() {
        let mut p = taking(&net);
        let data = Frame {
            seq: SENT,
            ack: RECEIVED,
            window: 64,
            payload: b"hello".to_vec(),
            ..net.sent()
        };
        let wire = Frame {
            seq: sent(SENT),
            ack: received(RECEIVED),
            window: 64 << 4,
            ..data.clone()
        };
        p.becomes(Way::Out, &data, REDIRECT, &on(path(&net), &wire));
        let only = |ack, frame: &Frame| Frame {
            ack,
            payload: Vec::new(),
            ..frame.clone()
        };
        p.becomes(
            Way::Out,
            &only(RECEIVED + 1, &data),
            REDIRECT,
            &on(net.path(), &only(received(RECEIVED + 1), &wire)),
        );
        let back = Frame {
            seq: RECEIVED,
            ack: SENT,
            window: 80,
            payload: b"hello".to_vec(),
            ..net.received()
        };
        let wire = Frame {
            seq: received(RECEIVED),
            ack: sent(SENT),
            window: 80 << 3,
            ..back.clone()
        };
        for path in [net.path(), path(&net)] {
            p.becomes(Way::In, &on(mirror(path), &wire), OK, &back);
        }
        assert_eq!(p.session(NEXT).rcv_max, RECEIVED + 5);
    }
}

/// A path that is being opened delivers nothing to an end: neither a reset of another host
/// there, nor a packet that takes the path before the other end may.
#[test]
fn nothing_is_heard_of_it_before_it_has_opened() {
    for net in nets() {
        for opened in [false, true] {
            let mut p = given(&net, State::Joining, true);
            let mut s = p.session(NEXT);
            s.life.opened_here = opened.into();
            s.two.new_data = opened.into();
            p.put(NEXT, &s);
            p.flow(net.key(), SLOT, Path::Old);
            let of = |flags| comes(&net, received(RECEIVED), sent(SENT), flags);
            for flags in [RST, RST | ACK] {
                p.drops(Way::In, &of(flags), Counter::DroppedStray);
                assert_eq!(p.events(), [(EventKind::Rejected, NEXT)]);
            }
            p.drops(Way::In, &of(ACK), Counter::DroppedStray);
            let s = p.session(NEXT);
            assert_eq!((s.state, s.life.reset), (State::Joining as u32, 0));
            assert_eq!(p.session(SLOT).life.reset, 0);
        }
    }
}

/// A path that was just taken resets nothing before it has carried a packet of the other end, or
/// the other end is known to have taken it. A path that was taken back resets nothing either.
#[test]
fn a_path_that_has_carried_nothing_resets_nothing() {
    for net in nets() {
        let mut p = taking(&net);
        let reset = comes(&net, received(RECEIVED), sent(SENT), RST | ACK);
        p.drops(Way::In, &reset, Counter::DroppedStray);
        let data = Frame {
            payload: b"hello".to_vec(),
            ..comes(&net, received(RECEIVED), sent(SENT), ACK)
        };
        assert_eq!(p.run(Way::In, &data.bytes()).0, OK);
        let taken = p.session(NEXT);
        let mut back = taken;
        back.two.part = part::NEXT;
        p.put(NEXT, &back);
        p.drops(Way::In, &reset, Counter::DroppedStray);
        p.put(NEXT, &taken);
        assert_eq!(p.run(Way::In, &reset.bytes()).0, OK);
        assert_eq!(p.session(NEXT).life.reset & 1, 1);
    }
}

/// A packet that a departed proxy still sends does not belong to the path before.
#[test]
fn the_proxy_is_not_heard() {
    for net in nets() {
        let mut p = taking(&net);
        p.drops(Way::In, &net.received(), Counter::DroppedLateOld);
    }
}

/// The name is no path any longer, and does not become another session's.
#[test]
fn its_name_is_nobody_elses() {
    for net in nets() {
        let mut p = taking(&net);
        p.free([9]);
        p.flow_as(name(&net), FlowRef::alias(&name(&net), NEXT));
        let before = p.session(NEXT);
        let comes = on(mirror(name(&net)), &net.new_received());
        let leaves = on(name(&net), &net.new_sent());
        p.passes(Way::In, &comes);
        p.passes(Way::Out, &leaves);
        for (way, syn) in [(Way::In, comes), (Way::Out, leaves)] {
            let syn = Frame { flags: SYN, ..syn };
            assert_eq!(p.run(way, &syn.bytes()).0, PASS);
        }
        assert_eq!(p.session(NEXT).new_in, before.new_in);
        assert_eq!(p.session(9).state, State::Free as u32);
        assert!(p.find(&name(&net)).unwrap().is_alias());
    }
}
