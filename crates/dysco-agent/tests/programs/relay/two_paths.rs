//! Two paths on the host of the proxy: the stack, and the other end.

use dysco_common::{Counter, Offer, State};

use super::relayed::relays;
use super::{
    BACK, GIVEN, OTHER, OUT, SENT, from_client, from_server, joined, to_client, to_server,
};
use crate::bench::{OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Options, nets, sack};

#[test]
fn before_the_cut_all_is_the_stacks() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.passes(
            Way::In,
            &from_client(&net, SENT, GIVEN, 100, Options::Timestamps),
        );
        p.passes(
            Way::In,
            &from_server(&net, GIVEN - BACK, SENT + OUT - 4500, 0),
        );
        p.passes(Way::Out, &net.sent());
        assert_eq!(p.session(SLOT).two.cut_set, 0);
    }
}

#[test]
fn from_the_cutoff_on_data_goes_to_the_other() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| s.two.cut_armed = 1);
        let old = from_client(&net, SENT - 100, GIVEN, 100, Options::Timestamps);
        p.passes(Way::In, &old);
        // The server has not received all earlier data: the packet has the server's own numbers.
        let new = from_client(&net, SENT, GIVEN, 100, Options::Timestamps);
        relays(&mut p, &new, &to_server(&net, &new, Options::Timestamps));
        assert_eq!(p.session(SLOT).cut_out, SENT);
        let other = p.session(OTHER);
        assert_eq!((other.two.new_received, other.new_low), (1, SENT + OUT));
    }
}

/// The proxy has acknowledged bytes that the server has not received yet. The client gets no
/// older acknowledgement, no SACK block, and no window beyond the server's.
#[test]
fn acks_of_the_other_end_are_raised() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| (s.two.cut_set, s.cut_out, s.snd_ack) = (1, SENT, SENT - 200));
        let mut server = p.session(OTHER);
        (server.two.cut_set, server.cut_out) = (1, GIVEN - BACK);
        server.joined = SLOT + 1;
        p.put(OTHER, &server);
        let behind = Frame {
            window: 4000,
            options: vec![],
            ..from_server(&net, GIVEN - BACK, SENT + OUT - 1000, 10)
        };
        let want = Frame {
            ack: SENT - 200,
            window: 4000 - 800,
            options: vec![],
            ..to_client(&net, &behind)
        };
        relays(&mut p, &behind, &want);
        // The proxy's own acknowledgements do not exceed its numbers for new bytes.
        let own = Frame {
            ack: SENT + 900,
            ..net.sent()
        };
        let reported = Frame {
            ack: SENT,
            window: 0,
            ..own.clone()
        };
        let (verdict, got) = p.run(Way::Out, &own.bytes());
        assert_eq!(verdict, PASS);
        let ack = |bytes: &[u8]| bytes[own.l4() + 8..own.l4() + 12].to_vec();
        assert_eq!(ack(&got), ack(&reported.bytes()));
    }
}

/// The client takes its window back, after the proxy has used it.
#[test]
fn an_ack_is_within_a_window_that_was_taken_back() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.cut_in_set, s.cut_in) = (1, GIVEN + 700);
        });
        let mut server = p.session(OTHER);
        server.joined = SLOT + 1;
        p.put(OTHER, &server);
        let seq_of = |p: &mut Programs, window: u16| {
            let reported = Frame {
                window,
                ..from_client(&net, SENT, GIVEN - 500, 0, Options::Timestamps)
            };
            p.run(Way::In, &reported.bytes());
            let ack = from_server(&net, GIVEN + 700 - BACK, SENT + OUT, 0);
            let (verdict, got) = p.run(Way::In, &ack.bytes());
            assert_eq!(verdict, REDIRECT);
            let at = ack.l4() + 4;
            u32::from_be_bytes(got[at..at + 4].try_into().unwrap())
        };
        assert_eq!(seq_of(&mut p, 500), GIVEN);
        assert_eq!(seq_of(&mut p, 499), GIVEN - 500);
        assert_eq!(seq_of(&mut p, 500), GIVEN);
    }
}

