//! Knowledge of a neighbour's clock, against the two clocks themselves.

use dysco_common::fresh::{Clock, FRESH, ticks};
use proptest::prelude::*;

/// Maximum slew of a clock by Linux, in hundredths. Two clocks may differ by twice as much.
const SLEWED: u64 = 10;

proptest! {
    /// A message that arrives shortly after it was sent is new, for years, whenever both clocks
    /// began and whichever is faster. A copy that arrives later than that is old.
    #[test]
    fn what_is_new_is_taken_and_a_copy_is_not(
        here in any::<u32>(),
        there in any::<u32>(),
        faster in any::<bool>(),
        pauses in proptest::collection::vec((0u64..3_000_000, 0u32..5), 1..60),
        age in FRESH * 2..20_000,
    ) {
        let mut clock = Clock::default();
        let (mut passed, mut sent) = (0u64, 0);
        let slewed = |passed: u64| passed * 2 * SLEWED / 100;
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

/// The end of a session is remembered longer than a copy of its SYN counts as new.
#[test]
fn a_copy_is_old_within_two_msl() {
    let clock = Clock::default().hears(500, 100).unwrap();
    let seconds = |ticks: u32| f64::from(ticks) * 1.073_741_824;
    let taken = (0..1000).rfind(|age| clock.hears(500 + age, 100).is_some());
    let taken = seconds(taken.unwrap() + 2);
    assert!(taken > 30.0 && taken < 60.0, "{taken} s");
}

/// Two processors may be on both sides of a tick's end.
#[test]
fn a_processor_that_is_behind_forgets_nothing() {
    let clock = Clock::default().hears(501, 101).unwrap();
    assert_eq!(clock.hears(500, 100), Some(clock));
    assert_eq!(clock.hears(500, 100 - FRESH - 2), None);
}

#[test]
fn a_tick_is_a_little_more_than_a_second() {
    assert_eq!(ticks(0), 0);
    assert_eq!(ticks(1_073_741_823), 0);
    assert_eq!(ticks(1_073_741_824), 1);
    assert_eq!(ticks(u64::MAX), u32::MAX);
}
