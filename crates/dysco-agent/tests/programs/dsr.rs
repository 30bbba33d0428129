//! Replies that go directly to the client, while a relaying host carries the client's packets.

use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::{Counter, EventKind, State};

use crate::bench::{Programs, REDIRECT, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Options, nets};
use crate::translate::{T, outgoing};

#[test]
fn replies_are_translated_whole() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Return, T);
        for which in ALL_OPTIONS {
            for len in [0, 1, 100, 1399] {
                let (sent, wire) = outgoing(&net, which, len);
                p.becomes(Way::Out, &sent, REDIRECT, &wire);
            }
        }
        let count = 4 * ALL_OPTIONS.len();
        assert_eq!(p.count(Counter::Translated), count as u64);
        assert_eq!(p.session(SLOT).new_out, count as u32);
    }
}

/// The packet arrives on the session's own five-tuple, passes unchanged, and updates the entry.
#[test]
fn what_is_heard_passes() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Return, T);
        p.change(|s| (s.rcv_max, s.rcv_ack, s.snd_max) = (5000, 100, 9000));
        for which in ALL_OPTIONS {
            let frame = Frame {
                seq: 5000,
                ack: 7000,
                payload: vec![7; 300],
                options: crate::frame::options(which, 9, 8, 6000),
                ..net.received()
            };
            p.passes(Way::In, &frame);
        }
        let s = p.session(SLOT);
        assert_eq!((s.rcv_max, s.rcv_ack, s.bytes_in), (5300, 7000, 300));
    }
}

/// The relaying host must see the end.
#[test]
fn what_ends_a_session_goes_by_the_relaying_host() {
    for net in nets() {
        for (flags, event) in [(ACK | FIN, None), (RST, Some(EventKind::Reset))] {
            let mut p = Programs::with(&net, State::Return, T);
            let (sent, _) = outgoing(&net, Options::Timestamps, 10);
            p.passes(Way::Out, &Frame { flags, ..sent });
            let s = p.session(SLOT);
            assert_eq!(s.new_out, 0);
            assert_eq!(s.life.fin_out != 0, event.is_none());
            assert_eq!(s.life.reset != 0, event.is_some());
        }
    }
}

/// The session's own packets after translation, on their way out.
#[test]
fn what_is_on_the_wire_already_goes_on() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Return, T);
        p.passes(Way::Out, &outgoing(&net, Options::Timestamps, 10).1);
    }
}

/// No packet may return that way: a packet that does is for no session of this host.
#[test]
fn nothing_is_heard_on_the_short_way() {
    for net in nets() {
        let mut p = Programs::with(&net, State::Return, T);
        p.drops(Way::In, &net.new_received(), Counter::DroppedStray);
    }
}
