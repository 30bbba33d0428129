//! A SYN's own data (TCP Fast Open), if there is no room for it beside the payload.

use std::process::Command;

use dysco_common::Counter;
use dysco_common::chain::PAYLOAD;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::bench::{OK, REDIRECT, Way};
use crate::frame::{Frame, mirror, on};

/// The link's MTU, in bytes with the IP headers.
const MTU: usize = 1500;

/// Gives the test runs a link of this width.
fn narrow() {
    unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
    let words = format!("link set lo mtu {MTU}");
    let done = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "ip {words}");
}

#[test]
fn data_that_has_no_room_beside_the_payload_is_left_out() {
    narrow();
    for h in all() {
        let mut p = h.opener(&[h.middlebox]);
        let (plain, alone) = (h.syn(b""), h.steered(b"", &[]));
        let room = 14 + MTU - plain.bytes().len() - PAYLOAD;
        for (data, left_out) in [(room, 0), (room + 1, 1), (MTU - 100, 2)] {
            let data = vec![0xa5; data];
            let want = if left_out == 0 {
                h.steered(&data, &[])
            } else {
                alone.clone()
            };
            p.becomes(Way::Out, &h.syn(&data), REDIRECT, &want);
            assert_eq!(p.count(Counter::ChainDataLeftOut), left_out);
        }
        assert_eq!(p.count(Counter::ChainSent), 3);

        // No host has received the data: the sender learns that, and sends it like any other
        // data.
        let path = p.session(FIRST).path;
        let answer = h.syn_ack();
        p.becomes(Way::In, &on(mirror(path), &answer), OK, &answer);
        let again = Frame {
            seq: answer.ack,
            ack: answer.seq.wrapping_add(1),
            payload: vec![0x5a; room + 1],
            ..h.net.sent()
        };
        p.becomes(Way::Out, &again, REDIRECT, &on(path, &again));
    }
}
