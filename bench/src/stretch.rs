//! Stretches of a stream.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::machine;

/// Results of a stretch of a stream.
pub(crate) struct Stretch {
    /// Bits per second that arrived.
    pub rate: f64,
    /// Number of bytes that arrived.
    pub bytes: u64,
    /// Busy time of the whole machine's processors.
    pub busy: Duration,
}

/// Measures a stretch of this duration.
pub(crate) fn stretch(time: Duration, arrived: impl Fn() -> u64) -> Result<Stretch> {
    let start = Instant::now();
    let (from, idle) = (arrived(), machine::idle()?);
    std::thread::sleep(time);
    let (to, idle, took) = (arrived(), machine::idle()? - idle, start.elapsed());
    let all = took * machine::processors() as u32;
    Ok(Stretch {
        rate: (to - from) as f64 * 8.0 / took.as_secs_f64(),
        bytes: to - from,
        busy: all.saturating_sub(idle),
    })
}
