//! Tests of what an end receives of its proxy: FINs, resets and acknowledgements.

use dysco_common::State;
use dysco_common::session::Session;
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor, Ending, OldIncoming};

use super::{
    CUT_IN, CUT_OUT, carried, cut, new_incoming, old_incoming, proxy_ends, segment, session,
    taken_back,
};

#[test]
fn the_proxys_own_end_is_not_the_sessions() {
    let s = cut();
    let fin = |seq, len| segment(seq, 900, len, ACK | FIN);
    assert!(proxy_ends(&s, &fin(CUT_IN, 0)));
    assert!(proxy_ends(&s, &fin(CUT_IN - 10, 10)));
    assert!(!proxy_ends(&session(), &fin(CUT_IN, 0)));
    // If data precedes the FIN, the data is delivered without it.
    let OldIncoming::Deliver(Segment { flags, .. }) = old_incoming(&s, &fin(CUT_IN - 10, 10), 0)
    else {
        panic!("its data is wanted");
    };
    assert_eq!(flags, ACK);
    assert_eq!(old_incoming(&s, &fin(CUT_IN, 0), 0), OldIncoming::Drop);

    let rst = segment(CUT_IN, 900, 0, RST);
    assert!(
        !proxy_ends(&s, &rst),
        "not everything is relayed: a real reset"
    );
    let mut done = cut();
    (done.rcv_ack, done.rcv_max) = (CUT_OUT, CUT_IN);
    assert!(
        !proxy_ends(&done, &rst),
        "the highest byte is here, but there may be a hole before it"
    );
    done.two.drained = 1;
    assert!(proxy_ends(&done, &rst));
    assert_eq!(old_incoming(&done, &rst, 0), OldIncoming::Drop);
}

/// An anchor whose daemon died before it received the cutoff knows where the new path's data
/// begins.
#[test]
fn a_cutoff_that_was_never_announced_is_taken_from_the_data() {
    let mut s = session();
    s.two.cut_set = 1;
    let fin = segment(CUT_IN, 900, 0, ACK | FIN);
    assert!(!proxy_ends(&s, &fin), "nothing heard yet");
    (s.two.new_data, s.new_low) = (1, CUT_IN);
    assert!(proxy_ends(&s, &fin));
    let before = segment(CUT_IN - 1, 900, 0, ACK | FIN);
    assert!(!proxy_ends(&s, &before));
}

/// Bytes from the cutoff on, which the proxy received in a segment across it.
#[test]
fn the_proxy_is_not_believed_past_the_cutoff() {
    let mut s = cut();
    let past = segment(4000, CUT_OUT + 50, 0, ACK);
    let delivered = |s: &Session| match old_incoming(s, &past, 0) {
        OldIncoming::Deliver(Segment { ack, .. }) => ack,
        other => panic!("{other:?}"),
    };
    assert_eq!(delivered(&s), CUT_OUT);
    assert_eq!(delivered(&session()), CUT_OUT + 50);
    s.rcv_ack = CUT_OUT + 50;
    let raised = new_incoming(&s, &segment(CUT_IN, 700, 10, ACK), 0);
    assert_eq!(raised.ack, CUT_OUT);
}

/// An unneeded proxy closes, and the other anchor's cutoff never arrived.
#[test]
fn a_reset_of_a_proxy_that_nobody_needs_is_its_own() {
    let rst = segment(CUT_IN, CUT_OUT, 0, ACK | RST);
    let mut s = carried();
    (s.two.cut_in_set, s.snd_max, s.rcv_ack) = (0, CUT_OUT + 10, CUT_OUT - 1);
    assert!(!proxy_ends(&s, &rst));
    two_paths::acknowledge(&mut s, &segment(CUT_OUT, CUT_IN + 300, 0, ACK));
    assert!(
        !proxy_ends(&s, &rst),
        "it holds what the other end waits for"
    );
    let judged = new_incoming(&s, &segment(CUT_IN, CUT_OUT, 0, ACK), 0);
    two_paths::record_peer_ack(Anchor::Local, &mut s, CUT_OUT, &judged);
    assert!(proxy_ends(&s, &rst));
    s.muted = 1;
    assert!(!proxy_ends(&s, &rst), "it may be needed again");
}

/// An end that receives no data on the new path learns from the number of an acknowledgement there
/// that the proxy holds nothing for it.
#[test]
fn an_acknowledgement_tells_where_the_old_path_ends() {
    let rst = segment(CUT_IN, CUT_OUT, 0, ACK | RST);
    let mut s = cut();
    (s.two.cut_in_set, s.snd_max, s.rcv_max) = (0, CUT_OUT, CUT_IN);
    for (acked, all) in [(CUT_IN - 1, false), (CUT_IN, true)] {
        s.snd_ack = acked;
        let ack = segment(CUT_IN, CUT_OUT, 0, ACK);
        let judged = new_incoming(&s, &ack, 0);
        two_paths::record_data(Anchor::Local, &mut s, &ack);
        two_paths::record_peer_ack(Anchor::Local, &mut s, CUT_OUT, &judged);
        assert_eq!(s.two.new_data != 0, all);
        assert_eq!(two_paths::has_old(Anchor::Local, &s, CUT_IN + 1), all);
        assert_eq!(proxy_ends(&s, &rst), all);
    }
}

/// A new path that has not shown what it has to may be dead.
#[test]
fn a_reset_is_real_as_long_as_the_new_path_has_to_announce_something() {
    let rst = segment(CUT_IN, CUT_OUT, 0, ACK | RST);
    let mut s = cut();
    (s.two.drained, s.rcv_ack, s.peer_sent_max) = (1, CUT_OUT, CUT_IN - 1);
    let ends = |s: &Session| two_paths::ending(Anchor::Local, s, &rst) == Ending::Relayed;
    assert!(!ends(&s));
    s.peer_sent_max = CUT_IN;
    assert!(ends(&s));
    s.muted = 1;
    assert!(!ends(&s), "it may be needed again");
}

