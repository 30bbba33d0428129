//! The translation that follows from three hosts' facts.

use dysco_common::session::{offer, translation};
use dysco_proto::plan::{TS_LEAD, check, objections, plan};
use dysco_proto::{End, Facts, Measurement, Reason};
use proptest::prelude::*;

use super::plane::offer_of;
use super::world::{Faults, World};

/// Returns a measurement, and the anchors' facts that fit it.
pub(crate) fn facts() -> (Measurement, Facts, Facts) {
    let links = World::new(3, Faults::default()).links;
    let (c, pa) = (offer_of(0x1000_0000, 7), offer_of(0xfff0_0000, 3));
    let (pb, s) = (offer_of(0x2222_0000, 8), offer_of(0x0000_0005, 2));
    let view = |local, remote, tsval_out| Facts {
        local,
        remote,
        tsval_out,
        ..Facts::default()
    };
    let m = Measurement {
        delta_forward: -10,
        delta_reverse: 41,
        a: view(pa, c, 70),
        b: view(pb, s, 80),
        clock_a: 50_000,
        clock_b: 10,
        subsession_a: links[0],
        subsession_b: links[1],
        relay: None,
        left_answers: true,
    };
    (m, view(c, pa, 4_000_000_000), view(s, pb, 3_000))
}

/// Each rule, against the numbers of one byte followed by hand.
#[test]
fn numbers_move_from_a_to_b() {
    let (m, left, right) = facts();
    let t = plan(&m, &left, &right).unwrap();
    // The client's first byte is A's isn + 1. Ten bytes were removed since.
    let first = m.a.remote.isn.wrapping_add(1);
    assert_eq!(
        first.wrapping_add(t.seq_out),
        m.b.local.isn.wrapping_add(1).wrapping_sub(10)
    );
    let first = m.b.remote.isn.wrapping_add(1);
    assert_eq!(
        first.wrapping_add(t.seq_in),
        m.a.local.isn.wrapping_add(1).wrapping_add(41)
    );
    assert_eq!(left.tsval_out.wrapping_add(t.ts_out), m.clock_b + TS_LEAD);
    assert_eq!(right.tsval_out.wrapping_add(t.ts_in), m.clock_a + TS_LEAD);
    let scales = (
        t.wscale_local,
        t.wscale_local_at_peer,
        t.wscale_remote_at_peer,
        t.wscale_remote,
    );
    assert_eq!(scales, (7, 8, 2, 3));
    assert_eq!(t.flags, 0);
}

/// A device that shifts clocks on the present path is not on the new one.
#[test]
fn clocks_that_are_shifted_on_the_way_are_refused() {
    let heard = |m: Measurement, by: [u32; 4]| {
        let (mut m, mut left, mut right) = (m, facts().1, facts().2);
        left.tsval_in = m.a.tsval_out.wrapping_add(by[0]);
        m.a.tsval_in = left.tsval_out.wrapping_add(by[1]);
        right.tsval_in = m.b.tsval_out.wrapping_add(by[2]);
        m.b.tsval_in = right.tsval_out.wrapping_add(by[3]);
        plan(&m, &left, &right)
    };
    let m = facts().0;
    // Under way, or received since.
    for late in [0, 1, 60_000, 0u32.wrapping_sub(60_000)] {
        assert!(heard(m, [late; 4]).is_ok(), "{late}");
    }
    for (at, which) in [
        (0, m.subsession_a),
        (1, m.subsession_a),
        (2, m.subsession_b),
        (3, m.subsession_b),
    ] {
        for shift in [1 << 21, 1 << 31, 0xffd0_0000] {
            let mut by = [0; 4];
            by[at] = shift;
            assert_eq!(heard(m, by), Err(Reason::Rewritten(which)), "{at} {shift}");
        }
    }
    // Clocks are not compared if timestamps were not agreed on.
    let mut m = m;
    m.b.remote.flags &= !offer::TIMESTAMPS;
    let mut right = facts().2;
    right.local.flags &= !offer::TIMESTAMPS;
    right.tsval_in = 1 << 31;
    assert!(plan(&m, &facts().1, &right).is_ok());
}

