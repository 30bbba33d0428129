//! The two-path phase: cases, properties of single decisions, and a session whose two paths
//! compete.

mod ending;
mod far_apart;

use dysco_common::seq::{after, before, max};
use dysco_common::session::{Session, Two, offer};
use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN, Segment};
use dysco_common::two_paths::{self, Anchor, Ending, NewIncoming, OldIncoming, Outgoing};
use dysco_common::{Path, State};
use proptest::collection::vec;
use proptest::prelude::*;

const CUT_OUT: u32 = 1000;
const CUT_IN: u32 = 5000;

fn session() -> Session {
    Session {
        state: 3,
        snd_max: CUT_OUT,
        snd_ack: 4000,
        rcv_max: 4500,
        rcv_ack: 900,
        ifindex: 1,
        cut_out: CUT_OUT,
        cut_in: CUT_IN,
        ..Session::default()
    }
}

/// Returns the same session as the host at the other end of its old path has it. Outgoing here is
/// incoming there.
fn mirrored(s: &Session) -> Session {
    Session {
        snd_max: s.rcv_max,
        rcv_max: s.snd_max,
        snd_ack: s.rcv_ack,
        rcv_ack: s.snd_ack,
        tsval_out: s.tsval_in,
        tsval_in: s.tsval_out,
        local: s.remote,
        remote: s.local,
        clamp: 0,
        clamp_far: s.clamp,
        ..*s
    }
}

/// Checks that both kinds of anchor give the same result, and returns it.
fn same<T: PartialEq + std::fmt::Debug>(s: &Session, f: impl Fn(Anchor, &Session) -> T) -> T {
    let near = f(Anchor::Near, s);
    assert_eq!(near, f(Anchor::Far, &mirrored(s)));
    near
}

fn outgoing(s: &Session, seg: &Segment) -> Outgoing {
    same(s, |at, s| two_paths::outgoing(at, s, seg))
}

fn ending(s: &Session, seg: &Segment) -> Ending {
    same(s, |at, s| two_paths::ending(at, s, seg))
}

/// Returns true if this is the proxy's own end of the session, which no end may receive.
fn proxy_ends(s: &Session, seg: &Segment) -> bool {
    ending(s, seg) == Ending::Relayed
}

fn old_incoming(s: &Session, seg: &Segment, wscale: u8) -> OldIncoming {
    same(s, |at, s| two_paths::old_incoming(at, s, seg, wscale))
}

fn new_incoming(s: &Session, seg: &Segment, wscale: u8) -> NewIncoming {
    same(s, |at, s| two_paths::new_incoming(at, s, seg, wscale))
}

/// Returns the session after its end has sent a segment.
fn after_window(s: &Session, seg: &Segment) -> Session {
    let heard = |at: Anchor, mut s: Session| {
        two_paths::hear_window(at, &mut s, seg);
        s
    };
    let near = heard(Anchor::Near, *s);
    let far = heard(Anchor::Far, mirrored(s));
    assert_eq!(near.two.new_ack_set, far.two.new_ack_set);
    near
}

/// Returns a session after its cut.
fn cut() -> Session {
    let mut s = session();
    s.two.cut_set = 1;
    s.two.cut_in_set = 1;
    s
}

fn segment(seq: u32, ack: u32, len: u32, flags: u8) -> Segment {
    Segment {
        seq,
        ack,
        len,
        window: 100,
        flags,
    }
}

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
fn a_probe_keeps_its_number_once_the_far_end_has_all() {
    let mut s = cut();
    let probe = segment(CUT_OUT - 1, 6000, 0, ACK);
    (s.two.edge_set, s.far_ack) = (1, CUT_OUT - 1);
    assert_eq!(outgoing(&s, &probe).seq, CUT_OUT);
    s.far_ack = CUT_OUT;
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
    s.two.cut_set = 0;
    assert_eq!(numbers(&s, 800, RST | ACK), (s.snd_max, None));
    // Anybody may have sent the reset.
    s.life.reset = 0;
    assert_eq!(numbers(&s, 800, RST | ACK), (800, None));
}

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
fn a_cutoff_that_was_never_told_is_taken_from_the_data() {
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
    two_paths::hear_far(Anchor::Near, &mut s, CUT_OUT, &judged);
    assert!(proxy_ends(&s, &rst));
    s.deaf = 1;
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
        two_paths::hear_data(Anchor::Near, &mut s, &ack);
        two_paths::hear_far(Anchor::Near, &mut s, CUT_OUT, &judged);
        assert_eq!(s.two.new_data != 0, all);
        assert_eq!(two_paths::has_old(Anchor::Near, &s, CUT_IN + 1), all);
        assert_eq!(proxy_ends(&s, &rst), all);
    }
}

