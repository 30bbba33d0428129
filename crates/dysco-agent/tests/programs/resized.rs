//! A path without the middlebox that has changed the size of the stream. The left end's entry of
//! this path has the delta, that of the path before has none.

use std::net::SocketAddr;

use dysco_common::chain::{Payload, Token, WireElement};
use dysco_common::delta::Delta;
use dysco_common::session::{Life, Two, part};
use dysco_common::siphash::Key;
use dysco_common::tcp::{ACK, PSH, SYN};
use dysco_common::{Counter, EventKind, FlowKey, Path, Session, State, Translation};

use crate::bench::{DROP, OK, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, mirror, nets, on, sack};

const KEY: Key = [1, 2];
const KEY_ID: u64 = 0xfeed;
const TOKEN: Token = [3, 4];
/// The slot of the path without the middlebox.
const NEXT: u32 = 4;
/// Highest numbers of the local end and of the other, in the local end's space.
const SENT: u32 = 0xffff_fff0;
const RECEIVED: u32 = 90_000;
/// 20 bytes added on the way to the server, 7 removed on the way back.
const DELTA: Delta = Delta {
    to_server: 20,
    to_client: 7u32.wrapping_neg(),
};

/// Numbers as they are behind the middlebox.
fn sent(number: u32) -> u32 {
    number.wrapping_add(20)
}

fn received(number: u32) -> u32 {
    number.wrapping_add(7)
}

fn direct(net: &Net) -> FlowKey {
    let end = |ip, port| SocketAddr::new(ip, port);
    FlowKey::new(
        end(net.new_local.ip(), 61_004),
        end(net.remote.ip(), net.new_remote.port()),
    )
}

/// Returns a session that passes the middlebox, with an entry of a path that does not.
fn leaving(net: &Net, state: State, taken: bool) -> Programs {
    let mut p = Programs::with(net, State::NewPath, Translation::default());
    p.change(|s| s.two.chained = 2);
    let part = if taken { part::CURRENT } else { part::NEXT };
    let second = Session {
        state: state as u32,
        key: net.key(),
        path: direct(net),
        ifindex: 1,
        translation: Translation::default().beyond(&DELTA),
        snd_max: SENT,
        snd_seen: SENT,
        rcv_max: RECEIVED,
        rcv_ack: SENT,
        other_path: SLOT + 1,
        two: Two {
            chained: 2,
            part,
            ..Two::default()
        },
        life: Life {
            opened_here: 1,
            ..Life::default()
        },
        ..Session::default()
    };
    p.put(NEXT, &second);
    p.flow(direct(net), NEXT, Path::New);
    if taken {
        p.flow(net.key(), NEXT, Path::Old);
    }
    p
}

/// A packet that opens the path has the numbers behind the middlebox, and teaches the end's
/// numbers.
#[test]
fn it_opens_in_the_numbers_behind_the_middlebox() {
    for net in nets() {
        let mut p = leaving(&net, State::Joining, false);
        let comes = |seq, ack, flags| Frame {
            seq,
            ack,
            flags,
            window: u16::MAX,
            ..on(mirror(direct(&net)), &net.received())
        };
        let answer = comes(received(RECEIVED), sent(SENT), SYN | ACK);
        assert_eq!(p.run(Way::In, &answer.bytes()).0, DROP);
        let reported = [(EventKind::Arrived, NEXT), (EventKind::PathOpen, NEXT)];
        assert_eq!(p.events(), reported);
        let primer = comes(received(RECEIVED + 500), sent(SENT - 40), ACK | PSH);
        for reported in [vec![], vec![(EventKind::Primed, NEXT)]] {
            assert_eq!(p.run(Way::In, &primer.bytes()).0, DROP);
            assert_eq!(p.events(), reported);
            let s = p.session(NEXT);
            assert_eq!((s.rcv_max, s.rcv_ack), (RECEIVED + 500, SENT - 40));
        }
    }
}

