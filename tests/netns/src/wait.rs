//! Waiting for a condition, never for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks again and again until `condition` gives a value.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs_f32());
        }
        sleep(Duration::from_millis(2));
    }
}
