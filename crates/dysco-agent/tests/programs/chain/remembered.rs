//! SYNs that are remembered between their arrival and their departure.

use std::net::SocketAddr;

use dysco_common::chain::{Chain, Payload, WireElement};
use dysco_common::{Counter, FlowKey, mark};

use super::*;
use crate::bench::{OK, PASS, Programs, REDIRECT, Way};
use crate::frame::{Frame, on};

/// Number of SYNs that are remembered.
const KEPT: u32 = 16_384;

/// Returns the SYN of another session of the same two hosts, as it arrives and as it leaves.
fn syns(h: &Hosts, number: u16) -> (Frame, Frame) {
    let port = |a: SocketAddr| SocketAddr::new(a.ip(), a.port() + number);
    let session = FlowKey::new(port(h.net.local), h.net.remote);
    let path = h.subsession(FIRST as u16 + number);
    let mut payload = Payload::default();
    payload.fill(KEY_ID, &session, &session, &path, SENT);
    payload.set_rest(&Chain::of(&[h.middlebox]).unwrap(), &WireElement::default());
    payload.mac = payload.proof(KEY);
    let syn = Frame {
        seq: ISN.wrapping_add(0x0100_0000 * u32::from(number)),
        ..h.syn(b"")
    };
    let comes = Frame {
        payload: payload.to_bytes().to_vec(),
        ..on(path, &syn)
    };
    (comes, on(session, &syn))
}

/// The ring wraps around, and so does the count of all SYNs. An overwritten record leads no SYN
/// anywhere, and a retransmitted SYN is remembered anew.
#[test]
fn as_many_syns_are_remembered_as_there_is_room_for() {
    for h in all() {
        let mut p = h.middlebox();
        p.free(FIRST + 4..FIRST + 20);
        p.hop(h.net.remote.ip().into(), &h.hop(h.net.new_remote));
        let all: Vec<_> = (0..4).map(|number| syns(&h, number)).collect();
        let comes = |p: &Programs, i: usize| {
            assert_eq!(p.run(Way::In, &all[i].0.bytes()), (OK, all[i].1.bytes()));
        };
        // By the number, and then by the mark.
        let goes = |p: &mut Programs, i: usize| {
            let mark = mark::of_slot(FIRST + i as u32).unwrap();
            [0, mark].map(|mark| p.run_with_mark(Way::Out, &all[i].1.bytes(), mark).0)
        };
        // The last two places, and the first of the next round.
        p.syns_seen(0_u32.wrapping_sub(2));
        for i in 0..3 {
            comes(&p, i);
        }
        p.syns_seen(1_u32.wrapping_add(KEPT - 3));
        comes(&p, 3);
        // The last SYN has the place of the first.
        assert_eq!(goes(&mut p, 0), [PASS; 2]);
        for i in 1..4 {
            assert_eq!(goes(&mut p, i), [REDIRECT; 2], "SYN {i}");
        }
        comes(&p, 0);
        assert_eq!(goes(&mut p, 0), [REDIRECT; 2]);
        assert_eq!(p.count(Counter::ChainSent), 8);
    }
}