/// A new path that has not shown what it has to may be dead.
#[test]
fn a_reset_is_real_as_long_as_the_new_path_has_to_show_something() {
    let rst = segment(CUT_IN, CUT_OUT, 0, ACK | RST);
    let mut s = cut();
    (s.two.drained, s.rcv_ack, s.shown) = (1, CUT_OUT, CUT_IN - 1);
    let ends = |s: &Session| two_paths::ending(Anchor::Near, s, &rst) == Ending::Relayed;
    assert!(!ends(&s));
    s.shown = CUT_IN;
    assert!(ends(&s));
    s.deaf = 1;
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

#[test]
fn without_ack_nothing_is_acknowledged() {
    let s = cut();
    for seq in [CUT_OUT - 10, CUT_OUT] {
        assert_eq!(outgoing(&s, &segment(seq, 6000, 10, 0)).copy, None);
    }
}

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
    let told = |window, flags| Segment {
        window,
        ..segment(0, s.snd_ack, 0, flags)
    };
    let seq = |s: &Session| new_incoming(s, &segment(CUT_IN, 950, 0, ACK), 0).seq;
    let sent = (s.rcv_max - s.snd_ack) as u16;
    let shut = after_window(&s, &told(sent - 1, ACK));
    assert_eq!(seq(&shut), s.snd_ack);
    // A reset offers no window, and a later segment offers more.
    assert_eq!(seq(&after_window(&shut, &told(sent, ACK | RST))), s.snd_ack);
    assert_eq!(seq(&after_window(&shut, &told(sent, ACK))), s.rcv_max);
    // The acknowledgement on the new path stays valid.
    let mut also = shut;
    also.two.new_ack_set |= two_paths::VALID;
    let open = after_window(&also, &told(sent, ACK));
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
fn the_far_ends_edge_bounds_the_old_window() {
    let mut s = cut();
    s.two.edge_set = 1;
    (s.edge, s.far_ack) = (940, 800);
    let OldIncoming::Deliver(Segment { ack, window, .. }) =
        old_incoming(&s, &segment(0, 900, 0, ACK), 0)
    else {
        panic!("an ack with news");
    };
    assert_eq!((ack, window), (900, 40));
    // An acknowledgement that the new path has overtaken has no news. With data it has.
    s.far_ack = 920;
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
    assert_eq!((data.edge, data.far_ack), (800, 700));
    let pure = new_incoming(&s, &segment(CUT_IN, 950, 0, ACK), 0);
    assert_eq!((pure.deliver, pure.ack, pure.window), (true, 990, 60));
    (s.two.edge_set, s.edge, s.far_ack) = (1, pure.edge, pure.far_ack);
    let again = new_incoming(&s, &segment(CUT_IN, 950, 0, ACK), 0);
    assert!(!again.deliver, "it would count as a duplicate");
    let caught_up = new_incoming(&s, &segment(CUT_IN, 990, 0, ACK), 0);
    assert_eq!(
        (caught_up.deliver, caught_up.ack, caught_up.strip_sack),
        (true, 990, false)
    );
}

prop_compose! {
    /// Returns a session at any place of the number space, with numbers near each other.
    fn any_session()(
        base in any::<(u32, u32)>(), near in proptest::array::uniform8(0u32..1 << 20),
        flags in proptest::array::uniform6(0u8..2), clamp in prop_oneof![Just(0), 1u16..],
    ) -> Session {
        let mut s = session();
        let [cut_out, sent, rcv_ack, far_ack, rcv_max, old_ack, new_ack, edge] = near;
        (s.cut_out, s.cut_in) = (base.0.wrapping_add(cut_out), base.1);
        s.snd_max = s.cut_out.wrapping_add(sent);
        s.rcv_ack = base.0.wrapping_add(rcv_ack);
        s.far_ack = base.0.wrapping_add(far_ack);
        s.edge = s.far_ack.wrapping_add(edge);
        s.rcv_max = base.1.wrapping_add(rcv_max);
        s.old_ack = base.1.wrapping_add(old_ack);
        s.new_ack = base.1.wrapping_add(new_ack);
        let [a, b, c, d, e, f] = flags;
        s.two = Two {
            cut_armed: a, cut_set: a, cut_in_set: b, drained: c, new_heard: d,
            edge_set: d, old_ack_set: e, new_ack_set: f, ..Two::default()
        };
        s.clamp = clamp;
        s
    }
}

prop_compose! {
    fn near_segment()(s in any_session(), seq in 0u32..1 << 21, ack in 0u32..1 << 21, len in prop_oneof![Just(0), 1u32..70_000], window in any::<u16>(), flags in any::<u8>()) -> (Session, Segment) {
        let seg = Segment {
            seq: s.cut_out.wrapping_sub(1 << 20).wrapping_add(seq),
            ack: s.cut_in.wrapping_add(ack),
            len, window, flags: flags & !2,
        };
        (s, seg)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_old_path_hears_no_ack_of_what_it_never_sent((s, seg) in near_segment()) {
        let out = outgoing(&s, &seg);
        if out.path == Path::Old {
            prop_assert!(!after(out.ack, s.rcv_max));
        }
        if let Some(copy) = out.copy.filter(|c| c.path == Path::Old) {
            prop_assert!(!after(copy.ack, s.rcv_max));
            let across = s.rcv_ack.wrapping_sub(s.cut_out) < 1 << 19;
            let got = if across { s.rcv_ack } else { s.cut_out };
            prop_assert!(!after(copy.seq, got), "a number that it does not expect");
            // A segment with an earlier number is ignored, but the end may probe it.
            let probes = before(seg.seq, s.cut_out);
            prop_assert!(probes || !before(copy.seq, got), "a number that it does not hear");
        }
    }

    #[test]
    fn nothing_before_the_cutoff_is_new((s, seg) in near_segment()) {
        let out = outgoing(&s, &seg);
        if s.two.cut_set == 0 {
            prop_assert_eq!((out.path, out.copy), (Path::Old, None));
        } else if seg.flags & RST == 0 {
            // Probes may have such a number, once the far end has all data before it.
            let far_has_old = s.two.edge_set != 0 && !before(s.far_ack, s.cut_out);
            if out.path == Path::New && (seg.span() > 0 || !far_has_old) {
                prop_assert!(!before(out.seq, s.cut_out));
            }
            if let Some(copy) = out.copy.filter(|c| c.path == Path::New) {
                prop_assert!(!before(copy.seq, s.cut_out));
            }
        }
        // Data keeps its number on either path.
        if seg.span() > 0 {
            prop_assert_eq!(out.seq, seg.seq);
        }
        prop_assert!(out.copy.is_none_or(|c| c.path != out.path));
    }

    #[test]
    fn the_old_window_keeps_every_bound((s, seg) in near_segment(), ack in 0u32..1 << 21, wscale in 0u8..=14) {
        let seg = Segment { ack: s.cut_out.wrapping_sub(ack), ..seg };
        let OldIncoming::Deliver(Segment { ack, window, .. }) = old_incoming(&s, &seg, wscale) else {
            return Ok(());
        };
        let bytes = u64::from(window) << wscale;
        let relies_on_far = s.two.cut_set & s.two.edge_set != 0 && seg.has(ACK) && !seg.has(RST);
        if s.clamp > 0 && !(relies_on_far && after(s.far_ack, seg.ack)) {
            prop_assert!(bytes <= u64::from(s.clamp) << wscale);
        }
        if relies_on_far {
            let right = ack.wrapping_add(bytes as u32);
            prop_assert!(bytes == 0 || !after(right, s.edge), "the far end never offered that");
        }
        if s.two.cut_set != 0 && !relies_on_far {
            prop_assert!(!after(ack, s.cut_out), "of that the proxy cannot know");
        }
    }

    #[test]
    fn a_new_ack_is_never_below_what_the_old_path_gave((s, seg) in near_segment(), ack in 0u32..1 << 21, wscale in 0u8..=14) {
        let seg = Segment { ack: s.cut_out.wrapping_sub(1 << 20).wrapping_add(ack), flags: seg.flags | ACK, ..seg };
        let n = new_incoming(&s, &seg, wscale);
        let floor = if s.two.cut_set != 0 && after(s.rcv_ack, s.cut_out) { s.cut_out } else { s.rcv_ack };
        if !seg.has(RST) {
            prop_assert!(!before(n.ack, floor));
        }
        prop_assert!(!before(n.ack, seg.ack));
        prop_assert!(seg.span() == 0 || n.deliver, "data is always delivered");
        if s.two.edge_set != 0 {
            prop_assert!(!before(n.edge, s.edge) && !before(n.far_ack, s.far_ack));
        }
        if n.ack != seg.ack {
            prop_assert!(n.strip_sack);
            let right = n.ack.wrapping_add(u32::from(n.window) << wscale);
            prop_assert!(n.window == 0 || !after(right, n.edge));
        }
    }

    /// The test of `tcp_sequence` (net/ipv4/tcp_input.c), for an end whose last segment announced
    /// any window, whatever it had announced before.
    #[test]
    fn an_end_accepts_each_pure_ack(
        acked in any::<u32>(), sent in 0u32..1 << 20, ahead in 0u32..1 << 20,
        window in any::<u16>(), wscale in 0u8..=14, cut_in_set in 0u8..2,
    ) {
        let mut s = cut();
        (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
        (s.local.wscale, s.two.cut_in_set) = (wscale, cut_in_set);
        (s.snd_ack, s.rcv_max) = (acked, acked.wrapping_add(sent));
        s.cut_in = s.rcv_max.wrapping_add(ahead);
        let told = Segment { window, ..segment(0, acked, 0, ACK) };
        let seg = segment(s.cut_in, CUT_OUT, 0, ACK);
        let seq = new_incoming(&after_window(&s, &told), &seg, 0).seq;
        let room = u32::from(window) << wscale;
        prop_assert!(!before(seq, acked) && !after(seq, acked.wrapping_add(room)));
    }

    /// Acknowledgements of the proxy and of the far end arrive interleaved, each in its order. The
    /// acknowledgements that the local end receives never go back.
    #[test]
    fn acks_that_are_delivered_never_step_back(
        base in any::<u32>(), window in any::<u16>(),
        arrivals in vec((any::<bool>(), 0u32..4000, any::<bool>()), 1..60),
    ) {
        let mut s = cut();
        s.cut_out = base.wrapping_add(40_000);
        s.snd_max = base.wrapping_add(100_000);
        s.rcv_ack = base;
        // The far end is behind the proxy until the old path has drained.
        let (mut proxy, mut far, mut heard) = (0, 0, base);
        for (old, step, data) in arrivals {
            let len = if data { 10 } else { 0 };
            let seg = |ack: u32| Segment { seq: 0, ack: base.wrapping_add(ack), len, window, flags: ACK };
            let delivered = if old {
                proxy = (proxy + step).min(40_000);
                let seg = seg(proxy);
                s.rcv_ack = max(s.rcv_ack, seg.ack);
                match old_incoming(&s, &seg, 0) {
                    OldIncoming::Deliver(Segment { ack, .. }) => Some(ack),
                    OldIncoming::Withhold => None,
                    OldIncoming::Drop => return Err(TestCaseError::fail("no end was sent")),
                }
            } else {
                far += step;
                let n = new_incoming(&s, &seg(far), 0);
                s.two.edge_set = 1;
                (s.edge, s.far_ack) = (n.edge, n.far_ack);
                n.deliver.then_some(n.ack)
            };
            if let Some(ack) = delivered {
                prop_assert!(!before(ack, heard), "{ack} after {heard}");
                heard = ack;
            }
        }
    }
}

/// Returns a session whose new path has opened, but has not carried the data that the other end
/// sent elsewhere.
fn unshown() -> Session {
    let mut s = cut();
    s.shown = CUT_IN - 300;
    (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
    s.local.wscale = 2;
    s
}

fn near(s: &Session, seg: &Segment) -> Outgoing {
    two_paths::outgoing(Anchor::Near, s, seg)
}

#[test]
fn the_new_path_hears_nothing_acknowledged_that_it_has_not_shown() {
    let s = unshown();
    // Data, a pure acknowledgement, and the copy of a reset.
    let data = near(&s, &segment(CUT_OUT, CUT_IN - 100, 50, ACK));
    assert_eq!((data.path, data.ack), (Path::New, CUT_IN - 300));
    // The edge stays the same: 200 bytes lower, 50 units of four bytes more.
    assert_eq!(data.window, 150);
    let sacks = two_paths::sacks(Anchor::Near, &s, Path::New);
    assert_eq!((sacks.limited, sacks.to), (true, CUT_IN - 300));
    let old = data.copy.unwrap();
    assert_eq!((old.path, old.ack, old.window), (Path::Old, 4500, 100));
    let ack = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, ACK));
    assert_eq!(
        (ack.path, ack.ack, ack.window),
        (Path::New, CUT_IN - 300, 150)
    );
    let reset = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, RST | ACK));
    let copy = reset.copy.unwrap();
    assert_eq!((copy.path, copy.ack), (Path::New, CUT_IN - 300));
    // Numbers that the path has shown are acknowledged unchanged.
    let shown = near(&s, &segment(CUT_OUT, CUT_IN - 300, 0, ACK));
    assert_eq!((shown.ack, shown.window), (CUT_IN - 300, 100));
}

