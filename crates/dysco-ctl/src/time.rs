//! Times on a command line.

use std::ops::RangeInclusive;
use std::time::Duration;

use dysco_explain::Cause;

/// Range of the time limit of a change.
const CHANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// Range of a drain's time limit: up to a month.
const DRAIN: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(31 * 86_400);

/// Parses the time limit of a removal, or of another change of one session.
pub(crate) fn change(s: &str) -> Result<Duration, Cause> {
    within(s, &CHANGE).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 600s")).hint("write it like 500ms or 10s")
    })
}

/// Parses the time limit of a drain.
pub(crate) fn drain(s: &str) -> Result<Duration, Cause> {
    within(s, &DRAIN).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 744h"))
            .hint("write it like 30s, 10m or 2h")
    })
}

/// Parses the interval of a repeated listing.
pub(crate) fn watch(s: &str) -> Result<Duration, Cause> {
    within(s, &CHANGE).ok_or_else(|| {
        Cause::new(format!("'{s}' is no time of 100ms to 600s")).hint("write it like 500ms or 2")
    })
}

/// Returns the words for the minimum time of changes at a limited rate.
pub(crate) fn at_least(time: Duration) -> String {
    let tenths = time.as_millis().div_ceil(100) as u64;
    let rounded = Duration::from_millis(100 * tenths);
    format!(
        "at this rate it would take {} at least",
        humantime::format_duration(rounded)
    )
}

/// Parses a number of seconds, or numbers with units, within a range.
fn within(s: &str, range: &RangeInclusive<Duration>) -> Option<Duration> {
    let time = match s.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(s).ok()?,
    };
    range.contains(&time).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_is_never_rounded_down() {
        let words = |ms| at_least(Duration::from_millis(ms));
        assert_eq!(words(19_980), "at this rate it would take 20s at least");
        assert!(words(61_010).contains("1m 1s 100ms"));
        assert!(words(0).contains(" 0s "));
    }

    #[test]
    fn times_are_read_with_and_without_units() {
        assert_eq!(change("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(change("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(change("10"), Ok(Duration::from_secs(10)));
        assert_eq!(change("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(change("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(drain("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(drain("1h 30m"), Ok(Duration::from_secs(5400)));
        for bad in [
            "",
            "s",
            "-1s",
            "1.5",
            "99ms",
            "601s",
            "18446744073709551615s",
            "11m",
        ] {
            assert!(change(bad).is_err(), "{bad}");
        }
        assert!(drain("745h").is_err() && drain("soon").is_err());
    }
}
