//! The rewrite of a TCP header against the reference.

use crate::reference::{self, Opt, buffer, parse, serialize, sum};
use dysco_common::session::{Offer, offer};
use dysco_common::short::ShortHeader;
use dysco_common::tcp::{ACK, CWR, ECE, Edit, Header, Malformed, SYN, edit};
use proptest::collection::vec;
use proptest::prelude::*;

fn opt() -> impl Strategy<Value = Opt> {
    let sack = vec(any::<(u32, u32)>(), 1..=4).prop_map(Opt::Sack);
    // D-SACK: the first block is repeated, or lies within the second.
    let d_sack = any::<(u32, u32)>().prop_map(|b| Opt::Sack(vec![b, b]));
    prop_oneof![
        4 => Just(Opt::Nop),
        3 => sack,
        1 => d_sack,
        3 => any::<(u32, u32)>().prop_map(|(a, b)| Opt::Timestamps(a, b)),
        2 => (2u8.., vec(any::<u8>(), 0..12)).prop_map(|(k, b)| Opt::Other(k, b)),
        1 => any::<u8>().prop_map(|scale| Opt::Other(3, vec![scale])),
        1 => vec(any::<u8>(), 0..4).prop_map(Opt::End),
    ]
}

/// Returns option bytes of a whole number of words: mostly well-formed lists, in any order and
/// therefore at any offset, cut where the header ends; sometimes noise.
fn options() -> impl Strategy<Value = Vec<u8>> {
    // As Linux orders them.
    let usual = (any::<(u32, u32)>(), opt(), vec(opt(), 0..3)).prop_map(|((a, b), third, rest)| {
        let begin = vec![Opt::Nop, Opt::Nop, Opt::Timestamps(a, b)];
        [begin, vec![Opt::Nop, Opt::Nop, third], rest].concat()
    });
    let lists = prop_oneof![2 => vec(opt(), 0..8), 1 => usual];
    let list = (lists, 0u8..2).prop_map(|(list, pad)| {
        let mut b = serialize(&list);
        while !b.len().is_multiple_of(4) {
            b.push(1 - pad);
        }
        b.truncate(40);
        b
    });
    let kind = prop_oneof![
        Just(0u8),
        Just(1),
        Just(5),
        Just(8),
        Just(10),
        Just(18),
        any::<u8>()
    ];
    let noise = (0usize..=10, vec(kind, 40)).prop_map(|(words, mut b)| {
        b.truncate(words * 4);
        b
    });
    prop_oneof![4 => list, 1 => noise]
}

fn header_with(options: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (any::<[u8; 20]>(), options).prop_map(|(fixed, options)| {
        let mut h = fixed.to_vec();
        h[12] = ((20 + options.len()) as u8 / 4) << 4 | (h[12] & 0xf);
        h.extend(options);
        h
    })
}

