//! A relayed session: packets go from one end to the other.

use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::{Counter, Session, State};

use super::{
    BACK, GIVEN, OTHER, OUT, SENT, from_client, from_server, joined, to_client, to_server,
    with_limit,
};
use crate::bench::{DROP, Programs, REDIRECT, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Options, nets};

pub(super) const TTL: usize = 22;
pub(super) const HOP_LIMIT: usize = 21;

/// Checks that the frame leaves in this form, one hop further.
#[track_caller]
pub(super) fn relays(p: &mut Programs, frame: &Frame, want: &Frame) {
    let got = p.run(Way::In, &frame.bytes());
    assert_eq!(got, (REDIRECT, with_limit(want, 63)), "{frame:?}\n{want:?}");
}

#[test]
fn what_an_end_sends_goes_to_the_other() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        for which in ALL_OPTIONS {
            for len in [0, 77, 1400] {
                let sent = from_client(&net, SENT, GIVEN, len, which);
                relays(&mut p, &sent, &to_server(&net, &sent, which));
            }
        }
        let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
        relays(&mut p, &sent, &to_client(&net, &sent));
        let (a, b) = (p.session(SLOT), p.session(OTHER));
        assert_eq!((a.rcv_max, a.rcv_ack), (SENT + 1400, GIVEN));
        assert_eq!((b.bytes_in, b.new_in), (1000, 1));
        assert_eq!(p.count(Counter::Relayed), 16);
    }
}

#[test]
fn a_packet_at_the_end_of_its_way_is_dropped() {
    for net in nets() {
        let p = joined(&net, State::Relay);
        for which in [Options::Timestamps, Options::Sack] {
            let sent = from_client(&net, SENT, GIVEN, 10, which);
            let before = p.count(Counter::DroppedHopLimit);
            assert_eq!(p.run(Way::In, &with_limit(&sent, 1)).0, DROP);
            assert_eq!(p.count(Counter::DroppedHopLimit), before + 1);
            assert_eq!(p.run(Way::In, &with_limit(&sent, 2)).0, REDIRECT);
        }
    }
}

/// A later change cuts behind these bytes.
#[test]
fn what_an_end_sends_counts_where_the_other_entry_is_taken_back() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        let tracked = Session {
            state: State::Tracked as u32,
            joined: 0,
            ..p.session(OTHER)
        };
        p.put(OTHER, &tracked);
        let sent = from_client(&net, SENT, GIVEN - 200, 100, Options::Timestamps);
        p.passes(Way::In, &sent);
        let s = p.session(SLOT);
        assert_eq!((s.rcv_max, s.rcv_ack), (SENT + 100, GIVEN - 200));
        for (flags, life) in [(ACK | FIN, (1, 0)), (RST, (1, 1))] {
            let ends = Frame {
                flags,
                options: vec![],
                ..from_client(&net, SENT + 100, GIVEN, 0, Options::None)
            };
            p.passes(Way::In, &ends);
            let s = p.session(SLOT);
            assert_eq!((s.life.fin_in, s.life.reset), life);
        }
    }
}

/// The proxy's sockets may still send: nobody receives that.
#[test]
fn the_stack_is_not_heard() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        for flags in [ACK, ACK | FIN, RST] {
            let own = Frame {
                flags,
                ..net.sent()
            };
            p.drops(Way::Out, &own, Counter::DroppedLateOld);
        }
    }
}