/// The server has sent the client more than the proxy had. An acknowledgement of the proxy is
/// sent under a number that the client accepts.
#[test]
fn an_end_that_is_ahead_hears_the_proxy() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.new_received, s.two.new_data, s.new_low) = (1, 1, GIVEN);
            s.rcv_ack = GIVEN + 500;
        });
        let own = |seq| Frame {
            seq,
            ack: SENT,
            ..net.sent()
        };
        p.becomes(Way::Out, &own(GIVEN), PASS, &own(GIVEN + 500));
        p.passes(Way::Out, &own(GIVEN - 1));
    }
}

/// The client has received bytes of the server beyond those that the proxy has sent. This host's
/// connection tracking calls an acknowledgement with such a block invalid.
#[test]
fn the_proxy_hears_no_blocks_of_what_was_relayed() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out, s.two.cut_in_set, s.cut_in) = (1, SENT, 1, GIVEN + 900);
            (s.two.new_data, s.new_low) = (1, GIVEN + 900);
        });
        let again = |options| Frame {
            options,
            ..from_client(&net, SENT - 100, GIVEN - 400, 100, Options::Timestamps)
        };
        let relayed = again(sack(GIVEN + 900, GIVEN + 1900));
        let blind = again(sack(GIVEN, GIVEN));
        p.becomes(Way::In, &relayed, OK, &blind);
        let own = again(sack(GIVEN - 200, GIVEN));
        p.becomes(Way::In, &own, OK, &own);
        // Nothing has arrived by the other path.
        p.change(|s| s.two.new_data = 0);
        p.passes(Way::In, &again(sack(GIVEN - 200, GIVEN + 1)));
    }
}

#[test]
fn the_clamp_bounds_what_the_stack_announces() {
    for net in nets() {
        let mut p = joined(&net, State::Tracked);
        p.change(|s| s.clamp_remote = 100);
        let own = Frame {
            ack: SENT,
            ..net.sent()
        };
        let bound = Frame {
            window: 100,
            ..own.clone()
        };
        p.becomes(Way::Out, &own, PASS, &bound);
        // The window of an arriving packet is not bounded.
        p.passes(
            Way::In,
            &from_client(&net, SENT, GIVEN, 10, Options::Timestamps),
        );
        assert_eq!(p.session(SLOT).local, Offer::default());
    }
}

/// The proxy holds bytes for the client, and has offered the server a window of its own.
#[test]
fn data_beyond_the_window_of_an_end_is_dropped() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| s.remote.mss = 1460);
        let mut server = p.session(OTHER);
        (server.two.cut_set, server.cut_out) = (1, GIVEN - BACK);
        p.put(OTHER, &server);
        p.set_edge(SLOT, GIVEN + 100);
        let data = |at, len| from_server(&net, GIVEN - BACK + at, SENT + OUT - 3000, len);
        relays(&mut p, &data(100, 9), &to_client(&net, &data(100, 9)));
        p.drops(Way::In, &data(101, 9), Counter::BeyondWindow);
        // An acknowledgement needs no room.
        let (verdict, _) = p.run(Way::In, &data(101, 0).bytes());
        assert_eq!(verdict, REDIRECT);
        // The client makes room.
        let ack = from_client(&net, SENT, GIVEN, 0, Options::Timestamps);
        p.run(Way::In, &ack.bytes());
        assert_eq!(p.edge(SLOT), GIVEN + u32::from(net.received().window));
        assert_eq!(p.run(Way::In, &data(101, 9).bytes()).0, REDIRECT);
        // The window is unknown.
        p.set_edge(SLOT, 0);
        assert_eq!(p.run(Way::In, &data(1 << 20, 9).bytes()).0, REDIRECT);
    }
}

/// From the lock on, before the two sessions are joined.
#[test]
fn the_window_of_an_end_is_taken_in_while_it_is_locked() {
    for net in nets() {
        let mut p = joined(&net, State::Tracked);
        let ack = from_client(&net, SENT, GIVEN, 0, Options::Timestamps);
        p.passes(Way::In, &ack);
        assert_eq!(p.edge(SLOT), 0);
        p.change(|s| s.clamp_remote = 100);
        p.passes(Way::In, &ack);
        let edge = GIVEN + u32::from(net.received().window);
        assert_eq!(p.edge(SLOT), edge);
        // An older window lowers nothing.
        let old = Frame {
            window: 10,
            ..ack.clone()
        };
        p.passes(Way::In, &old);
        assert_eq!(p.edge(SLOT), edge);
    }
}