#[test]
fn once_all_is_shown_acknowledgements_are_as_they_are() {
    let mut s = unshown();
    assert!(!two_paths::has_shown_all(&s));
    assert!(!two_paths::show(&mut s, CUT_IN), "it waits for its end too");
    let out = near(&s, &segment(CUT_OUT, CUT_IN + 5, 50, ACK));
    assert_eq!((out.ack, out.window), (CUT_IN + 5, 100));
    assert!(!two_paths::sacks(Anchor::Near, &s, Path::New).limited);
    // The session waited only for that, once.
    let mut s = unshown();
    s.two.drained = 1;
    assert!(!two_paths::show(&mut s, CUT_IN - 1));
    assert!(two_paths::show(&mut s, CUT_IN));
    assert!(!two_paths::show(&mut s, CUT_IN + 1));
    // Late segments take nothing back.
    assert!(!two_paths::show(&mut s, CUT_IN - 200));
    assert_eq!(s.shown, CUT_IN + 1);
}

#[test]
fn the_old_path_hears_no_blocks_of_what_came_by_the_new() {
    let mut s = cut();
    assert!(!two_paths::sacks(Anchor::Near, &s, Path::Old).limited);
    s.two.new_data = 1;
    let sacks = two_paths::sacks(Anchor::Near, &s, Path::Old);
    assert_eq!((sacks.limited, sacks.to), (true, 4500));
}