prop_compose! {
    fn any_edit()(
        ports in any::<(u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        adds in any::<(u32, u32, u32)>(),
        window in any::<u16>(),
        flags in any::<u8>(),
        strip in 0u32..8,
        (wscale, sack_limit) in (0u32..16, any::<u32>()),
    ) -> Edit {
        Edit {
            sport: ports.0,
            dport: ports.1,
            seq: numbers.0,
            ack: numbers.1,
            window,
            flags,
            sack_add: adds.0,
            tsval_add: adds.1,
            tsecr_add: adds.2,
            strip,
            wscale,
            sack_limit,
        }
    }
}

/// Folds a sum of native words to the 16 bits of a checksum, in network order.
fn fold(mut s: u64) -> u16 {
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    u16::from_be(s as u16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn rewrite_is_what_the_reference_makes(h in header_with(options()), e in any_edit()) {
        let mut b = buffer(&h);
        let done = b.rewrite(&e);
        match reference::rewrite(&h, &e) {
            Some(want) => {
                prop_assert_eq!(done, Ok(()));
                prop_assert_eq!(&b.0[..h.len()], &want[..]);
                prop_assert!(b.0[h.len().min(60)..60].iter().all(|b| *b == 0), "wrote past the header");
            }
            None => prop_assert_eq!(done, Err(Malformed)),
        }
    }

    #[test]
    fn the_fast_rewrite_is_the_same(
        fixed in header_with(Just(vec![])),
        ts in proptest::option::of(any::<(u32, u32)>()),
        e in any_edit(),
    ) {
        let mut h = fixed;
        if let Some((val, ecr)) = ts {
            h.extend(serialize(&[Opt::Nop, Opt::Nop, Opt::Timestamps(val, ecr)]));
            h[12] = 0x80 | (h[12] & 0xf);
        }
        let b = buffer(&h);
        prop_assert_eq!(b.starts_with_timestamps(), ts.is_some());
        if let Some(ts) = ts {
            prop_assert_eq!(b.timestamps(), ts);
        }
        let mut short = ShortHeader::default();
        for (word, bytes) in short.0.iter_mut().zip(h.chunks(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap());
        }
        let before = b.sum();
        let diff = short.rewrite(ts.is_some(), &e);
        let bytes: Vec<u8> = short.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let want = reference::rewrite(&h, &e).unwrap();
        prop_assert_eq!(&bytes[..h.len()], &want[..]);
        prop_assert_eq!(fold(before + diff) % 0xffff, fold(buffer(&want).sum()) % 0xffff);
    }

    #[test]
    fn two_edits_are_one(h in header_with(options()), first in any_edit(), then in any_edit()) {
        let limits = first.strip & edit::LIMIT_SACK;
        let then = Edit { strip: then.strip & !limits, ..then };
        // No translation adds an acknowledgement to a segment without one.
        let then = Edit { flags: then.flags & !ACK | first.flags & ACK, ..then };
        let (mut twice, mut once) = (buffer(&h), buffer(&h));
        let done = [twice.rewrite(&first), twice.rewrite(&then)];
        prop_assert_eq!(once.rewrite(&then.after(&first)).is_err(), done[1].is_err());
        if done[1].is_ok() {
            prop_assert_eq!(once.0, twice.0);
        }
    }

    #[test]
    fn the_sum_is_that_of_the_header(h in header_with(options())) {
        // 0 and 0xffff are the same number in one's complement.
        prop_assert_eq!(fold(buffer(&h).sum()) % 0xffff, sum(&h) % 0xffff);
    }

    /// As the programs do: add the difference of the sums to the checksum.
    #[test]
    fn a_difference_of_sums_keeps_the_checksum_right(
        h in header_with(options()), e in any_edit(), payload in vec(any::<u8>(), 0..16),
    ) {
        let Some(want) = reference::rewrite(&h, &e) else { return Ok(()) };
        let mut b = buffer(&h);
        let before = b.sum();
        prop_assert_eq!(b.rewrite(&e), Ok(()));
        let after = b.sum();
        let old = sum(&[&h[..], &payload].concat());
        let new = u64::from(old.to_be()) + after + 0xffff_ffff * 64 - before;
        prop_assert_eq!(fold(new) % 0xffff, sum(&[&want[..], &payload].concat()) % 0xffff);
    }

    #[test]
    fn fixed_fields_are_read(h in header_with(options()), len in 0u32..100_000) {
        let b = buffer(&h);
        let s = b.segment(len);
        prop_assert_eq!(b.data_offset(), h.len());
        prop_assert_eq!(&s.seq.to_be_bytes()[..], &h[4..8]);
        prop_assert_eq!(&s.ack.to_be_bytes()[..], &h[8..12]);
        prop_assert_eq!(&s.window.to_be_bytes()[..], &h[14..16]);
        prop_assert_eq!((s.flags, s.len), (h[13], len));
        let takes = len + u32::from(h[13] & 1) + u32::from(h[13] >> 1 & 1);
        prop_assert_eq!(s.end(), s.seq.wrapping_add(takes));
    }

    #[test]
    fn an_offer_is_what_the_reference_reads(h in header_with(syn_options()), mss in any::<u16>()) {
        let mut got = Offer::default();
        let done = buffer(&h).offer(mss, &mut got);
        match offered(&h, mss) {
            Some(want) => prop_assert_eq!((done, got), (Ok(()), want)),
            None => prop_assert_eq!(done, Err(Malformed)),
        }
    }

    /// The options that are read without a loop, and options that differ from them in a byte.
    #[test]
    fn the_usual_offer_is_what_the_reference_reads(
        mut h in header_with(usual_options()), at in 20usize..40, other in any::<u8>(), mss: u16,
    ) {
        for same in [true, false] {
            if !same {
                h[at] = other;
            }
            let mut got = Offer::default();
            let done = buffer(&h).offer(mss, &mut got);
            match offered(&h, mss) {
                Some(want) => prop_assert_eq!((done, got), (Ok(()), want)),
                None => prop_assert_eq!(done, Err(Malformed)),
            }
        }
    }
}

fn usual_options() -> impl Strategy<Value = Vec<u8>> {
    let fields = (any::<[u8; 2]>(), any::<[u8; 8]>(), 0u8..18);
    fields.prop_map(|(mss, times, scale)| {
        let begin = [2, 4, mss[0], mss[1], 4, 2, 8, 10];
        [&begin[..], &times, &[1, 3, 3, scale]].concat()
    })
}

fn syn_options() -> impl Strategy<Value = Vec<u8>> {
    let known = prop_oneof![
        any::<[u8; 2]>().prop_map(|b| Opt::Other(2, b.to_vec())),
        any::<u8>().prop_map(|b| Opt::Other(3, vec![b])),
        (0u8..16).prop_map(|b| Opt::Other(3, vec![b])),
        Just(Opt::Other(4, vec![])),
        (
            prop_oneof![Just(19u8), Just(29), Just(30)],
            vec(any::<u8>(), 0..18)
        )
            .prop_map(|(k, b)| Opt::Other(k, b)),
        opt(),
    ];
    vec(known, 0..7).prop_map(|list| {
        let mut b = serialize(&list);
        b.resize(b.len().next_multiple_of(4), 1);
        b.truncate(40);
        b
    })
}

fn offered(h: &[u8], mss: u16) -> Option<Offer> {
    let ecn = match (h[13] & ACK != 0, h[13] & (ECE | CWR)) {
        (true, ECE) => offer::ECN,
        (false, both) if both == ECE | CWR => offer::ECN,
        _ => 0,
    };
    let is_accecn = h[12] & 1 != 0 || h[13] & ACK != 0 && h[13] & CWR != 0;
    let foreign = if is_accecn { offer::UNTRANSLATED } else { 0 };
    let mut o = Offer {
        isn: u32::from_be_bytes(h[4..8].try_into().unwrap()),
        mss,
        wscale: 0,
        flags: offer::SEEN | ecn | foreign,
    };
    for opt in parse(&h[20..])? {
        match opt {
            Opt::Other(2, b) if b.len() == 2 => o.mss = u16::from_be_bytes([b[0], b[1]]),
            Opt::Other(3, b) if b.len() == 1 => {
                o.wscale = b[0].min(14);
                o.flags |= offer::WSCALE;
            }
            Opt::Other(4, b) if b.is_empty() => o.flags |= offer::SACK,
            Opt::Timestamps(..) => o.flags |= offer::TIMESTAMPS,
            Opt::Other(19 | 29, _) => o.flags |= offer::FOREIGN,
            Opt::Other(30, _) => o.flags |= offer::UNTRANSLATED,
            Opt::Other(34, _) => o.flags |= offer::FAST_OPEN,
            _ => {}
        }
    }
    Some(o)
}

/// The maximum number of steps of a walk: every byte is an option's last.
#[test]
fn the_longest_walks_reach_the_end() {
    let four_timestamps = serialize(&vec![Opt::Timestamps(1, 2); 4]);
    let e = Edit {
        strip: edit::TIMESTAMPS | edit::SACK,
        ..Edit::default()
    };
    for options in [
        vec![1; 40],
        four_timestamps,
        vec![1; 38].into_iter().chain([7, 1]).collect(),
    ] {
        let mut h = vec![0; 20];
        h[12] = 0xf0;
        h.extend(&options);
        let mut b = buffer(&h);
        assert_eq!(
            b.rewrite(&e).ok(),
            reference::rewrite(&h, &e).map(|want| {
                assert_eq!(b.0[..60], want[..]);
            })
        );
    }
}

#[test]
fn a_length_that_no_option_has_is_malformed() {
    for bad in [
        &[8, 0, 1, 1][..],
        &[8, 1, 1, 1],
        &[8, 10, 1, 1],
        &[1, 1, 1, 8],
        &[5, 34, 0, 0],
    ] {
        let mut h = vec![0; 20];
        h[12] = 0x60;
        h[13] = SYN;
        h.extend(bad);
        assert_eq!(
            buffer(&h).rewrite(&Edit::default()),
            Err(Malformed),
            "{bad:?}"
        );
        assert_eq!(
            buffer(&h).offer(536, &mut Offer::default()),
            Err(Malformed),
            "{bad:?}"
        );
    }
    // After the end of the list any bytes may follow.
    let mut h = Header::zeroed();
    h.0[12] = 0x60;
    h.0[20..24].copy_from_slice(&[0, 8, 0, 0]);
    assert_eq!(h.rewrite(&Edit::default()), Ok(()));
}
