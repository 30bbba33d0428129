//! Memory of an entry in the data plane's maps.

use anyhow::{Context, Result};
use dysco_agent::LAYOUT;
use dysco_config::DEFAULT_PIN_DIR;
use dysco_netns::Host;
use serde_json::Value;

use crate::Effort;
use crate::figure::{Figure, Goal};
use crate::stage::Stage;

/// Maps whose size depends on the number of sessions.
const MAPS: [&str; 3] = ["FLOWS", "SESSIONS", "FREE"];
/// Bytes of a hint. The hints are not pinned.
const HINT: f64 = 4.0;

/// Reads the memory that the kernel charges for the maps of a running `dyscod`. The maps are
/// allocated in full at the start, so that no session ever waits for memory.
pub(crate) fn run(_: &Effort) -> Result<Vec<Figure>> {
    let stage = Stage::build("memory", "")?;
    let (charged, room) = charged(&stage.lab.client)?;
    stage.end()?;
    let mut figure = Figure::new("bytes_per_session", "bytes", of_entry(&charged, room));
    for (map, bytes) in charged {
        figure = figure.aside(&format!("{map}, bytes in all"), bytes);
    }
    let figure = figure.goal(Goal::AtMost(512.0));
    Ok(vec![figure.aside("sessions", room)])
}

/// Bytes of maps per entry of a host's data plane.
pub(crate) fn of_an_entry(host: &Host) -> Result<f64> {
    let (charged, room) = charged(host)?;
    Ok(of_entry(&charged, room))
}

fn of_entry(charged: &[(&str, f64)], room: f64) -> f64 {
    let hints = HINT * f64::from(dysco_agent::hints(room as u32));
    (charged.iter().map(|(_, bytes)| bytes).sum::<f64>() + hints) / room
}

/// Bytes that the kernel charges for each of the maps, and number of entries for which there is
/// room.
fn charged(host: &Host) -> Result<(Vec<(&'static str, f64)>, f64)> {
    let (mut charged, mut room) = (Vec::new(), 0.0);
    for map in MAPS {
        let path = format!("{DEFAULT_PIN_DIR}/{LAYOUT}/{map}");
        let text = host.output("bpftool", &["-j", "map", "show", "pinned", &path])?;
        let info: Value = serde_json::from_str(&text).context("bpftool printed no JSON")?;
        let number = |name: &str| {
            let number = info[name].as_f64();
            number.with_context(|| format!("bpftool did not report {name}: {text}"))
        };
        charged.push((map, number("bytes_memlock")?));
        if map == "SESSIONS" {
            room = number("max_entries")?;
        }
    }
    Ok((charged, room))
}
