//! The path of an outgoing segment, its numbers, and the copy for the other path.

use dysco_common::Path;
use dysco_common::session::Session;
use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::two_paths::{self, Anchor};

use super::{CUT_IN, CUT_OUT, cut, new_incoming, outgoing, same, segment, session};

#[test]
fn before_the_cut_all_goes_the_old_way() {
    for seg in [
        segment(900, 4400, 100, ACK),
        segment(1000, 4400, 100, ACK),
        segment(1000, 4400, 0, ACK),
        segment(1000, 4400, 0, ACK | FIN),
        segment(1000, 4400, 0, RST),
    ] {
        let out = outgoing(&session(), &seg);
        assert_eq!(
            (out.path, out.seq, out.ack, out.copy),
            (Path::Old, seg.seq, 4400, None)
        );
    }
}

#[test]
fn data_takes_the_path_of_its_first_byte() {
    let path = |seq, len, flags| outgoing(&cut(), &segment(seq, 4400, len, ACK | flags)).path;
    assert_eq!(path(CUT_OUT - 1, 1, 0), Path::Old);
    assert_eq!(
        path(CUT_OUT - 1, 2, 0),
        Path::Old,
        "across the cutoff: whole, and old"
    );
    assert_eq!(path(CUT_OUT, 1, 0), Path::New);
    assert_eq!(
        path(CUT_OUT, 0, FIN),
        Path::New,
        "a FIN takes a number as data does"
    );
    assert_eq!(path(CUT_OUT - 1, 0, FIN), Path::Old);
}

#[test]
fn a_pure_ack_goes_new_and_its_copy_old_until_drained() {
    let mut s = cut();
    s.two.old_ack_set = 1;
    s.two.new_ack_set = 1;
    (s.old_ack, s.new_ack) = (4000, 4000);
    let seg = segment(1200, 6000, 0, ACK);
    let out = outgoing(&s, &seg);
    assert_eq!((out.path, out.seq, out.ack), (Path::New, 1200, 6000));
    let copy = out.copy.unwrap();
    assert_eq!(
        (copy.path, copy.seq, copy.ack, copy.flags),
        (Path::Old, CUT_OUT, 4500, ACK)
    );

    s.old_ack = 4500;
    assert!(
        outgoing(&s, &seg).copy.is_some(),
        "not drained: repeats count"
    );
    s.two.drained = 1;
    assert_eq!(outgoing(&s, &seg).copy, None);
    s.rcv_max = 4600;
    assert!(outgoing(&s, &seg).copy.is_some(), "there is news for it");
}

/// No other end would answer the probe: all data of the old path is acknowledged to the proxy.
#[test]
fn a_probe_keeps_its_number_once_the_peer_has_all() {
    let mut s = cut();
    let probe = segment(CUT_OUT - 1, 6000, 0, ACK);
    (s.two.edge_set, s.peer_ack) = (1, CUT_OUT - 1);
    assert_eq!(outgoing(&s, &probe).seq, CUT_OUT);
    s.peer_ack = CUT_OUT;
    assert_eq!(outgoing(&s, &probe).seq, CUT_OUT - 1);
    // A probe of the old path's data goes there too, drained or not.
    (s.two.drained, s.two.old_ack_set, s.old_ack) = (1, 1, 4500);
    let copy = outgoing(&s, &probe).copy.unwrap();
    assert_eq!((copy.path, copy.seq), (Path::Old, CUT_OUT - 1));
}

#[test]
fn an_ack_on_data_is_copied_only_where_it_is_news() {
    let mut s = cut();
    s.two.old_ack_set = 1;
    s.two.new_ack_set = 1;
    (s.old_ack, s.new_ack) = (4500, 6000);
    let new = |s: &Session, ack| outgoing(s, &segment(CUT_OUT, ack, 10, ACK));
    assert_eq!(new(&s, 6000).copy, None);
    s.old_ack = 4400;
    assert_eq!(new(&s, 6000).copy.unwrap().ack, 4500);
    let old = |s: &Session, ack| outgoing(s, &segment(CUT_OUT - 10, ack, 10, ACK));
    assert_eq!(old(&s, 6000).copy, None, "the new path heard it");
    let copy = old(&s, 6001).copy.unwrap();
    assert_eq!(
        (copy.path, copy.seq, copy.ack),
        (Path::New, s.snd_max, 6001)
    );
    assert_eq!(old(&s, 4500).copy, None, "all of it is the old path's");
}

#[test]
fn a_reset_takes_both_paths() {
    let out = outgoing(&cut(), &segment(1200, 6000, 0, RST | ACK));
    assert_eq!((out.path, out.ack), (Path::Old, 4500));
    let copy = out.copy.unwrap();
    assert_eq!(
        (copy.path, copy.seq, copy.ack, copy.flags),
        (Path::New, 1200, 6000, RST | ACK)
    );
}

