//! Waits for a condition, never for a fixed time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Bounds of the pause between two checks. A check mostly costs a process or two, and other hosts
/// need the processors meanwhile. The pause is therefore at least twice as long as the check
/// took, and at least a fiftieth of the wait so far.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// Returns the factor by which limits are longer: `DYSCO_SLOW`, for emulated processors.
pub fn slow() -> u32 {
    let set = std::env::var("DYSCO_SLOW").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Evaluates `condition` repeatedly until it returns a value.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    let limit = limit * slow();
    loop {
        let check = Instant::now();
        if let Some(value) = condition() {
            return Ok(value);
        }
        let (took, waited) = (check.elapsed(), start.elapsed());
        if waited > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs_f32());
        }
        sleep((waited / 50).max(2 * took).clamp(PAUSE[0], PAUSE[1]));
    }
}
