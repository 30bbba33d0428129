//! A proxy that dies, or closes, between two paths.

use dysco_common::State;
use dysco_common::session::{Session, life};
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor, CLOSES, Cutoff, Ending, Fins, OldIncoming};

use super::*;

fn fin(seq: u32, len: u32) -> Segment {
    segment(seq, 900, len, ACK | FIN)
}

fn delivered(s: &Session, seg: &Segment) -> Option<Segment> {
    match old_incoming(s, seg, 0) {
        OldIncoming::Deliver(delivered) => Some(delivered),
        OldIncoming::Drop | OldIncoming::Withhold => None,
    }
}

fn taught(s: &Session, seg: &Segment) -> Option<Segment> {
    same(s, |at, s| two_paths::taught(at, s, seg))
}

/// Returns the session after its end has acknowledged all data before this number.
fn acked(mut s: Session, ack: u32) -> Session {
    (s.snd_ack, s.rcv_max) = (ack, ack);
    s
}

#[test]
fn a_fin_with_bytes_missing_is_a_reset_with_the_number_that_the_end_expects() {
    for missing in [1, 10, 1000] {
        let end = CUT_IN - missing;
        let s = acked(cut(), end);
        assert_eq!(ending(&s, &fin(end, 0)), Ending::Short);
        let reset = delivered(&s, &fin(end, 0)).unwrap();
        assert_eq!((reset.seq, reset.flags), (end, RST | ACK), "{missing}");
        assert!(two_paths::breaks(Anchor::Local, &s, &reset));
        assert!(two_paths::breaks(Anchor::Remote, &mirrored(&s), &reset));
        assert_eq!(two_paths::undelivered(Anchor::Local, &s), missing);
        assert_eq!(
            two_paths::undelivered(Anchor::Remote, &mirrored(&s)),
            missing
        );
    }
}

/// The kernel of the proxy retransmits the FIN until it is acknowledged, or reset.
#[test]
fn data_before_such_a_fin_is_delivered_first() {
    let s = acked(cut(), CUT_IN - 100);
    let last = fin(CUT_IN - 100, 90);
    let data = delivered(&s, &last).unwrap();
    assert_eq!((data.seq, data.len, data.flags), (CUT_IN - 100, 90, ACK));
    assert_eq!(taught(&s, &last).unwrap().flags, ACK);
    // With a hole before the FIN, or nothing acknowledged yet, no reset would be accepted.
    assert_eq!(delivered(&s, &fin(CUT_IN - 10, 0)), None);
    assert_eq!(taught(&s, &fin(CUT_IN - 10, 0)), None);
    let s = acked(cut(), CUT_IN - 10);
    assert!(delivered(&s, &fin(CUT_IN - 10, 0)).unwrap().has(RST));
}

#[test]
fn the_other_ends_own_fin_passes() {
    let mut s = acked(cut(), CUT_IN - 1);
    s.two.cut_in_set |= CLOSES;
    let own = fin(CUT_IN - 1, 0);
    assert_eq!(delivered(&s, &own), Some(own));
    assert_eq!(taught(&s, &own), Some(own));
    // The proxy dies with the last bytes before the FIN.
    let s = acked(s, CUT_IN - 2);
    assert_eq!(ending(&s, &fin(CUT_IN - 2, 0)), Ending::Short);
    assert_eq!(two_paths::undelivered(Anchor::Local, &s), 1);
    // The end had not closed: the last byte is missing.
    let s = acked(cut(), CUT_IN - 1);
    assert_eq!(ending(&s, &own), Ending::Short);
}

#[test]
fn an_end_closed_before_its_cut_if_nothing_came_after_its_fin() {
    let mut s = cut();
    let cutoff = |s: &Session| same(s, |at, s| two_paths::cutoff(at, &ended(at, s)));
    let at = |closes| Cutoff {
        at: CUT_OUT,
        closes,
    };
    assert_eq!(cutoff(&s), at(true));
    s.snd_max = CUT_OUT + 1;
    assert_eq!(cutoff(&s), at(false), "by the new path");
    s = cut();
    assert_eq!(two_paths::cutoff(Anchor::Local, &s), at(false));
    assert_eq!(at(true).moved(7).at, CUT_OUT + 7);
}

/// The end's FIN was lost on the way to a remote anchor's host, and an acknowledgement after it was
/// not. The cutoff is after the FIN, and does not show it.
#[test]
fn a_fin_that_comes_after_the_cut_is_the_other_ends_own_if_it_ends_at_the_cutoff() {
    let client = mirrored(&cut());
    assert!(two_paths::is_at_cutoff(&client, &fin(CUT_OUT - 1, 0)));
    assert!(
        !two_paths::is_at_cutoff(&client, &fin(CUT_OUT, 0)),
        "by the new path"
    );
    assert!(
        !two_paths::is_at_cutoff(&session(), &fin(CUT_OUT - 1, 0)),
        "not cut"
    );

    let mut server = mirrored(&acked(cut(), CUT_IN - 1));
    let own = fin(CUT_IN - 1, 0);
    let judged = |s: &Session| two_paths::ending(Anchor::Remote, s, &own);
    assert_eq!(judged(&server), Ending::Short, "nobody has seen it");
    server.life.fin_out = life::SEEN;
    assert_eq!(judged(&server), Ending::Short, "it came by the new path");
    server.life.fin_out |= life::AT_CUTOFF;
    assert_eq!(judged(&server), Ending::Passes);
    assert_eq!(two_paths::undelivered(Anchor::Remote, &server), 0);
    server.snd_max = CUT_IN;
    server.life.fin_out |= life::OLD_PATH;
    assert!(!two_paths::closed_before(Anchor::Remote, &server));
}

