//! Checksums changed in place, against sums of whole packets and against the kernel's change of
//! either kind of field (`inet_proto_csum_replace_by_diff`).

use dysco_common::checksum::{Diff, Field, differ, fold16, fold32};
use proptest::prelude::*;

/// Words of a pseudo-header and of a segment without its checksum.
#[derive(Clone, Debug)]
struct Words {
    pseudo: [u32; 3],
    segment: [u32; 5],
}

fn sum(words: &[u32]) -> u64 {
    words.iter().map(|w| u64::from(*w)).sum()
}

impl Words {
    fn whole(&self) -> u16 {
        !fold16(sum(&self.pseudo) + sum(&self.segment))
    }

    fn diff(&self, to: &Words) -> Diff {
        let of = |old: &[u32], new: &[u32]| {
            let pairs = old.iter().zip(new);
            fold32(pairs.map(|(old, new)| differ(*new, *old)).sum())
        };
        Diff {
            pseudo: of(&self.pseudo, &to.pseudo),
            segment: of(&self.segment, &to.segment),
        }
    }
}

/// The kernel's change of a field by a difference of the pseudo-header.
fn kernel(field: u16, diff: u64, to_be_completed: bool) -> u16 {
    if to_be_completed {
        fold16(diff + u64::from(field))
    } else {
        !fold16(diff + u64::from(!field))
    }
}

/// Returns true if two sums are equal. Both forms of zero are the same.
fn same(a: u16, b: u16) -> bool {
    a == b || [a, b].iter().all(|s| [0, 0xffff].contains(s))
}

fn any_words() -> impl Strategy<Value = Words> {
    // Folding errors show with zeros and ones.
    let word = prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0xffff), Just(1)];
    let pseudo = prop::array::uniform3(word.clone());
    (pseudo, prop::array::uniform5(word)).prop_map(|(mut pseudo, segment)| {
        // The protocol and a length.
        pseudo[2] = 26u32.to_be();
        Words { pseudo, segment }
    })
}

proptest! {
    #[test]
    fn a_whole_checksum_stays_right(old in any_words(), new in any_words()) {
        let diff = old.diff(&new);
        prop_assert!(same(diff.put(Field::Whole, old.whole()), new.whole()));
        // Without the kind of the field, and with the kernel's part.
        let put = diff.put(Field::Either, old.whole());
        prop_assert!(same(kernel(put, diff.rest(), false), new.whole()));
    }

    #[test]
    fn a_sum_to_be_completed_stays_that_of_the_pseudo_header(old in any_words(), new in any_words()) {
        let diff = old.diff(&new);
        let [before, after] = [&old, &new].map(|words| fold16(sum(&words.pseudo)));
        prop_assert!(same(diff.put(Field::Pseudo, before), after));
        let put = diff.put(Field::Either, before);
        prop_assert!(same(kernel(put, diff.rest(), true), after));
    }

    /// A device's sum covers all that it received. In IPv4 the header's words sum to zero,
    /// including its checksum. In IPv6 they are part of the sum.
    #[test]
    fn a_devices_sum_stays_that_of_the_packet(old in any_words(), new in any_words(), v6: bool) {
        let diff = old.diff(&new);
        let of = |words: &Words| {
            let addresses = if v6 { sum(&words.pseudo) } else { 0 };
            fold16(addresses + sum(&words.segment) + u64::from(words.whole()))
        };
        let update = |sum: u16, field| fold16(u64::from(sum) + u64::from(diff.of_packet(field, v6)));
        prop_assert!(same(update(of(&old), Field::Whole), of(&new)));
        // The kernel subtracts a difference of the pseudo-header from it.
        let asked = fold16(u64::from(of(&old)) + u64::from(!fold16(diff.rest())));
        prop_assert!(same(update(asked, Field::Either), of(&new)));
    }

    #[test]
    fn what_a_right_packet_has_is_never_taken_for_the_other(words in any_words()) {
        let pseudo = sum(&words.pseudo);
        for of_many in [false, true] {
            prop_assert_ne!(Field::of(fold16(pseudo), pseudo, of_many), Field::Whole);
        }
        let whole = words.whole();
        if !same(whole, fold16(pseudo)) {
            prop_assert_eq!(Field::of(whole, pseudo, false), Field::Whole);
            prop_assert_eq!(Field::of(whole, pseudo, true), Field::Whole);
        } else {
            prop_assert_eq!(Field::of(whole, pseudo, false), Field::Either);
        }
    }
}

#[test]
fn either_form_of_zero_may_be_the_pseudo_headers() {
    let pseudo = 0xffff_ffff;
    assert_eq!(Field::of(0, pseudo, false), Field::Either);
    assert_eq!(Field::of(0xffff, pseudo, false), Field::Either);
    assert_eq!(Field::of(1, pseudo, false), Field::Whole);
}