/// No translation between IPv4 and IPv6 exists, on any path.
#[test]
fn two_families_are_refused_before_anybody_is_asked() {
    let (mut m, ..) = facts();
    assert_eq!(check(&m), Ok(()));
    m.subsession_b.right = "[fd00::3]:80".parse().unwrap();
    assert!(matches!(check(&m), Err(Reason::NewPathUnusable(_))));
    m.subsession_a.left = "[fd00::1]:4000".parse().unwrap();
    assert_eq!(check(&m), Ok(()));
}

/// Returns facts in which an option is removed from the offers of A or B, at every observer.
fn without(flag: u8, on_a: bool, on_b: bool) -> (Measurement, Facts, Facts) {
    let (mut m, mut left, mut right) = facts();
    if on_a {
        m.a.remote.flags &= !flag;
        left.local.flags &= !flag;
    }
    if on_b {
        m.b.remote.flags &= !flag;
        right.local.flags &= !flag;
    }
    (m, left, right)
}

#[test]
fn a_session_without_scaling_has_scale_zero_both_ways() {
    let (m, left, right) = without(offer::WSCALE, true, false);
    let t = plan(&m, &left, &right).unwrap();
    assert_eq!((t.wscale_local, t.wscale_remote), (0, 0));
    assert_eq!((t.wscale_local_at_peer, t.wscale_remote_at_peer), (8, 2));
}

#[test]
fn what_one_side_lacks_is_stripped() {
    for (on_a, on_b) in [(true, false), (false, true)] {
        let (m, left, right) = without(offer::TIMESTAMPS, on_a, on_b);
        let t = plan(&m, &left, &right).unwrap();
        assert_eq!(t.flags, translation::STRIP_TIMESTAMPS);
        assert_eq!((t.ts_out, t.ts_in), (0, 0));
    }
    let (m, left, right) = without(offer::TIMESTAMPS, true, true);
    assert_eq!(plan(&m, &left, &right).unwrap().flags, 0);
    let (mut m, mut left, right) = facts();
    for o in [
        &mut m.a.local,
        &mut m.a.remote,
        &mut left.local,
        &mut left.remote,
    ] {
        o.flags |= offer::ECN;
    }
    let t = plan(&m, &left, &right).unwrap();
    assert_eq!(t.flags, translation::STRIP_ECN);
}

#[test]
fn what_cannot_be_bridged_is_refused_early() {
    for (on_a, on_b) in [(true, false), (false, true)] {
        let (m, ..) = without(offer::SACK, on_a, on_b);
        assert_eq!(check(&m), Err(Reason::SackMismatch));
    }
    let (m, left, right) = without(offer::SACK, true, true);
    plan(&m, &left, &right).unwrap();
    let (m, ..) = without(offer::SEEN, true, false);
    assert_eq!(check(&m), Err(Reason::NotSeen));
    let (mut m, ..) = facts();
    m.b.remote.flags |= offer::FOREIGN;
    assert_eq!(check(&m), Err(Reason::Foreign));
    // An option that only one end has asked for is not in use.
    let (mut m, mut left, right) = facts();
    m.a.remote.flags |= offer::UNTRANSLATED;
    left.local.flags |= offer::UNTRANSLATED;
    plan(&m, &left, &right).unwrap();
    m.a.local.flags |= offer::UNTRANSLATED;
    assert_eq!(check(&m), Err(Reason::Foreign));
    let (mut m, ..) = facts();
    m.a.reset = true;
    assert_eq!(check(&m), Err(Reason::Closing));
}