/// Returns the session after the end that the anchor acts for has sent a FIN.
fn ended(at: Anchor, s: &Session) -> Session {
    let mut s = *s;
    match at {
        Anchor::Local => s.life.fin_out = life::SEEN,
        Anchor::Remote => s.life.fin_in = life::SEEN,
    }
    s
}

/// A FIN that no other end has sent is the middlebox's own.
#[test]
fn fins_agree_where_each_that_was_heard_was_sent() {
    let seen = |sent, heard| Fins { sent, heard };
    let none = Fins::default();
    assert!(none.agree(none));
    // The FIN may still be under way.
    assert!(seen(true, false).agree(none) && none.agree(seen(true, false)));
    assert!(seen(true, false).agree(seen(false, true)));
    assert!(!seen(false, true).agree(none) && !none.agree(seen(false, true)));
    assert!(!seen(true, true).agree(seen(false, true)));
    for at in [Anchor::Local, Anchor::Remote] {
        assert_eq!(Fins::of(at, &session()), none);
        assert_eq!(Fins::of(at, &ended(at, &session())), seen(true, false));
    }
}

/// Between the other end's cut and the news of it, the owner of a FIN is unknown.
#[test]
fn a_fin_waits_until_the_cutoff_is_known() {
    let mut s = session();
    let it = fin(CUT_IN - 10, 0);
    let ending = |s: &Session| two_paths::ending(Anchor::Local, s, &it);
    assert_eq!(ending(&s), Ending::Passes, "the new path is not open");
    s.peer_sent_max = 4500;
    assert_eq!(ending(&s), Ending::Undecided);
    assert_eq!(delivered(&s, &it), None);
    // More data has arrived on the new path: the FIN is not the other end's.
    (s.two.new_data, s.new_low) = (1, CUT_IN);
    assert_eq!(ending(&s), Ending::Undecided);
    (s.two.cut_in_set, s.cut_in) = (1, CUT_IN);
    assert_eq!(ending(&s), Ending::Short);
    // Another session, whose change was taken back.
    s = session();
    (s.peer_sent_max, s.state) = (4500, State::Tracked as u32);
    assert_eq!(ending(&s), Ending::Passes);
    s.state = State::RelayTwoPaths as u32;
    assert_eq!(ending(&s), Ending::Undecided);
}

/// Any segment of the middlebox's kernel about a session that has ended is a reset.
#[test]
fn a_session_that_the_middlebox_has_ended_hears_no_clean_end() {
    let mut s = acked(cut(), CUT_IN);
    (s.two.drained, s.rcv_ack) = (1, CUT_OUT);
    let rst = segment(CUT_IN, 900, 0, RST);
    assert_eq!(ending(&s, &rst), Ending::Relayed);
    assert_eq!(ending(&s, &fin(CUT_IN, 0)), Ending::Relayed);
    s.life.reset = life::SEEN | life::BY_MIDDLEBOX;
    assert_eq!(ending(&s, &rst), Ending::Passes);
    assert_eq!(ending(&s, &fin(CUT_IN, 0)), Ending::Short);
    assert!(delivered(&s, &fin(CUT_IN, 0)).unwrap().has(RST));
}

#[test]
fn a_reset_of_the_old_path_ends_the_session_where_the_end_believes_it() {
    let s = acked(cut(), 4500);
    let breaks = |s: &Session, seq| {
        let rst = segment(seq, 900, 0, RST);
        assert_eq!(two_paths::taught(Anchor::Local, s, &rst), None);
        two_paths::breaks(Anchor::Local, s, &rst)
    };
    assert!(breaks(&s, 4500));
    assert!(!breaks(&s, 4499), "anybody may have sent it");
    let mut s = cut();
    s.state = State::Tracked as u32;
    let rst = segment(4500, 900, 0, RST);
    assert!(!two_paths::breaks(Anchor::Local, &s, &rst));
    assert_eq!(two_paths::taught(Anchor::Local, &s, &rst), Some(rst));
}

/// The middlebox's FIN was delivered before anything was held back.
#[test]
fn a_middlebox_that_closed_before_the_cut_has_ended_the_session() {
    let closed = |rcv_max: u32, closes: bool| {
        let mut s = cut();
        (s.rcv_max, s.life.fin_in) = (rcv_max, life::SEEN | life::OLD_PATH);
        s.two.cut_in_set = 1 | if closes { CLOSES } else { 0 };
        two_paths::closed_before(Anchor::Local, &s)
    };
    assert!(!closed(CUT_IN, true), "the other end's own");
    for rcv_max in [CUT_IN - 5, CUT_IN, CUT_IN + 1] {
        assert!(closed(rcv_max, false), "{rcv_max}");
    }
    assert!(closed(CUT_IN - 5, true));
    let mut s = cut();
    s.life.fin_in = life::SEEN;
    assert!(
        !two_paths::closed_before(Anchor::Local, &s),
        "by the new path"
    );
}
