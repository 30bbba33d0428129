//! The acknowledgements and windows that an end receives between two paths.

use dysco_common::tcp::{ACK, RST};
use dysco_common::{Counter, EventKind, State};

use super::{CUT_IN, ENDED, OUT, SENT, before_the_cut, cut, delivered, from_peer, sent};
use crate::bench::{OK, Programs, SLOT, Way};
use crate::frame::{Frame, Options, nets, options};

#[test]
fn the_old_window_is_bounded() {
    for net in nets() {
        for state in [State::Tracked, State::TwoPaths] {
            let mut p = before_the_cut(&net);
            p.change(|s| (s.state, s.clamp) = (state as u32, 300));
            for which in [Options::None, Options::Timestamps, Options::Sack] {
                let received = Frame {
                    seq: CUT_IN - 1000,
                    ack: SENT - 2000,
                    options: options(which, 1, 2, SENT - 1000),
                    ..net.received()
                };
                p.becomes(
                    Way::In,
                    &received,
                    OK,
                    &Frame {
                        window: 300,
                        ..received.clone()
                    },
                );
                p.passes(
                    Way::In,
                    &Frame {
                        window: 300,
                        ..received
                    },
                );
            }
        }
    }
}

#[test]
fn a_new_ack_is_raised_to_what_the_proxy_gave() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| (s.rcv_ack, s.tsval_out, s.tsval_in) = (SENT - 100, 77, 55));
        let data = Frame {
            options: options(Options::Sack, 1, 2, SENT + OUT),
            window: 3000,
            ..from_peer(&net, CUT_IN, SENT - 2000, 50)
        };
        // The blocks are above a hole that has been acknowledged already: they become NOPs.
        let mut stripped = options(Options::Sack, 1, 2, 0);
        stripped[14..].fill(1);
        // Nor is the proxy's clock echoed, which lags behind this end's.
        stripped[8..12].copy_from_slice(&77u32.to_be_bytes());
        let want = Frame {
            ack: SENT - 100,
            window: 3000 - 1900,
            options: stripped,
            ..delivered(&net, &data)
        };
        p.becomes(Way::In, &data, OK, &want);
        let s = p.session(SLOT);
        assert_eq!((s.two.new_received, s.two.edge_set), (1, 1));
        assert_eq!((s.edge, s.peer_ack), (SENT + 1000, SENT - 2000));

        let repeats = Frame {
            window: 3000,
            ..from_peer(&net, CUT_IN + 50, SENT - 2000, 0)
        };
        p.drops(Way::In, &repeats, Counter::AckWithheld);

        let caught_up = from_peer(&net, CUT_IN + 50, SENT, 0);
        let mut want = delivered(&net, &caught_up);
        want.options[8..12].copy_from_slice(&77u32.to_be_bytes());
        // Within the window of an end that does not read, and by the proxy's clock.
        want.seq = s.rcv_max;
        want.options[4..8].copy_from_slice(&55u32.to_be_bytes());
        p.becomes(Way::In, &caught_up, OK, &want);

        p.change(|s| s.two.drained = 1);
        let behind = from_peer(&net, CUT_IN + 50, SENT, 0);
        let mut want = delivered(&net, &behind);
        want.options[8..12].copy_from_slice(&77u32.to_be_bytes());
        p.becomes(Way::In, &behind, OK, &want);
    }
}

/// An end that does not read takes its window back, after the proxy has used it.
#[test]
fn an_ack_is_within_a_window_that_was_taken_back() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.tsval_in = 55);
        let seq_of = |p: &mut Programs, window: u16| {
            let reported = Frame {
                window,
                ..sent(&net, SENT, CUT_IN - 2000, 0)
            };
            p.run(Way::Out, &reported.bytes());
            let ack = from_peer(&net, CUT_IN, SENT, 0);
            let (verdict, got) = p.run(Way::In, &ack.bytes());
            assert_eq!(verdict, OK);
            let at = ack.l4() + 4;
            u32::from_be_bytes(got[at..at + 4].try_into().unwrap())
        };
        assert_eq!(seq_of(&mut p, 1000), CUT_IN - 1000);
        assert_eq!(seq_of(&mut p, 999), CUT_IN - 2000);
        assert_eq!(seq_of(&mut p, 0), CUT_IN - 2000);
        assert_eq!(seq_of(&mut p, 1000), CUT_IN - 1000);
    }
}

#[test]
fn an_old_ack_that_was_overtaken_is_raised_or_withheld() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| {
            (s.two.edge_set, s.edge, s.peer_ack) = (1, SENT + 400, SENT + 100);
        });
        let data = Frame {
            seq: CUT_IN - 1000,
            ack: SENT,
            options: options(Options::Sack, 1, 2, SENT),
            payload: vec![3; 20],
            ..net.received()
        };
        let mut stripped = data.options.clone();
        stripped[14..].fill(1);
        let want = Frame {
            ack: SENT + 100,
            window: 300,
            options: stripped,
            ..data.clone()
        };
        p.becomes(Way::In, &data, OK, &want);
        p.drops(
            Way::In,
            &Frame {
                payload: vec![],
                ..data
            },
            Counter::AckWithheld,
        );
    }
}

/// The new path has carried more to the end than the proxy has sent it. The proxy's
/// acknowledgement or reset is sent under a number that the end accepts.
#[test]
fn an_end_that_is_ahead_hears_the_proxy() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| {
            (s.two.new_received, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
            (s.rcv_max, s.snd_ack, s.peer_sent_max) = (CUT_IN, CUT_IN + 500, CUT_IN + 500);
        });
        let behind = |flags, seq| Frame {
            seq,
            ack: SENT,
            flags,
            options: options(Options::Timestamps, 1, 2, 0),
            ..net.received()
        };
        p.becomes(
            Way::In,
            &behind(ACK, CUT_IN),
            OK,
            &behind(ACK, CUT_IN + 500),
        );
        // A packet that asks for an answer keeps its number.
        p.passes(Way::In, &behind(ACK, CUT_IN - 1));
        p.becomes(
            Way::In,
            &behind(ACK | RST, CUT_IN),
            OK,
            &behind(ACK | RST, CUT_IN + 500),
        );
        assert_eq!(p.session(SLOT).life.reset, ENDED);
        assert_eq!(p.events(), [(EventKind::Broken, SLOT)]);
    }
}
