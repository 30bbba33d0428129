//! Translation of segments, rules and numbers.

use crate::reference::{Opt, buffer, serialize};
use dysco_common::flow::{Addr, FlowKey};
use dysco_common::rule::Rule;
use dysco_common::seq;
use dysco_common::session::translation::{LEAVE_SACK, STRIP_ECN, STRIP_TIMESTAMPS};
use dysco_common::tcp::{CWR, ECE, Segment, edit};
use dysco_common::translate::rescale;
use dysco_common::{FlowRef, Session, ShortKey, Translation};
use proptest::prelude::*;
use std::net::IpAddr;

prop_compose! {
    fn any_segment()(n in any::<(u32, u32)>(), len in 0u32..70_000, window in any::<u16>(), flags in any::<u8>()) -> Segment {
        Segment { seq: n.0, ack: n.1, len, window, flags }
    }
}

prop_compose! {
    fn any_translation()(n in any::<[u32; 4]>(), s in proptest::array::uniform4(0u8..=14), flags in 0u32..8) -> Translation {
        Translation {
            seq_out: n[0], seq_in: n[1], ts_out: n[2], ts_in: n[3],
            wscale_local: s[0], wscale_local_at_peer: s[1], wscale_remote_at_peer: s[2], wscale_remote: s[3],
            flags,
        }
    }
}

prop_compose! {
    fn any_key()(a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), p in any::<(u16, u16)>()) -> FlowKey {
        FlowKey { local: Addr::new(a), remote: Addr::new(b), local_port: p.0, remote_port: p.1 }
    }
}

