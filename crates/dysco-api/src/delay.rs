//! A delay in words, such as `50ms`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use dysco_explain::Cause;

use crate::socket_option::time;

/// Time for which bytes are delayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay(pub Duration);

/// Range of a delay.
const DELAYS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

impl FromStr for Delay {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        time(s, &DELAYS).flatten().map(Delay).ok_or_else(|| {
            Cause::new(format!("'{s}' is no time of 1ms to 60s"))
                .hint("write it like 50ms, 1500ms or 2s")
        })
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_has_a_unit_and_bounds() {
        let delay = |s: &str| s.parse::<Delay>();
        assert_eq!(delay("50ms").unwrap(), Delay(Duration::from_millis(50)));
        assert_eq!(delay("2").unwrap(), delay("2s").unwrap());
        assert_eq!(delay("1500us").unwrap().to_string(), "1ms 500us");
        for bad in ["", "0", "0ms", "999us", "61s", "off", "-1s", "soon"] {
            assert!(delay(bad).is_err(), "{bad}");
        }
    }
}