/// The window was reduced to before the data that the end has sent. No other end accepts a reset
/// with the end of that window as its number.
#[test]
fn a_reset_from_behind_what_was_sent_has_the_number_that_is_expected() {
    let mut s = cut();
    s.snd_max = CUT_OUT + 300;
    s.life.reset = 1;
    let numbers = |s: &Session, seq, flags| {
        let out = outgoing(s, &segment(seq, 4500, 0, flags));
        (out.seq, out.copy.map(|copy| copy.seq))
    };
    for behind in [1, 301, 1000] {
        let seq = s.snd_max - behind;
        let raised = numbers(&s, seq, RST | ACK);
        assert_eq!(raised, (CUT_OUT, Some(s.snd_max)), "{behind}");
        // The reset for a segment that met no socket has the number that the other end expects.
        assert_eq!(numbers(&s, seq, RST), (seq, Some(seq)));
    }
    assert_eq!(numbers(&s, 0x8000_0000, RST | ACK).0, 0x8000_0000);
    // The segment that met no socket was delivered with the acknowledgement of the new path.
    let judged = new_incoming(&s, &segment(CUT_IN, CUT_OUT + 200, 0, ACK), 0);
    two_paths::record_peer_ack(Anchor::Local, &mut s, CUT_OUT + 200, &judged);
    assert_eq!(numbers(&s, s.peer_ack, RST), (CUT_OUT, Some(s.peer_ack)));
    assert_eq!(numbers(&s, s.peer_ack - 1, RST).0, s.peer_ack - 1);
    s.two.cut_set = 0;
    assert_eq!(numbers(&s, 800, RST | ACK), (s.snd_max, None));
    // Anybody may have sent the reset.
    s.life.reset = 0;
    assert_eq!(numbers(&s, 800, RST | ACK), (800, None));
}

#[test]
fn without_ack_nothing_is_acknowledged() {
    let s = cut();
    for seq in [CUT_OUT - 10, CUT_OUT] {
        assert_eq!(outgoing(&s, &segment(seq, 6000, 10, 0)).copy, None);
    }
}

/// The proxy may hold data for the other end, and takes a silent end for dead.
#[test]
fn the_proxy_is_answered_though_it_has_all_acknowledged() {
    let mut s = cut();
    (s.two.drained, s.two.old_ack_set, s.old_ack) = (1, 1, 4500);
    (s.rcv_max, s.snd_ack) = (4500, 4500);
    let answer = segment(CUT_OUT + 10, 6000, 0, ACK);
    assert_eq!(outgoing(&s, &answer).copy, None);
    let asks = |s: &Session, seq, flags| {
        let seg = segment(seq, CUT_OUT, 0, flags);
        same(s, |at, s| two_paths::asks(at, s, &seg))
    };
    assert!(asks(&s, 4499, ACK));
    assert!(!asks(&s, 4500, ACK), "what acknowledges waits for nothing");
    assert!(!asks(&s, 4499, RST));
    s.two.old_ack_set |= two_paths::ASKED;
    let copy = outgoing(&s, &answer).copy.unwrap();
    assert_eq!((copy.path, copy.seq, copy.ack), (Path::Old, CUT_OUT, 4500));
    // Before that the proxy receives all that the end sends.
    s.two.drained = 0;
    assert!(!asks(&s, 4499, ACK));
}

/// The proxy has received bytes beyond the cutoff, in a segment across it, and acknowledged them.
#[test]
fn a_proxy_that_has_got_more_hears_what_is_acknowledged() {
    let mut s = cut();
    s.rcv_ack = CUT_OUT + 500;
    let old = |s: &Session, flags| {
        let out = outgoing(s, &segment(CUT_OUT + 900, CUT_IN, 0, flags));
        match (out.path, out.copy) {
            (Path::Old, _) => out.seq,
            (_, Some(copy)) => copy.seq,
            (_, None) => panic!("{out:?}"),
        }
    };
    assert_eq!(old(&s, ACK), CUT_OUT + 500);
    s.life.reset = 1;
    s.snd_max = CUT_OUT + 1000;
    assert_eq!(old(&s, ACK | RST), CUT_OUT + 500);
    // A reset that answers an acknowledgement up to the cutoff is ignored as well.
    let answers = outgoing(&s, &segment(CUT_OUT, 0, 0, RST));
    assert_eq!((answers.path, answers.seq), (Path::Old, CUT_OUT + 500));
    // No segment is that long: an acknowledgement of so much is not the proxy's.
    s.rcv_ack = CUT_OUT + (1 << 19);
    assert_eq!(old(&s, ACK), CUT_OUT);
}