#[test]
fn a_reset_before_all_is_acknowledged_is_real() {
    let mut s = cut();
    (s.rcv_ack, s.rcv_max) = (CUT_OUT - 1, CUT_IN);
    s.two.drained = 1;
    assert!(!proxy_ends(&s, &segment(CUT_IN, 900, 0, RST)));
    (s.rcv_ack, s.rcv_max) = (CUT_OUT, CUT_IN - 1);
    s.two.drained = 0;
    assert!(!proxy_ends(&s, &segment(CUT_IN, 900, 0, RST)));
}

/// The proxy asks whether there is room again, and gives up without an answer. All data that it was
/// sent was acknowledged long before.
#[test]
fn the_proxys_probes_are_heard() {
    let mut s = cut();
    s.snd_max = CUT_OUT;
    let judged = new_incoming(&s, &segment(CUT_IN, CUT_OUT, 0, ACK), 0);
    two_paths::record_peer_ack(Anchor::Local, &mut s, CUT_OUT, &judged);
    let heard = |s: &Session, seq| old_incoming(s, &segment(seq, CUT_OUT, 0, ACK), 0);
    let probe = heard(&s, s.snd_ack - 1);
    assert!(
        matches!(probe, OldIncoming::Deliver(Segment { seq, ack: CUT_OUT, .. }) if seq == s.snd_ack - 1),
        "{probe:?}"
    );
    assert_eq!(heard(&s, s.snd_ack), OldIncoming::Withhold);
    // An acknowledgement of the proxy is no question to an end that is ahead of it.
    (s.two.new_data, s.new_low) = (1, CUT_IN);
    (s.rcv_max, s.snd_ack) = (CUT_IN, CUT_IN + 300);
    assert_eq!(heard(&s, CUT_IN), OldIncoming::Withhold);
    assert!(matches!(heard(&s, CUT_IN - 1), OldIncoming::Deliver(_)));
}

#[test]
fn a_reset_behind_a_segment_across_the_cutoff_is_believed() {
    let mut s = carried();
    (s.two.new_data, s.state) = (1 | 2, State::TwoPaths as u32);
    (s.peer_sent_max, s.snd_ack, s.rcv_max) = (CUT_IN, CUT_IN, CUT_IN + 300);
    assert!(two_paths::may_reset(&s, CUT_IN + 300));
    assert!(!two_paths::may_reset(&s, CUT_IN + 301));
}

/// The new path has carried more to the end than the proxy, which acknowledges retransmissions of
/// the end.
#[test]
fn an_end_that_is_ahead_hears_what_the_proxy_acknowledges() {
    let mut s = carried();
    (s.rcv_max, s.snd_ack) = (CUT_IN, CUT_IN + 300);
    let number = |s: &Session, seg: &Segment| match old_incoming(s, seg, 0) {
        OldIncoming::Deliver(Segment { seq, .. }) => seq,
        other => panic!("{other:?}"),
    };
    let ack = segment(CUT_IN, CUT_OUT, 0, ACK);
    assert_eq!(number(&s, &ack), CUT_IN + 300);
    assert_eq!(number(&s, &Segment { flags: RST, ..ack }), CUT_IN + 300);
    // The proxy has sent little beyond, and no reset comes from there.
    let beyond = |s: &Session, by, flags| {
        let max = s.rcv_max.wrapping_add(by);
        let s = Session {
            rcv_max: max,
            snd_ack: max.wrapping_add(1),
            ..*s
        };
        number(&s, &segment(max, CUT_OUT, 0, flags)).wrapping_sub(max)
    };
    assert_eq!(beyond(&s, 1 << 19, ACK), 1);
    assert_eq!(beyond(&s, (1 << 19) + 1, ACK), 0);
    assert_eq!(beyond(&s, 1, RST), 0);
    // Retransmissions of the proxy are unchanged, and so are its probes, ...
    let again = segment(CUT_IN - 10, CUT_OUT, 10, ACK);
    assert_eq!(number(&s, &again), CUT_IN - 10);
    let probe = segment(CUT_IN - 1, CUT_OUT, 0, ACK);
    assert_eq!(number(&s, &probe), CUT_IN - 1);
    // ... and all segments if the end is not ahead.
    s.snd_ack = CUT_IN;
    assert_eq!(number(&s, &ack), CUT_IN);
    (s.snd_ack, s.two.new_data) = (CUT_IN + 300, 0);
    assert_eq!(number(&s, &ack), CUT_IN);
}

#[test]
fn a_reset_that_no_end_believes_ends_nothing_in_two_paths() {
    let mut s = session();
    s.state = State::TwoPaths as u32;
    // The end has acknowledged up to 4000, and received up to 4500 on the old path.
    let believed = |s: &Session| [3999, 4000, 4500, 4501].map(|seq| two_paths::may_reset(s, seq));
    assert_eq!(believed(&s), [false, true, true, false]);
    s.peer_sent_max = 4501;
    assert_eq!(believed(&s), [false, true, true, true]);
    // On a single path the limit is what arrived there. While the session is being opened there is
    // no limit.
    s.state = State::Tracked as u32;
    assert_eq!(believed(&s), [false, true, true, false]);
    s.state = State::Opening as u32;
    assert_eq!(believed(&s), [true; 4]);
}

#[test]
fn the_proxys_end_is_the_sessions_once_it_is_taken_back() {
    let fin = segment(CUT_IN, CUT_OUT, 0, ACK | FIN);
    assert!(proxy_ends(&carried(), &fin));
    assert!(!proxy_ends(&taken_back(carried()), &fin));
}