/// Returns the translation that reverses another one at the other end of the wire.
fn mirrored(t: &Translation) -> Translation {
    Translation {
        seq_out: t.seq_in.wrapping_neg(),
        seq_in: t.seq_out.wrapping_neg(),
        ts_out: t.ts_in.wrapping_neg(),
        ts_in: t.ts_out.wrapping_neg(),
        ..*t
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn outgoing_is_as_documented(t in any_translation(), s in any_segment(), path in any_key()) {
        let e = t.outgoing(&s, &path);
        prop_assert_eq!((e.sport, e.dport), (path.local_port, path.remote_port));
        prop_assert_eq!(e.seq, s.seq.wrapping_add(t.seq_out));
        prop_assert_eq!(e.ack, s.ack.wrapping_sub(t.seq_in));
        prop_assert_eq!((e.tsval_add, e.tsecr_add), (t.ts_out, t.ts_in.wrapping_neg()));
        prop_assert_eq!(e.window, slow_rescale(s.window, t.wscale_local, t.wscale_local_at_peer));
        check_flags(&t, &s, e.flags, e.strip)?;
        let sack = if t.flags & LEAVE_SACK != 0 { 0 } else { t.seq_in.wrapping_neg() };
        prop_assert_eq!(e.sack_add, sack);
    }

    #[test]
    fn incoming_is_as_documented(t in any_translation(), s in any_segment(), key in any_key()) {
        let e = t.incoming(&s, &key);
        prop_assert_eq!((e.sport, e.dport), (key.remote_port, key.local_port));
        prop_assert_eq!(e.seq, s.seq.wrapping_add(t.seq_in));
        prop_assert_eq!(e.ack, s.ack.wrapping_sub(t.seq_out));
        prop_assert_eq!((e.tsval_add, e.tsecr_add), (t.ts_in, t.ts_out.wrapping_neg()));
        prop_assert_eq!(e.window, slow_rescale(s.window, t.wscale_remote_at_peer, t.wscale_remote));
        check_flags(&t, &s, e.flags, e.strip)?;
        let sack = if t.flags & LEAVE_SACK != 0 { 0 } else { t.seq_out.wrapping_neg() };
        prop_assert_eq!(e.sack_add, sack);
    }

    /// Outgoing here, incoming there, with the mirrored translation: every byte is as before,
    /// for any numbers.
    #[test]
    fn there_and_back_is_identity(
        mut t in any_translation(), fixed in any::<[u8; 20]>(),
        ts in any::<(u32, u32)>(), blocks in proptest::collection::vec(any::<(u32, u32)>(), 1..=3),
        key in any_key(), nops in 0usize..2,
    ) {
        t.flags = 0;
        (t.wscale_local_at_peer, t.wscale_remote) = (t.wscale_local, t.wscale_remote_at_peer);
        let mut options = serialize(&[vec![Opt::Nop; nops], vec![Opt::Timestamps(ts.0, ts.1), Opt::Sack(blocks)]].concat());
        options.resize(options.len().next_multiple_of(4), 1);
        let mut h = [&fixed[..], &options].concat();
        h[12] = (h.len() as u8 / 4) << 4;
        let seen_from_there = FlowKey {
            local: key.remote, remote: key.local,
            local_port: u16::from_ne_bytes([h[2], h[3]]), remote_port: u16::from_ne_bytes([h[0], h[1]]),
        };
        let mut b = buffer(&h);
        // A window with a scale of up to 14 survives if nothing is rounded, as here.
        b.rewrite(&t.outgoing(&b.segment(0), &key)).unwrap();
        b.rewrite(&mirrored(&t).incoming(&b.segment(0), &seen_from_there)).unwrap();
        let mut window = [h[14], h[15]];
        let w = u16::from_be_bytes(window);
        for (from, to) in [(t.wscale_local, t.wscale_local_at_peer), (t.wscale_remote_at_peer, t.wscale_remote)] {
            window = slow_rescale(w, from, to).to_be_bytes();
        }
        h[14..16].copy_from_slice(&window);
        prop_assert_eq!(&b.0[..h.len()], &h[..]);
    }

    #[test]
    fn a_window_never_grows(w in any::<u16>(), from in 0u8..=14, to in 0u8..=14) {
        let r = rescale(w, from, to);
        prop_assert_eq!(r, slow_rescale(w, from, to));
        prop_assert!(u64::from(r) << to <= u64::from(w) << from);
    }

    #[test]
    fn numbers_go_round(a in any::<u32>(), step in 1u32..0x8000_0000) {
        let b = a.wrapping_add(step);
        prop_assert!(seq::before(a, b) && !seq::before(b, a));
        prop_assert!(seq::after(b, a) && !seq::after(a, b));
        prop_assert_eq!((seq::max(a, b), seq::max(b, a)), (b, b));
        prop_assert_eq!((seq::min(a, b), seq::min(b, a)), (a, a));
        prop_assert!(!seq::before(a, a) && !seq::after(a, a));
    }

    #[test]
    fn a_rule_matches_its_prefix_and_ports(
        dst in any::<[u8; 16]>(), near in any::<[u8; 16]>(), bits in 0u32..=128,
        flip in proptest::option::of(0u32..128), port in any::<u16>(), ports in any::<(u16, u16)>(),
    ) {
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let mut prefix = u128::from_be_bytes(dst) & mask;
        if let Some(bit) = flip {
            prefix ^= 1 << bit & mask;
        }
        let inside = flip.is_none_or(|bit| bit < 128 - bits);
        let rule = Rule {
            prefix: Addr::new(prefix.to_be_bytes()), mask: Addr::new(mask.to_be_bytes()),
            first_port: ports.0, last_port: ports.1,
        };
        let in_range = (ports.0..=ports.1).contains(&port);
        prop_assert_eq!(rule.matches(&Addr::new(dst), port), inside && in_range);
        let near_inside = u128::from_be_bytes(near) & mask == prefix;
        prop_assert_eq!(rule.matches(&Addr::new(near), port), near_inside && in_range);
    }

    #[test]
    fn an_address_keeps_its_family(v4 in any::<[u8; 4]>(), v6 in any::<[u8; 16]>()) {
        prop_assert_eq!(Addr::v4(v4).ip(), IpAddr::from(v4));
        prop_assert_eq!(Addr::from(IpAddr::from(v4)), Addr::v4(v4));
        prop_assert_eq!(Addr::from(IpAddr::from(v6)).octets(), v6);
    }
}

fn slow_rescale(w: u16, from: u8, to: u8) -> u16 {
    let bytes = u64::from(w) << from;
    u16::try_from(bytes >> to).unwrap_or(u16::MAX)
}

fn check_flags(t: &Translation, s: &Segment, flags: u8, strip: u32) -> Result<(), TestCaseError> {
    let want = if t.flags & STRIP_ECN != 0 {
        s.flags & !(ECE | CWR)
    } else {
        s.flags
    };
    prop_assert_eq!(flags, want);
    let want = if t.flags & STRIP_TIMESTAMPS != 0 {
        edit::TIMESTAMPS
    } else {
        0
    };
    prop_assert_eq!(strip, want);
    Ok(())
}

/// An IPv4 rule does not match the IPv6 addresses of the mapped prefix.
#[test]
fn a_rule_of_ipv4_matches_ipv4_only() {
    let mut mask = [0xff; 16];
    mask[13..].fill(0);
    let rule = Rule {
        prefix: Addr::v4([10, 0, 0, 0]),
        mask: Addr::new(mask),
        first_port: 80,
        last_port: 80,
    };
    assert!(rule.matches(&Addr::v4([10, 1, 2, 3]), 80));
    assert!(!rule.matches(&Addr::v4([11, 1, 2, 3]), 80));
    assert!(!rule.matches(&Addr::v4([10, 1, 2, 3]), 81));
    let mut v6 = [0; 16];
    v6[12] = 10;
    assert!(!rule.matches(&Addr::new(v6), 80));
}

/// A session needs two elements of the flow map, up to three hints, its entry, and a free slot.
#[test]
fn a_session_takes_no_more_than_512_bytes() {
    // The kernel's hash element: its list, hash and links before key and value, each rounded to
    // words, and a bucket of 16 bytes.
    let round = |n: usize| n.next_multiple_of(8);
    let element = 48 + round(size_of::<ShortKey>()) + round(size_of::<FlowRef>()) + 16;
    let bytes = 2 * element + 3 * size_of::<u32>() + size_of::<Session>() + size_of::<u32>();
    assert!(bytes <= 512, "{bytes}");
}

proptest! {
    /// One side's outgoing segment equals the other side's incoming segment, except for the
    /// addresses.
    #[test]
    fn a_mirrored_translation_is_the_other_direction(t in any_translation(), s in any_segment(), key in any_key()) {
        let there = t.mirrored();
        prop_assert_eq!(there.mirrored(), t);
        let (out, heard) = (there.outgoing(&s, &key), t.incoming(&s, &key));
        let ports = dysco_common::tcp::Edit { sport: heard.sport, dport: heard.dport, ..out };
        prop_assert_eq!(ports, heard);
    }
}
