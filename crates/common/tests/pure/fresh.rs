//! A neighbour's clock, against the two clocks themselves.

use dysco_common::fresh::{Clock, FRESH, ticks};
use proptest::prelude::*;

/// The most by which Linux slews a clock, in millionths; two may differ by twice that.
const SLEWED: u64 = 500;

proptest! {
    /// What comes within moments of being sent is new, for years, wherever both clocks
    /// began and whichever runs faster; and what comes again later than that is not.
    #[test]
    fn what_is_new_is_taken_and_a_copy_is_not(
        here in any::<u32>(),
        there in any::<u32>(),
        faster in any::<bool>(),
        pauses in proptest::collection::vec((0u64..3_000_000, 0u32..5), 1..60),
        age in FRESH + 8..20_000,
    ) {
        let mut clock = Clock::default();
        let (mut passed, mut sent) = (0u64, 0);
        let slewed = |passed: u64| passed * 2 * SLEWED / 1_000_000;
        for (pause, under_way) in pauses {
            passed += pause;
            let ahead = if faster { passed + slewed(passed) } else { passed - slewed(passed) };
            sent = there.wrapping_add(ahead as u32);
            let now = here.wrapping_add(passed as u32).wrapping_add(under_way);
            let heard = clock.hears(now, sent);
            prop_assert!(heard.is_some(), "{passed} ticks on, {under_way} under way");
            clock = heard.unwrap();
        }
        let now = here.wrapping_add(passed as u32).wrapping_add(age);
        prop_assert_eq!(clock.hears(now, sent), None);
    }
}

#[test]
fn a_tick_is_a_little_more_than_a_second() {
    assert_eq!(ticks(0), 0);
    assert_eq!(ticks(1_073_741_823), 0);
    assert_eq!(ticks(1_073_741_824), 1);
    assert_eq!(ticks(u64::MAX), u32::MAX);
}