/// The end that awaits the path knows the session by its own five-tuple, which is the same at
/// both ends.
#[test]
fn it_is_awaited_by_the_sessions_own_name() {
    for net in nets() {
        let mut p = leaving(&net, State::Joining, false);
        let mut s = p.session(NEXT);
        (s.path, s.translation) = (FlowKey::default(), Translation::default());
        s.life.opened_here = 0;
        p.put(NEXT, &s);
        p.key(KEY_ID, KEY);
        p.own(net.new_local.ip().into());
        p.awaits(TOKEN, NEXT);
        let path = FlowKey::new(
            SocketAddr::new(net.new_local.ip(), 61_009),
            direct(&net).remote(),
        );
        let mut payload = Payload::default();
        let session = mirror(net.key());
        payload.fill(KEY_ID, &session, &session, &mirror(path), 0);
        payload.set_rest(&Default::default(), &WireElement::live(TOKEN));
        payload.mac = payload.proof(KEY);
        let syn = Frame {
            seq: RECEIVED + 70,
            ack: 0,
            flags: SYN,
            payload: payload.to_bytes().to_vec(),
            ..on(mirror(path), &net.received())
        };
        assert_eq!(p.run(Way::In, &syn.bytes()).0, DROP);
        assert_eq!(p.session(NEXT).path, path);
        let reported = [(EventKind::Arrived, NEXT), (EventKind::Joins, NEXT)];
        assert_eq!(p.events(), reported);
    }
}

/// A packet that takes the new path is translated. One on the path before is not, because the
/// middlebox translates it.
#[test]
fn each_path_has_its_own_numbers() {
    for net in nets() {
        let mut p = leaving(&net, State::Switching, true);
        let data = Frame {
            seq: SENT,
            ack: RECEIVED,
            payload: b"hello".to_vec(),
            ..net.sent()
        };
        let behind = Frame {
            seq: sent(SENT),
            ack: received(RECEIVED),
            ..data.clone()
        };
        p.becomes(Way::Out, &data, REDIRECT, &on(direct(&net), &behind));
        // Acknowledged on the path by which it came: by the middlebox, in the end's own numbers.
        let ack = Frame {
            ack: RECEIVED + 1,
            payload: Vec::new(),
            ..data.clone()
        };
        p.becomes(Way::Out, &ack, REDIRECT, &on(net.path(), &ack));
        let back = Frame {
            seq: RECEIVED,
            ack: SENT,
            payload: b"hello".to_vec(),
            ..net.received()
        };
        p.becomes(Way::In, &on(mirror(net.path()), &back), OK, &back);
        let behind = Frame {
            seq: received(RECEIVED),
            ack: sent(SENT),
            ..back.clone()
        };
        p.becomes(Way::In, &on(mirror(direct(&net)), &behind), OK, &back);
        assert_eq!(p.session(NEXT).rcv_max, RECEIVED + 5);
    }
}

/// Once the path is the only one, SACK blocks are translated like the acknowledgement. Clocks
/// and windows are unchanged.
#[test]
fn blocks_go_with_the_ack() {
    for net in nets() {
        let mut p = leaving(&net, State::NewPath, true);
        let ack = Frame {
            seq: SENT,
            ack: RECEIVED,
            options: sack(RECEIVED + 1000, RECEIVED + 2000),
            ..net.sent()
        };
        let behind = Frame {
            seq: sent(SENT),
            ack: received(RECEIVED),
            options: sack(received(RECEIVED + 1000), received(RECEIVED + 2000)),
            ..ack.clone()
        };
        p.becomes(Way::Out, &ack, REDIRECT, &on(direct(&net), &behind));
        let back = Frame {
            seq: RECEIVED,
            ack: SENT - 100,
            options: sack(SENT - 50, SENT - 10),
            ..net.received()
        };
        let behind = Frame {
            seq: received(RECEIVED),
            ack: sent(SENT - 100),
            options: sack(sent(SENT - 50), sent(SENT - 10)),
            ..back.clone()
        };
        p.becomes(Way::In, &on(mirror(direct(&net)), &behind), OK, &back);
        assert_eq!(p.count(Counter::DroppedUnparsed), 0);
    }
}
