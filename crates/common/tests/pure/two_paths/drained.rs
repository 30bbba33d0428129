//! When the old path has drained, and how much only the new path has carried.

use dysco_common::Path;
use dysco_common::session::{Session, Two};
use dysco_common::tcp::{ACK, RST, Segment};
use dysco_common::two_paths::{self, Anchor, OldIncoming};

use super::{
    CUT_IN, CUT_OUT, carried, cut, new_incoming, old_incoming, outgoing, segment, taken_back,
};

#[test]
fn drained_is_told_once_and_at_the_cutoff() {
    let mut s = cut();
    let seg = |ack, flags| segment(1200, ack, 0, flags);
    assert!(!two_paths::drains(&s, &seg(CUT_IN - 1, ACK)));
    assert!(two_paths::drains(&s, &seg(CUT_IN, ACK)));
    assert!(
        !two_paths::drains(&s, &seg(CUT_IN, RST)),
        "no ack without its flag"
    );
    s.two.drained = 1;
    assert!(!two_paths::drains(&s, &seg(CUT_IN, ACK)));
    s.two = Two::default();
    assert!(
        !two_paths::drains(&s, &seg(CUT_IN, ACK)),
        "the cutoff is not known"
    );
}

/// Twice the distance that numbers can distinguish has passed since the cut, and the change was not
/// completed. Data and acknowledgements still belong to the new path.
#[test]
fn two_paths_may_last_for_any_number_of_bytes() {
    let mut s = cut();
    for quarter in 0..=12u32 {
        let now = CUT_OUT.wrapping_add(quarter << 30);
        let ack = segment(CUT_IN, now, 0, ACK);
        let judged = new_incoming(&s, &ack, 0);
        assert_eq!((judged.ack, judged.peer_ack), (now, now), "{quarter} GiB");
        s.snd_max = now;
        two_paths::record_peer_ack(Anchor::Local, &mut s, now, &judged);
        let out = outgoing(&s, &segment(now, CUT_IN, 100, ACK));
        assert_eq!((out.path, out.seq), (Path::New, now), "{quarter} GiB");
        // The proxy repeats an acknowledgement.
        let late = old_incoming(&s, &segment(4500, CUT_OUT, 0, ACK), 0);
        assert_eq!(late, OldIncoming::Withhold, "{quarter} GiB");
    }
}

#[test]
fn what_acknowledges_more_than_was_sent_says_nothing() {
    let mut s = cut();
    s.snd_max = CUT_OUT + 10;
    for (ack, heard) in [(CUT_OUT + 11, false), (CUT_OUT + 10, true)] {
        let judged = new_incoming(&s, &segment(CUT_IN, ack, 0, ACK), 0);
        two_paths::record_peer_ack(Anchor::Local, &mut s, ack, &judged);
        assert_eq!(s.two.edge_set != 0, heard);
        assert_eq!(two_paths::is_past_cutoff(&s), heard);
    }
}

#[test]
fn what_only_the_new_path_can_have_carried() {
    let mut s = carried();
    let at = |s: &mut Session, ack: u32| {
        let seg = segment(CUT_IN, ack, 0, ACK);
        let judged = two_paths::new_incoming(Anchor::Local, s, &seg, 0);
        two_paths::record_peer_ack(Anchor::Local, s, ack, &judged);
        two_paths::has_carried(s)
    };
    s.snd_max = CUT_OUT + 500;
    // The old path has carried all of that data, too.
    assert!(!at(&mut s, CUT_OUT));
    // An acknowledgement of data that was never sent is ignored.
    assert!(!at(&mut s, CUT_OUT + 501));
    assert!(at(&mut s, CUT_OUT + 1));
}

/// A proxy may leave a session when each end has received from the other on the new path, or has
/// sent nothing there.
#[test]
fn a_new_path_is_confirmed_by_what_it_carries() {
    let confirmed = |s: &Session| two_paths::is_confirmed(Anchor::Local, s);
    let unheard = |s: &Session| two_paths::is_undelivered(Anchor::Local, s);
    let hear = |s: &mut Session, ack: u32, window: u16| {
        let seg = Segment {
            window,
            ..segment(CUT_IN, ack, 0, ACK)
        };
        let judged = two_paths::new_incoming(Anchor::Local, s, &seg, 0);
        two_paths::record_peer_ack(Anchor::Local, s, ack, &judged);
    };
    let mut s = carried();
    (s.two.edge_set, s.two.cut_set) = (0, 1);
    s.snd_max = CUT_OUT;
    assert!(confirmed(&s) && !unheard(&s), "nothing was sent");
    s.snd_max = CUT_OUT + 500;
    assert!(!confirmed(&s) && unheard(&s), "nothing was heard");
    // Numbers that belong to nobody: the path shifts them.
    hear(&mut s, CUT_OUT + 0x1000_0000, 9000);
    assert!(!confirmed(&s) && unheard(&s));
    // The old path still carries the data before.
    hear(&mut s, CUT_OUT - 10, 9000);
    assert!(!confirmed(&s) && !unheard(&s));
    let mut full = s;
    hear(&mut full, CUT_OUT, 0);
    assert!(!confirmed(&full), "it had room before");
    full.edge = CUT_OUT;
    assert!(
        confirmed(&full) && !unheard(&full),
        "there is no room for more"
    );
    hear(&mut s, CUT_OUT, 9000);
    assert!(!confirmed(&s) && unheard(&s), "there is room");
    let mut reset = s;
    reset.life.reset = 1;
    assert!(confirmed(&reset), "nothing more is to come");
    hear(&mut s, CUT_OUT + 1, 9000);
    assert!(confirmed(&s) && !unheard(&s));
}

#[test]
fn the_old_path_catches_up_with_what_the_new_one_has_carried() {
    let mut s = taken_back(carried());
    (s.rcv_max, s.snd_ack, s.peer_sent_max) = (CUT_IN, CUT_IN, CUT_IN + 700);
    // The data is not acknowledged yet, and will be.
    assert!(!two_paths::has_caught_up(&s));
    (s.rcv_max, s.snd_ack) = (CUT_IN + 699, CUT_IN + 700);
    assert!(!two_paths::has_caught_up(&s));
    s.rcv_max = CUT_IN + 700;
    assert!(two_paths::has_caught_up(&s));
    // If the path has carried nothing, nobody waits for the data that the proxy holds.
    (s.rcv_max, s.two.new_data) = (CUT_IN, 0);
    assert!(two_paths::has_caught_up(&s));
}
