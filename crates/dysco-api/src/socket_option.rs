//! Socket options of a session's end that can be tuned, and their values in words.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// Word for an option that is switched off, or a limit that is absent.
pub const OFF: &str = "off";

/// A socket option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketOption {
    /// Congestion control (`TCP_CONGESTION`).
    Congestion,
    /// Maximum rate at which the end sends (`SO_MAX_PACING_RATE`).
    Rate,
    /// Probes of a silent peer (`SO_KEEPALIVE`).
    Keepalive,
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    KeepaliveIdle,
    /// Time between probes (`TCP_KEEPINTVL`).
    KeepaliveInterval,
    /// Time for which sent data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    UserTimeout,
    /// Small segments at once (`TCP_NODELAY`).
    Nodelay,
}

impl fmt::Display for SocketOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SocketOption::Congestion => "congestion",
            SocketOption::Rate => "rate",
            SocketOption::Keepalive => "keepalive",
            SocketOption::KeepaliveIdle => "keepalive idle",
            SocketOption::KeepaliveInterval => "keepalive interval",
            SocketOption::UserTimeout => "user timeout",
            SocketOption::Nodelay => "nodelay",
        })
    }
}

/// Name of a congestion control, such as `bbr`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Congestion(String);

/// Maximum length of the name: TCP_CA_NAME_MAX of the kernel, without the zero byte.
const NAME: usize = 15;

impl Congestion {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl FromStr for Congestion {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        match !s.is_empty() && s.len() <= NAME && s.bytes().all(allowed) {
            true => Ok(Congestion(s.to_owned())),
            false => Err(Cause::new(format!("'{s}' names no congestion control"))
                .hint("write it as 'sysctl net.ipv4.tcp_available_congestion_control' lists it")),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum rate of an end, in bits per second; `None` for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Rate(pub Option<u64>);

/// Range of a limit, in bits per second. A segment takes more than a second at the least.
const RATES: RangeInclusive<u64> = 8_000..=1_000_000_000_000;
/// Units of a rate, the greatest first.
const UNITS: [(char, u64); 3] = [('G', 1_000_000_000), ('M', 1_000_000), ('K', 1_000)];

impl FromStr for Rate {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        if s == OFF {
            return Ok(Rate(None));
        }
        let rate = bits(s).filter(|bits| RATES.contains(bits));
        rate.map(|bits| Rate(Some(bits))).ok_or_else(|| {
            Cause::new(format!("'{s}' is no rate of 8K to 1000G"))
                .hint("write bits per second, like 20M, 1.5G or 64K, or 'off'")
        })
    }
}

/// Parses a number with a unit. A part of a bit does not count.
fn bits(s: &str) -> Option<u64> {
    let unit = |(unit, factor): &(char, u64)| {
        let number = s.strip_suffix([*unit, unit.to_ascii_lowercase()])?;
        Some((number, *factor))
    };
    let (number, factor) = UNITS.iter().find_map(unit).unwrap_or((s, 1));
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| (1..=12).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let scale = 10_u128.pow(part.len() as u32);
    let part = part.parse::<u128>().ok()? * u128::from(factor) / scale;
    whole.checked_add(part as u64)
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bits) = self.0 else {
            return f.write_str(OFF);
        };
        let fits = |(_, factor): &&(char, u64)| bits >= *factor && bits.is_multiple_of(*factor);
        match UNITS.iter().find(fits) {
            Some((unit, factor)) => write!(f, "{}{unit}", bits / factor),
            None => bits.fmt(f),
        }
    }
}

/// Silence after which an end probes its peer; `None` for no probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Keepalive(pub Option<Duration>);

/// Time for which sent data may stay unacknowledged; `None` for the kernel's own limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct UserTimeout(pub Option<Duration>);

/// Range of the silence: the upper bound is MAX_TCP_KEEPIDLE of the kernel.
const SILENCE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(32_767);
/// Range of a user timeout. A shorter one would end a session at its first lost segment.
const UNACKNOWLEDGED: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 86_400);

impl FromStr for Keepalive {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let whole = |time: &Option<Duration>| time.is_none_or(|time| time.subsec_nanos() == 0);
        let time = time(s, &SILENCE).filter(whole);
        time.map(Keepalive).ok_or_else(|| {
            Cause::new(format!("'{s}' is no time of 1s to 32767s"))
                .hint("write whole seconds, like 30s or 5m, or 'off'")
        })
    }
}

impl FromStr for UserTimeout {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        time(s, &UNACKNOWLEDGED).map(UserTimeout).ok_or_else(|| {
            Cause::new(format!("'{s}' is no time of 1s to 576h"))
                .hint("write it like 60s, 1500ms or 5m, or 'off'")
        })
    }
}

