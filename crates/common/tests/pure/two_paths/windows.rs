//! The windows and acknowledgements that an end receives while both paths are open.

use dysco_common::session::Session;
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::{self, OldIncoming};

use super::{CUT_IN, CUT_OUT, after_window, cut, new_incoming, old_incoming, segment, session};

/// The far end is far ahead of the data that the proxy has relayed. A local end that does not read
/// would discard an acknowledgement with that number.
#[test]
fn a_pure_ack_is_not_beyond_what_the_old_path_sent() {
    let s = cut();
    let seq = |s: &Session, seg: &Segment| new_incoming(s, seg, 0).seq;
    assert_eq!(seq(&s, &segment(CUT_IN, 950, 0, ACK)), s.rcv_max);
    assert_eq!(seq(&s, &segment(s.rcv_max - 1, 950, 0, ACK)), s.rcv_max - 1);
    // Data keeps its number, and so does a reset.
    assert_eq!(seq(&s, &segment(CUT_IN, 950, 1, ACK)), CUT_IN);
    assert_eq!(seq(&s, &segment(CUT_IN, 950, 0, ACK | FIN)), CUT_IN);
    assert_eq!(seq(&s, &segment(CUT_IN, 950, 0, RST)), CUT_IN);
    // Once the old path has drained, no segment arrives with its clock.
    let mut drained = s;
    drained.two.drained = 1;
    assert_eq!(seq(&drained, &segment(CUT_IN, 950, 0, ACK)), CUT_IN);
    let mut perhaps = s;
    (perhaps.two.cut_in_set, perhaps.two.new_data) = (0, 1);
    assert_eq!(seq(&perhaps, &segment(CUT_IN, 950, 0, ACK)), CUT_IN);
}

/// The end has taken back a window that the proxy has already used.
#[test]
fn a_pure_ack_is_not_beyond_a_window_that_was_taken_back() {
    let s = cut();
    let delivered = |window, flags| Segment {
        window,
        ..segment(0, s.snd_ack, 0, flags)
    };
    let seq = |s: &Session| new_incoming(s, &segment(CUT_IN, 950, 0, ACK), 0).seq;
    let sent = (s.rcv_max - s.snd_ack) as u16;
    let shut = after_window(&s, &delivered(sent - 1, ACK));
    assert_eq!(seq(&shut), s.snd_ack);
    // A reset offers no window, and a later segment offers more.
    assert_eq!(
        seq(&after_window(&shut, &delivered(sent, ACK | RST))),
        s.snd_ack
    );
    assert_eq!(seq(&after_window(&shut, &delivered(sent, ACK))), s.rcv_max);
    // The acknowledgement on the new path stays valid.
    let mut also = shut;
    also.two.new_ack_set |= two_paths::VALID;
    let open = after_window(&also, &delivered(sent, ACK));
    assert_eq!(open.two.new_ack_set, two_paths::VALID);
}

/// A window of zero would be taken for the far end's.
#[test]
fn a_raised_pure_ack_needs_room() {
    let mut s = cut();
    s.rcv_ack = CUT_OUT;
    let shut = new_incoming(&s, &segment(CUT_IN, 800, 0, ACK), 0);
    assert_eq!((shut.deliver, shut.window), (false, 0));
}

#[test]
fn the_clamp_bounds_the_window() {
    let mut s = session();
    let window = |s: &Session, wscale| match old_incoming(s, &segment(0, 900, 0, ACK), wscale) {
        OldIncoming::Deliver(Segment { window, .. }) => window,
        other => panic!("{other:?}"),
    };
    assert_eq!(window(&s, 7), 100);
    s.clamp = 50;
    assert_eq!((window(&s, 7), window(&s, 0)), (50, 50));
    s.clamp = 6400;
    assert_eq!(window(&s, 14), 100);
}

#[test]
fn the_peers_edge_bounds_the_old_window() {
    let mut s = cut();
    s.two.edge_set = 1;
    (s.edge, s.peer_ack) = (940, 800);
    let OldIncoming::Deliver(Segment { ack, window, .. }) =
        old_incoming(&s, &segment(0, 900, 0, ACK), 0)
    else {
        panic!("an ack with news");
    };
    assert_eq!((ack, window), (900, 40));
    // An acknowledgement that the new path has overtaken has no news. With data it has.
    s.peer_ack = 920;
    assert_eq!(
        old_incoming(&s, &segment(4500, 900, 0, ACK), 0),
        OldIncoming::Withhold
    );
    let OldIncoming::Deliver(Segment { ack, window, .. }) =
        old_incoming(&s, &segment(0, 900, 10, ACK), 0)
    else {
        panic!("data is delivered");
    };
    assert_eq!((ack, window), (920, 20));
}

#[test]
fn what_the_new_path_says_before_the_old_drained_is_raised() {
    let mut s = cut();
    s.rcv_ack = 990;
    let data = new_incoming(&s, &segment(CUT_IN, 700, 10, ACK), 0);
    assert_eq!(
        (data.deliver, data.ack, data.window, data.strip_sack),
        (true, 990, 0, true)
    );
    assert_eq!((data.edge, data.peer_ack), (800, 700));
    let pure = new_incoming(&s, &segment(CUT_IN, 950, 0, ACK), 0);
    assert_eq!((pure.deliver, pure.ack, pure.window), (true, 990, 60));
    (s.two.edge_set, s.edge, s.peer_ack) = (1, pure.edge, pure.peer_ack);
    let again = new_incoming(&s, &segment(CUT_IN, 950, 0, ACK), 0);
    assert!(!again.deliver, "it would count as a duplicate");
    let caught_up = new_incoming(&s, &segment(CUT_IN, 990, 0, ACK), 0);
    assert_eq!(
        (caught_up.deliver, caught_up.ack, caught_up.strip_sack),
        (true, 990, false)
    );
}
