//! Times on a command line.

use std::ops::RangeInclusive;
use std::time::Duration;

use dysco_explain::Cause;

/// Range of a removal's time limit, in milliseconds.
const REMOVAL: RangeInclusive<u64> = 100..=600_000;
/// Range of a drain's time limit, in milliseconds: up to a month.
const DRAIN: RangeInclusive<u64> = 100..=31 * 86_400_000;

/// Parses the time limit of a removal.
pub fn removal(s: &str) -> Result<Duration, Cause> {
    within(s, &REMOVAL).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 600s")).hint("write it like 500ms or 10s")
    })
}

/// Parses the time limit of a drain.
pub fn drain(s: &str) -> Result<Duration, Cause> {
    within(s, &DRAIN).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 744h"))
            .hint("write it like 30s, 10m or 2h")
    })
}

/// Parses the interval of a repeated listing.
pub fn watch(s: &str) -> Result<Duration, Cause> {
    within(s, &REMOVAL).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 600s")).hint("write it like 500ms or 2")
    })
}

/// Parses a number of seconds, or a number with a unit, within a range.
fn within(s: &str, range: &RangeInclusive<u64>) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let unit = units.iter().find(|(unit, _)| s.ends_with(unit));
    let (number, factor) = match unit {
        Some((unit, factor)) => (s.strip_suffix(unit)?, *factor),
        None => (s, 1000),
    };
    let millis = number.parse::<u64>().ok()?.checked_mul(factor)?;
    range
        .contains(&millis)
        .then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        assert_eq!(removal("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(removal("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(removal("10"), Ok(Duration::from_secs(10)));
        assert_eq!(removal("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(drain("2h"), Ok(Duration::from_secs(7200)));
        for bad in [
            "",
            "s",
            "-1s",
            "1.5s",
            "99ms",
            "601s",
            "18446744073709551615s",
            "11m",
        ] {
            assert!(removal(bad).is_err(), "{bad}");
        }
        assert!(drain("745h").is_err() && drain("soon").is_err());
    }
}