#[test]
fn a_window_that_would_be_too_wide_saturates() {
    let mut s = unshown();
    s.shown = CUT_IN.wrapping_sub(1_000_000);
    let out = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, ACK));
    assert_eq!(out.window, u16::MAX);
}

#[test]
fn the_right_anchor_answers_what_opens_the_path() {
    let mut s = unshown();
    (s.two, s.shown, s.cut_out) = (Default::default(), 0, 0);
    s.snd_max = 5000;
    s.path.local_port = 1;
    let syn = segment(76, 0, 1400, SYN);
    assert!(!two_paths::hear_opening(&mut s, &syn));
    assert_eq!((s.shown, s.cut_out), (77, 5000));
    let e = two_paths::answer_opening(&s, &syn);
    assert_eq!((e.seq, e.ack, e.flags), (4999, 77, SYN | ACK));
    assert_eq!((e.window, e.wscale), (u16::MAX, 3), "its own scale, and 1");
    // The end has sent more since. The number of the opening stays.
    s.snd_max = 9000;
    let again = segment(76, 0, 0, SYN);
    two_paths::hear_opening(&mut s, &again);
    let e = two_paths::answer_opening(&s, &again);
    assert_eq!((e.seq, e.ack, e.flags), (5000, 77, ACK | PSH));
    assert!(two_paths::opens_windows(&Segment {
        seq: e.seq,
        ack: e.ack,
        len: 0,
        window: e.window,
        flags: e.flags
    }));
    // After the cut it shows the cutoff.
    (s.two.cut_set, s.cut_out) = (1, 9000);
    let shows = segment(200, 5000, 0, ACK | PSH);
    two_paths::hear_opening(&mut s, &shows);
    let e = two_paths::answer_opening(&s, &shows);
    assert_eq!((e.seq, e.ack, s.shown), (9000, 200, 200));
    // Up to the window that the left end has announced, and later the rest.
    s.remote.wscale = 1;
    s.cut_out = 5000 + 200_000;
    let e = two_paths::answer_opening(&s, &shows);
    assert_eq!(e.seq, 5000 + 2 * 65_535);
    let e = two_paths::answer_opening(
        &s,
        &Segment {
            ack: e.seq,
            ..shows
        },
    );
    assert_eq!(e.seq, 5000 + 200_000);
}