/// Parses a number of seconds, numbers with units, or `off`. `None` stands for a text that is
/// neither or out of range.
#[expect(clippy::option_option, reason = "the outer one is the error")]
pub(crate) fn time(s: &str, range: &RangeInclusive<Duration>) -> Option<Option<Duration>> {
    let time = match s.parse() {
        _ if s == OFF => return Some(None),
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(s).ok()?,
    };
    range.contains(&time).then_some(Some(time))
}

/// Returns a time as a number of seconds, or of milliseconds if it has a part of a second.
pub fn time_text(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}

macro_rules! as_text {
    ($($time:ident),*) => {$(
        impl fmt::Display for $time {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.map_or_else(|| OFF.to_owned(), time_text))
            }
        }
    )*};
}

macro_rules! as_string {
    ($($value:ident),*) => {$(
        impl From<$value> for String {
            fn from(value: $value) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $value {
            type Error = Cause;

            fn try_from(s: String) -> Result<Self, Cause> {
                s.parse()
            }
        }
    )*};
}

as_text!(Keepalive, UserTimeout);
as_string!(Congestion, Rate, Keepalive, UserTimeout);

/// A socket option with another value, in the words of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedOption {
    /// The option.
    pub option: SocketOption,
    /// Value before.
    pub from: String,
    /// Value afterwards.
    pub to: String,
}

impl fmt::Display for TunedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunedOption { option, from, to } = self;
        write!(f, "{option} {from} to {to}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bits_with_units() {
        for (text, bits, shown) in [
            ("20M", 20_000_000, "20M"),
            ("20m", 20_000_000, "20M"),
            ("1.5G", 1_500_000_000, "1500M"),
            ("0.1M", 100_000, "100K"),
            ("8000", 8_000, "8K"),
            ("12345", 12_345, "12345"),
            ("1.2345678K", 1_234, ""),
            ("1000G", 1_000_000_000_000, "1000G"),
        ] {
            assert_eq!(super::bits(text), Some(bits), "{text}");
            if !shown.is_empty() {
                let rate: Rate = text.parse().unwrap();
                assert_eq!(rate, Rate(Some(bits)), "{text}");
                assert_eq!(rate.to_string(), shown);
                assert_eq!(shown.parse::<Rate>().unwrap(), rate);
            }
        }
        assert_eq!("off".parse::<Rate>().unwrap(), Rate(None));
        let bad = [
            "",
            "0",
            "0M",
            "M",
            "20MB",
            "20Mbit",
            "-1M",
            "1e6",
            ".5M",
            "5.M",
            "7.9K",
            "1001G",
            "18446744073709551615G",
            "1 M",
            "on",
        ];
        for bad in bad {
            let error = bad.parse::<Rate>().unwrap_err();
            assert!(error.hint.is_some(), "{bad}");
        }
    }

    #[test]
    fn times_have_units_and_can_be_off() {
        let keepalive = |s: &str| s.parse::<Keepalive>();
        assert_eq!(keepalive("30s").unwrap().0, Some(Duration::from_secs(30)));
        assert_eq!(keepalive("30").unwrap(), keepalive("30s").unwrap());
        assert_eq!(keepalive("off").unwrap(), Keepalive(None));
        assert_eq!(keepalive("5m").unwrap().to_string(), "300s");
        for bad in [
            "", "0", "0s", "1500ms", "32768s", "10h", "-1s", "soon", "on",
        ] {
            assert!(keepalive(bad).is_err(), "{bad}");
        }
        let timeout = |s: &str| s.parse::<UserTimeout>();
        assert_eq!(timeout("1500ms").unwrap().to_string(), "1500ms");
        assert_eq!(timeout("1m").unwrap().to_string(), "60s");
        assert_eq!(timeout("off").unwrap().to_string(), "off");
        for bad in ["0", "999ms", "577h", "", "18446744073709551615s"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_congestion_control_has_a_short_name() {
        assert_eq!("bbr".parse::<Congestion>().unwrap().name(), "bbr");
        for bad in ["", "b r", "bbr\0", "a/b", "a_name_of_16_cha", "bbr;reno"] {
            assert!(bad.parse::<Congestion>().is_err(), "{bad}");
        }
    }

    /// A program may write any JSON.
    #[test]
    fn values_are_checked_when_they_are_read() {
        assert!(serde_json::from_str::<Rate>("\"20M\"").is_ok());
        for bad in ["\"0\"", "0", "null", "\"1e99\""] {
            assert!(serde_json::from_str::<Rate>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Keepalive>("\"0s\"").is_err());
        assert!(serde_json::from_str::<Congestion>("\"\"").is_err());
    }
}