/// All reasons are reported at once, so that an operator does not meet them one by one.
#[test]
fn all_that_cannot_be_bridged_is_reported_at_once() {
    let (mut m, ..) = without(offer::SACK, true, false);
    m.subsession_b.right = "[fd00::3]:80".parse().unwrap();
    m.a.remote.flags |= offer::FOREIGN;
    m.b.remote.mss = 1400;
    m.a.remote.mss = 1300;
    let all = objections(&m);
    assert!(matches!(all[0], Reason::NewPathUnusable(_)), "{all:?}");
    assert_eq!(all[1..3], [Reason::Foreign, Reason::SackMismatch]);
    let sizes = |r: &Reason| matches!(r, Reason::MssMismatch { .. });
    assert_eq!(all[3..].iter().filter(|r| sizes(r)).count(), 2, "{all:?}");
    // No other reason counts for a session that is over.
    m.b.reset = true;
    assert_eq!(objections(&m), [Reason::Closing]);
}

#[test]
fn segments_must_fit_the_other_end() {
    let (mut m, ..) = facts();
    m.b.remote.mss = 1400;
    let refused = |from| Reason::MssMismatch {
        from,
        sends: 1460,
        accepts: 1400,
    };
    assert_eq!(check(&m), Err(refused(End::Left)));
    let (mut m, ..) = facts();
    m.a.remote.mss = 1400;
    assert_eq!(check(&m), Err(refused(End::Right)));
    // A smaller MSS than necessary is allowed.
    let (mut m, ..) = facts();
    m.a.local.mss = 1000;
    m.b.local.mss = 1000;
    assert_eq!(check(&m), Ok(()));
}

#[test]
fn what_is_rewritten_on_the_way_is_refused() {
    let (m, mut left, right) = facts();
    left.local.isn += 1;
    assert_eq!(
        plan(&m, &left, &right),
        Err(Reason::Rewritten(m.subsession_a))
    );
    let (m, left, mut right) = facts();
    right.remote.flags &= !offer::SACK;
    assert_eq!(
        plan(&m, &left, &right),
        Err(Reason::Rewritten(m.subsession_b))
    );
    // A clamped MSS does not count as a rewritten session.
    let (m, mut left, right) = facts();
    left.remote.mss -= 40;
    plan(&m, &left, &right).unwrap();
}

proptest! {
    /// Any numbers: the same byte, and clocks that never go back.
    #[test]
    fn any_numbers(
        isns in any::<[u32; 4]>(),
        clocks in any::<[u32; 4]>(),
        deltas in any::<(i64, i64)>(),
        sent in any::<u32>(),
    ) {
        let (mut m, mut left, mut right) = facts();
        (m.a.remote.isn, left.local.isn) = (isns[0], isns[0]);
        (m.a.local.isn, left.remote.isn) = (isns[1], isns[1]);
        (m.b.local.isn, right.remote.isn) = (isns[2], isns[2]);
        (m.b.remote.isn, right.local.isn) = (isns[3], isns[3]);
        (m.clock_a, m.clock_b) = (clocks[0], clocks[1]);
        (left.tsval_out, right.tsval_out) = (clocks[2], clocks[3]);
        (m.delta_forward, m.delta_reverse) = deltas;
        let t = plan(&m, &left, &right).unwrap();
        // The reference counts bytes in 128 bits and reduces at the end.
        let number = |from: u32, to: u32, delta: i64| {
            let byte = i128::from(sent) - i128::from(from) + i128::from(delta);
            (i128::from(to) + byte).rem_euclid(1 << 32) as u32
        };
        prop_assert_eq!(sent.wrapping_add(t.seq_out), number(isns[0], isns[2], deltas.0));
        prop_assert_eq!(sent.wrapping_add(t.seq_in), number(isns[3], isns[1], deltas.1));
        prop_assert_eq!(clocks[2].wrapping_add(t.ts_out).wrapping_sub(clocks[1]), TS_LEAD);
        prop_assert_eq!(clocks[3].wrapping_add(t.ts_in).wrapping_sub(clocks[0]), TS_LEAD);
    }
}