/// Returns a path that is being opened. The other end has shown numbers up to 4500, in this end's
/// numbers.
fn being_opened() -> Session {
    let mut s = Session {
        state: State::Joining as u32,
        rcv_max: 4500,
        ..Session::default()
    };
    s.translation.seq_in = 1000;
    s
}

#[test]
fn the_length_is_heard_on_a_path_that_is_being_opened() {
    let long = |seq, len| segment(seq, 0, len, ACK | PSH);
    let widest = |seg| Segment {
        window: u16::MAX,
        ..seg
    };
    let shows = widest(long(3500 - 1 - 1448, 1448));
    let mut s = being_opened();
    assert!(!two_paths::has_length(&s));
    for other in [
        long(shows.seq, 1448),
        widest(segment(shows.seq, 0, 1448, ACK)),
        widest(long(3499, 0)),
        // The segment continues after the shown number.
        widest(long(3500 - 1448, 1448)),
    ] {
        assert!(!two_paths::hear_length(&mut s, &other), "{other:?}");
        assert!(!two_paths::has_length(&s), "{other:?}");
    }
    assert!(two_paths::hear_length(&mut s, &shows));
    assert!(two_paths::has_length(&s));
    // Again, and just after the path was taken. No other segment equals it.
    for state in [State::Joining, State::Switching] {
        s.state = state as u32;
        assert!(two_paths::hear_length(&mut s, &shows));
        // The path may have become narrower since.
        let shorter = widest(long(3500 - 1 - 1400, 1400));
        assert!(two_paths::hear_length(&mut s, &shorter));
        assert!(!two_paths::hear_length(
            &mut s,
            &widest(long(3500 - 1448, 1448))
        ));
    }
    // A path that was already taken has not been opened here.
    let mut s = being_opened();
    s.state = State::Switching as u32;
    assert!(!two_paths::hear_length(&mut s, &shows));
}

