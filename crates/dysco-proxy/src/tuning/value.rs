//! Values of socket options, as the kernel has them.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

use dysco_api::{OFF, Rate, SocketOption, TuneOptions, time_text};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::sys::{option, set_option};

/// Value of `SO_MAX_PACING_RATE` without a limit.
const UNLIMITED: u64 = u64::MAX;
/// Number of probes' intervals in the silence before the first probe, and the kernel's default
/// interval, which is the longest here.
const PROBES: u64 = 3;
const INTERVAL: u64 = 75;

/// Range of the times of probes that the kernel sets (MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL).
const TIMES: RangeInclusive<u64> = 1..=32_767;

/// Value of an option, in the kernel's unit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A name.
    Name(String),
}

/// Returns the values that a request wants, in the order in which they are set. The timer of
/// probes is set before they are switched on, which starts it.
pub(super) fn wanted(options: &TuneOptions) -> Vec<(SocketOption, Value)> {
    let mut all = Vec::new();
    let mut add = |option, number| all.push((option, Value::Number(number)));
    if let Some(Rate(bits)) = options.rate {
        add(SocketOption::Rate, bits.map_or(UNLIMITED, |bits| bits / 8));
    }
    if let Some(keepalive) = options.keepalive {
        if let Some(silence) = keepalive.0.map(|time| time.as_secs()) {
            let interval = (silence / PROBES).clamp(1, INTERVAL);
            add(SocketOption::KeepaliveIdle, silence);
            add(SocketOption::KeepaliveInterval, interval);
        }
        add(SocketOption::Keepalive, keepalive.0.is_some().into());
    }
    if let Some(timeout) = options.user_timeout {
        let ms = timeout.0.map_or(0, |time| time.as_millis() as u64);
        add(SocketOption::UserTimeout, ms);
    }
    if let Some(nodelay) = options.nodelay {
        add(SocketOption::Nodelay, nodelay.into());
    }
    // A congestion control may take the limit of the rate into account when it begins.
    let congestion = options.congestion.as_ref();
    all.extend(congestion.map(|name| {
        let name = Value::Name(name.name().to_owned());
        (SocketOption::Congestion, name)
    }));
    all
}

impl Value {
    /// Returns the value of a socket.
    pub fn read(fd: &OwnedFd, of: SocketOption) -> io::Result<Value> {
        Ok(match Place::of(of) {
            Place::Name => Value::Name(sockopt::tcp_congestion(fd)?),
            Place::Long(name) => Value::Number(option(fd, libc::SOL_SOCKET, name)?),
            Place::Int(level, name) => {
                let value: i32 = option(fd, level, name)?;
                Value::Number(value.cast_unsigned().into())
            }
        })
    }

    /// Gives a socket the value.
    pub fn set(&self, fd: &OwnedFd, of: SocketOption) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        match (Place::of(of), self) {
            (Place::Name, Value::Name(name)) => Ok(sockopt::set_tcp_congestion(fd, name)?),
            (Place::Long(name), Value::Number(value)) => {
                set_option(fd, libc::SOL_SOCKET, name, *value)
            }
            (Place::Int(level, name), Value::Number(value)) => {
                let value = i32::try_from(*value).map_err(|_| invalid())?;
                set_option(fd, level, name, value)
            }
            (Place::Name, Value::Number(_)) | (_, Value::Name(_)) => Err(invalid()),
        }
    }

    /// Returns the nearest value that the kernel sets. A socket without times of its own has those
    /// of `net.ipv4`, which are not limited.
    pub fn settable(&self, of: SocketOption) -> Value {
        match (of, self) {
            (
                SocketOption::KeepaliveIdle | SocketOption::KeepaliveInterval,
                Value::Number(seconds),
            ) => Value::Number(*seconds.clamp(TIMES.start(), TIMES.end())),
            _ => self.clone(),
        }
    }

    /// Returns the value in the words of the command line.
    pub fn text(&self, of: SocketOption) -> String {
        let value = match self {
            Value::Name(name) => return name.clone(),
            Value::Number(value) => *value,
        };
        let switch = |on| if on { "on" } else { OFF }.to_owned();
        match of {
            SocketOption::Rate => {
                let bits = (value != UNLIMITED).then(|| value.saturating_mul(8));
                Rate(bits).to_string()
            }
            SocketOption::KeepaliveIdle | SocketOption::KeepaliveInterval => {
                time_text(Duration::from_secs(value))
            }
            SocketOption::UserTimeout if value == 0 => OFF.into(),
            SocketOption::UserTimeout => time_text(Duration::from_millis(value)),
            SocketOption::Keepalive | SocketOption::Nodelay => switch(value != 0),
            SocketOption::Congestion => value.to_string(),
        }
    }
}

/// Place and type of an option.
enum Place {
    /// `TCP_CONGESTION`.
    Name,
    /// An unsigned long of the socket level.
    Long(i32),
    /// An int: level and name.
    Int(i32, i32),
}

impl Place {
    fn of(option: SocketOption) -> Place {
        let tcp = |name| Place::Int(libc::IPPROTO_TCP, name);
        match option {
            SocketOption::Congestion => Place::Name,
            SocketOption::Rate => Place::Long(libc::SO_MAX_PACING_RATE),
            SocketOption::Keepalive => Place::Int(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            SocketOption::KeepaliveIdle => tcp(libc::TCP_KEEPIDLE),
            SocketOption::KeepaliveInterval => tcp(libc::TCP_KEEPINTVL),
            SocketOption::UserTimeout => tcp(libc::TCP_USER_TIMEOUT),
            SocketOption::Nodelay => tcp(libc::TCP_NODELAY),
        }
    }
}
