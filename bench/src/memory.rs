//! What a session costs in memory of the data plane's maps.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Effort;
use crate::figure::{Figure, Goal};
use crate::stage::Stage;

/// The maps whose size goes with the number of sessions.
const MAPS: [&str; 3] = ["FLOWS", "SESSIONS", "FREE"];
/// Not pinned: bytes of a hint, and hints of a session at most (a power of two).
const HINT: f64 = 4.0 * 4.0;

/// Asks the kernel what it charges for the maps of a running `dyscod`. They
/// are full from the start, so that no session ever waits for memory.
pub fn run(_: &Effort) -> Result<Vec<Figure>> {
    let stage = Stage::build("memory", "")?;
    let (mut bytes, mut room) = (0, 0);
    let mut figure = Figure::new("bytes_per_session", "bytes", 0.0).goal(Goal::AtMost(512.0));
    for map in MAPS {
        let path = format!("/sys/fs/bpf/dysco/v1/{map}");
        let words = ["-j", "map", "show", "pinned", &path];
        let text = stage.lab.client.output("bpftool", &words)?;
        let info: Value = serde_json::from_str(&text).context("bpftool printed no JSON")?;
        let number = |name: &str| {
            let number = info[name].as_u64();
            number.with_context(|| format!("bpftool did not say {name}: {text}"))
        };
        let charged = number("bytes_memlock")?;
        bytes += charged;
        if map == "SESSIONS" {
            room = number("max_entries")?;
        }
        figure = figure.aside(&format!("{map}, bytes in all"), charged as f64);
    }
    stage.end()?;
    figure.value = bytes as f64 / room as f64 + HINT;
    Ok(vec![figure.aside("sessions", room as f64)])
}