#[test]
fn what_opens_a_path_is_told_from_what_takes_it() {
    let seg = |seq, len, window| Segment {
        window,
        ..segment(seq, 0, len, ACK | PSH)
    };
    assert!(two_paths::is_of_opening(&seg(9000, 0, u16::MAX), 4500));
    assert!(two_paths::is_of_opening(&seg(4000, 500, u16::MAX), 4500));
    assert!(!two_paths::is_of_opening(&seg(4000, 501, u16::MAX), 4500));
    assert!(!two_paths::is_of_opening(&seg(4000, 500, 64), 4500));
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
        assert_eq!((judged.ack, judged.far_ack), (now, now), "{quarter} GiB");
        s.snd_max = now;
        two_paths::hear_far(Anchor::Near, &mut s, now, &judged);
        let out = outgoing(&s, &segment(now, CUT_IN, 100, ACK));
        assert_eq!((out.path, out.seq), (Path::New, now), "{quarter} GiB");
        // The proxy repeats an acknowledgement.
        let late = old_incoming(&s, &segment(4500, CUT_OUT, 0, ACK), 0);
        assert_eq!(late, OldIncoming::Withhold, "{quarter} GiB");
    }
}

/// The proxy asks whether there is room again, and gives up without an answer. All data that it was
/// sent was acknowledged long before.
#[test]
fn the_proxys_probes_are_heard() {
    let mut s = cut();
    s.snd_max = CUT_OUT;
    let judged = new_incoming(&s, &segment(CUT_IN, CUT_OUT, 0, ACK), 0);
    two_paths::hear_far(Anchor::Near, &mut s, CUT_OUT, &judged);
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

#[test]
fn a_reset_behind_a_segment_across_the_cutoff_is_believed() {
    let mut s = carried();
    (s.two.new_data, s.state) = (1 | 2, State::TwoPaths as u32);
    (s.shown, s.snd_ack, s.rcv_max) = (CUT_IN, CUT_IN, CUT_IN + 300);
    assert!(two_paths::may_reset(&s, CUT_IN + 300));
    assert!(!two_paths::may_reset(&s, CUT_IN + 301));
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
fn what_acknowledges_more_than_was_sent_says_nothing() {
    let mut s = cut();
    s.snd_max = CUT_OUT + 10;
    for (ack, heard) in [(CUT_OUT + 11, false), (CUT_OUT + 10, true)] {
        let judged = new_incoming(&s, &segment(CUT_IN, ack, 0, ACK), 0);
        two_paths::hear_far(Anchor::Near, &mut s, ack, &judged);
        assert_eq!(s.two.edge_set != 0, heard);
        assert_eq!(two_paths::is_past(&s), heard);
    }
}

#[test]
fn a_reset_that_no_end_believes_ends_nothing_in_two_paths() {
    let mut s = session();
    s.state = State::TwoPaths as u32;
    // The end has acknowledged up to 4000, and received up to 4500 on the old path.
    let believed = |s: &Session| [3999, 4000, 4500, 4501].map(|seq| two_paths::may_reset(s, seq));
    assert_eq!(believed(&s), [false, true, true, false]);
    s.shown = 4501;
    assert_eq!(believed(&s), [false, true, true, true]);
    // On a single path the limit is what arrived there. While the session is being opened there is
    // no limit.
    s.state = State::Tracked as u32;
    assert_eq!(believed(&s), [false, true, true, false]);
    s.state = State::Opening as u32;
    assert_eq!(believed(&s), [true; 4]);
}

/// Returns a session after both cuts, whose new path has carried data to the local end.
fn carried() -> Session {
    let mut s = session();
    (s.two.cut_set, s.two.cut_in_set) = (1, 1);
    (s.two.new_heard, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
    s
}

fn taken_back(mut s: Session) -> Session {
    (s.two.cut_set, s.two.cut_in_set, s.two.new_heard) = (0, 0, 0);
    s.deaf = 1;
    s
}

#[test]
fn what_only_the_new_path_can_have_carried() {
    let mut s = carried();
    let at = |s: &mut Session, ack: u32| {
        let seg = segment(CUT_IN, ack, 0, ACK);
        let judged = two_paths::new_incoming(Anchor::Near, s, &seg, 0);
        two_paths::hear_far(Anchor::Near, s, ack, &judged);
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
    let confirmed = |s: &Session| two_paths::is_confirmed(Anchor::Near, s);
    let unheard = |s: &Session| two_paths::is_unheard(Anchor::Near, s);
    let hear = |s: &mut Session, ack: u32, window: u16| {
        let seg = Segment {
            window,
            ..segment(CUT_IN, ack, 0, ACK)
        };
        let judged = two_paths::new_incoming(Anchor::Near, s, &seg, 0);
        two_paths::hear_far(Anchor::Near, s, ack, &judged);
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
    (s.rcv_max, s.snd_ack, s.shown) = (CUT_IN, CUT_IN, CUT_IN + 700);
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

#[test]
fn the_proxys_end_is_the_sessions_once_it_is_taken_back() {
    let fin = segment(CUT_IN, CUT_OUT, 0, ACK | FIN);
    assert!(proxy_ends(&carried(), &fin));
    assert!(!proxy_ends(&taken_back(carried()), &fin));
}
