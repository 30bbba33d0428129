//! Properties of single decisions, and a session whose two paths compete.

use dysco_common::Path;
use dysco_common::seq::{after, before, max};
use dysco_common::session::{Session, Two, offer};
use dysco_common::tcp::{ACK, RST, Segment};
use dysco_common::two_paths::OldIncoming;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{CUT_OUT, after_window, cut, new_incoming, old_incoming, outgoing, segment, session};

prop_compose! {
    /// Returns a session at any place of the number space, with numbers near each other.
    fn any_session()(
        base in any::<(u32, u32)>(), near in proptest::array::uniform8(0u32..1 << 20),
        flags in proptest::array::uniform6(0u8..2), clamp in prop_oneof![Just(0), 1u16..],
    ) -> Session {
        let mut s = session();
        let [cut_out, sent, rcv_ack, peer_ack, rcv_max, old_ack, new_ack, edge] = near;
        (s.cut_out, s.cut_in) = (base.0.wrapping_add(cut_out), base.1);
        s.snd_max = s.cut_out.wrapping_add(sent);
        s.rcv_ack = base.0.wrapping_add(rcv_ack);
        s.peer_ack = base.0.wrapping_add(peer_ack);
        s.edge = s.peer_ack.wrapping_add(edge);
        s.rcv_max = base.1.wrapping_add(rcv_max);
        s.old_ack = base.1.wrapping_add(old_ack);
        s.new_ack = base.1.wrapping_add(new_ack);
        let [a, b, c, d, e, f] = flags;
        s.two = Two {
            cut_armed: a, cut_set: a, cut_in_set: b, drained: c, new_received: d,
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
            let peer_has_old = s.two.edge_set != 0 && !before(s.peer_ack, s.cut_out);
            if out.path == Path::New && (seg.span() > 0 || !peer_has_old) {
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
        let relies_on_peer = s.two.cut_set & s.two.edge_set != 0 && seg.has(ACK) && !seg.has(RST);
        if s.clamp > 0 && !(relies_on_peer && after(s.peer_ack, seg.ack)) {
            prop_assert!(bytes <= u64::from(s.clamp) << wscale);
        }
        if relies_on_peer {
            let right = ack.wrapping_add(bytes as u32);
            prop_assert!(bytes == 0 || !after(right, s.edge), "the far end never offered that");
        }
        if s.two.cut_set != 0 && !relies_on_peer {
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
            prop_assert!(!before(n.edge, s.edge) && !before(n.peer_ack, s.peer_ack));
        }
        if n.ack != seg.ack {
            prop_assert!(n.strip_sack);
            let right = n.ack.wrapping_add(u32::from(n.window) << wscale);
            prop_assert!(n.window == 0 || !after(right, n.edge));
        }
    }

    /// The test of `tcp_sequence` (net/ipv4/tcp_input.c), for an end whose last segment announced
    /// any window, regardless of earlier announcements.
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
        let delivered = Segment { window, ..segment(0, acked, 0, ACK) };
        let seg = segment(s.cut_in, CUT_OUT, 0, ACK);
        let seq = new_incoming(&after_window(&s, &delivered), &seg, 0).seq;
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
        let (mut proxy, mut peer, mut heard) = (0, 0, base);
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
                peer += step;
                let n = new_incoming(&s, &seg(peer), 0);
                s.two.edge_set = 1;
                (s.edge, s.peer_ack) = (n.edge, n.peer_ack);
                n.deliver.then_some(n.ack)
            };
            if let Some(ack) = delivered {
                prop_assert!(!before(ack, heard), "{ack} after {heard}");
                heard = ack;
            }
        }
    }
}
