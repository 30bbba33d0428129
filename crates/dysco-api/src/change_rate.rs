//! Rate at which the sessions of a request begin to change.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

const RANGE: RangeInclusive<u32> = 1..=1_000_000;
/// Maximum number of turns in a second. A timer has a granularity of a millisecond.
const TURNS: u32 = 200;

/// Maximum number of sessions that begin to change in any second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ChangeRate(u32);

impl ChangeRate {
    /// Returns the number of sessions a second.
    pub fn per_second(self) -> u32 {
        self.0
    }

    /// Returns the maximum number of sessions that begin in one turn.
    pub fn in_one_turn(self) -> u32 {
        self.0.div_ceil(TURNS)
    }

    /// Returns the minimum time from the last beginning of a turn to the first of the next one. So
    /// many turns fit into a second that their sessions are no more than the rate.
    pub fn between_turns(self) -> Duration {
        let turns = self.0 / self.in_one_turn();
        Duration::from_nanos(1_000_000_000_u64.div_ceil(turns.into()))
    }

    /// Returns the minimum time from the first beginning to the last one of so many sessions.
    pub fn least(self, sessions: usize) -> Duration {
        let turns = sessions.saturating_sub(1) / self.in_one_turn() as usize;
        self.between_turns()
            .saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX))
    }
}

impl TryFrom<u32> for ChangeRate {
    type Error = Cause;

    fn try_from(rate: u32) -> Result<Self, Cause> {
        match RANGE.contains(&rate) {
            true => Ok(ChangeRate(rate)),
            false => Err(no_rate(&rate.to_string())),
        }
    }
}

impl From<ChangeRate> for u32 {
    fn from(rate: ChangeRate) -> u32 {
        rate.0
    }
}

impl FromStr for ChangeRate {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let rate: u32 = s.parse().map_err(|_| no_rate(s))?;
        ChangeRate::try_from(rate)
    }
}

impl fmt::Display for ChangeRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn no_rate(s: &str) -> Cause {
    Cause::new(format!(
        "'{s}' is no rate of 1 to 1000000 sessions a second"
    ))
    .hint("write a whole number, such as 50")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(n: u32) -> ChangeRate {
        ChangeRate::try_from(n).unwrap()
    }

    #[test]
    fn turns_of_a_second_are_no_more_than_the_rate_and_hardly_less() {
        for n in (1..3_000).chain([9_999, 65_537, 1_000_000]) {
            let (most, between) = (rate(n).in_one_turn(), rate(n).between_turns());
            // A window of a second has as many turns as begin in it.
            let turns = Duration::from_secs(1)
                .as_nanos()
                .div_ceil(between.as_nanos());
            let sessions = turns * u128::from(most);
            assert!(sessions <= u128::from(n), "{n}: {sessions}");
            assert!(sessions * 100 >= u128::from(n) * 98, "{n}: {sessions}");
        }
    }

    #[test]
    fn the_least_time_is_that_of_all_beginnings_but_the_first() {
        let least = |n, sessions| rate(n).least(sessions).as_millis();
        assert_eq!([0, 1, 2, 3].map(|s| least(10, s)), [0, 0, 100, 200]);
        assert_eq!(least(1, 10_000), 9_999_000);
        assert_eq!([1, 5, 6, 1000].map(|s| least(1000, s)), [0, 0, 5, 995]);
        let _ = rate(1).least(usize::MAX);
    }

    #[test]
    fn only_whole_numbers_from_one_on_are_rates() {
        assert_eq!("50".parse(), Ok(rate(50)));
        for bad in [
            "0",
            "-1",
            "",
            "fast",
            "1.5",
            "50/s",
            "1000001",
            "4294967296",
        ] {
            let why = bad.parse::<ChangeRate>().unwrap_err().to_string();
            assert!(why.contains("no rate of 1 to 1000000"), "{bad}: {why}");
        }
        assert_eq!(serde_json::to_string(&rate(7)).unwrap(), "7");
        for bad in ["0", "-1", "\"7\"", "1.5"] {
            assert!(serde_json::from_str::<ChangeRate>(bad).is_err(), "{bad}");
        }
    }
}
