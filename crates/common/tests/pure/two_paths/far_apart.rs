//! One direction drains for a long time while the other continues: numbers that were close are then
//! more than 2 GiB apart.

use dysco_common::tcp::{ACK, PSH, Segment};
use dysco_common::two_paths::{self, Anchor};
use dysco_common::{Path, State};

use super::*;

#[test]
fn a_cutoff_far_behind_is_not_announced_as_one_far_ahead() {
    let mut s = unannounced();
    (s.two.cut_set, s.cut_out, s.snd_max, s.edge) = (1, 5000, 5000, 5000);
    let shows = |ack| segment(76, ack, 0, ACK | PSH);
    let answer = |s: &Session, ack| two_paths::answer_opening(s, &shows(ack)).seq;
    assert_eq!(answer(&s, 5000), 5000);
    // The other direction drains for long.
    for _ in 0..9 {
        s.snd_max = s.snd_max.wrapping_add(1 << 29);
        let ack = s.snd_max.wrapping_sub(1 << 10);
        let judged = two_paths::new_incoming(Anchor::Local, &s, &segment(76, ack, 0, ACK), 0);
        two_paths::record_peer_ack(Anchor::Local, &mut s, ack, &judged);
        assert_eq!(two_paths::announces_to(&s), s.snd_max);
        assert_eq!(answer(&s, ack), s.snd_max);
    }
}

/// The same for incoming data, while no daemon reports the end of the old path.
#[test]
fn what_the_old_path_carries_stays_acknowledged() {
    let mut s = cut();
    (s.two.cut_in_set, s.cut_in, s.peer_sent_max) = (0, 0, CUT_IN);
    two_paths::record_data(Anchor::Local, &mut s, &segment(CUT_IN + 10, 900, 10, ACK));
    two_paths::acknowledge(&mut s, &segment(CUT_OUT, CUT_IN + 9, 0, ACK));
    s.snd_ack = CUT_IN - 1;
    assert!(!two_paths::has_old(Anchor::Local, &s, CUT_IN), "a hole");
    for quarter in 0..=12u32 {
        let now = CUT_IN.wrapping_add(20).wrapping_add(quarter << 30);
        two_paths::record_data(Anchor::Local, &mut s, &segment(now - 10, 900, 10, ACK));
        two_paths::record_announced(&mut s, now);
        let ack = segment(CUT_OUT, now, 0, ACK);
        two_paths::acknowledge(&mut s, &ack);
        s.snd_ack = now;
        assert!(two_paths::has_old(Anchor::Local, &s, CUT_IN), "{quarter}");
        let mut notified = s;
        (notified.two.cut_in_set, notified.cut_in) = (1, CUT_IN);
        assert!(two_paths::drains(&notified, &ack), "{quarter}");
        assert!(two_paths::has_announced_all(&notified), "{quarter}");
    }
}

/// The proxy holds data from before the cutoff for an end that does not read, while the other
/// direction continues.
#[test]
fn an_end_that_is_far_ahead_is_not_taken_for_one_far_behind() {
    for ahead in [
        300u32,
        (1 << 31) - 1,
        1 << 31,
        (1 << 31) + 5_000_000,
        3 << 30,
    ] {
        let mut s = carried();
        s.two.new_data |= 2;
        (s.rcv_max, s.snd_ack) = (CUT_IN, CUT_IN.wrapping_add(ahead));
        s.peer_sent_max = s.snd_ack;
        // The end retransmits data that the proxy has not received.
        let early = segment(CUT_OUT - 100, s.snd_ack, 100, ACK);
        let out = outgoing(&s, &early);
        assert_eq!((out.path, out.ack), (Path::Old, CUT_IN), "{ahead}");
        assert!(out.copy.is_some(), "{ahead}: the new path hears of it");
        let old = |seq, flags| old_incoming(&s, &segment(seq, CUT_OUT, 0, flags), 0);
        match old(CUT_IN, ACK) {
            OldIncoming::Deliver(Segment { seq, .. }) => assert_eq!(seq, s.snd_ack, "{ahead}"),
            other => panic!("{ahead}: {other:?}"),
        }
        s.state = State::TwoPaths as u32;
        assert!(two_paths::may_reset(&s, s.snd_ack), "{ahead}");
        assert!(!two_paths::may_reset(&s, s.snd_ack + 1), "{ahead}");
        assert_eq!(two_paths::acked_far_ahead(&s), ahead >= 1 << 31, "{ahead}");
        // The proxy receives acknowledgements of the end's part of a segment across the cutoff.
        s.rcv_max = CUT_IN + 200;
        assert_eq!(outgoing(&s, &early).ack, CUT_IN + ahead.min(200), "{ahead}");
    }
}

/// The old path continues if nothing is received on the new one any more, and may have holes.
#[test]
fn a_path_that_may_be_taken_again_hears_what_is_acknowledged() {
    let mut s = carried();
    (s.two.new_data, s.muted) = (1 | 2, 1);
    (s.rcv_max, s.snd_ack) = (CUT_IN + 30_000, CUT_IN + 10_000);
    let seg = segment(CUT_OUT, s.snd_ack, 0, ACK);
    let heard = |s: &Session| outgoing(s, &seg).copy.map(|copy| copy.ack);
    assert_eq!(heard(&s), Some(s.snd_ack));
    s.muted = 0;
    assert_eq!(heard(&s), Some(s.snd_ack), "a hole");
    // The same if the old path has carried so much since that this number shows nothing more.
    s.muted = 1;
    s.rcv_max = CUT_IN.wrapping_sub((1 << 19) - 5);
    s.snd_ack = s.rcv_max.wrapping_sub(15);
    let seg = segment(CUT_OUT, s.snd_ack, 0, ACK);
    let copy = outgoing(&s, &seg).copy.map(|copy| copy.ack);
    assert_eq!(copy, Some(s.snd_ack));
}
