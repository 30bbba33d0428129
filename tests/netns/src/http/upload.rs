//! One long request.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Gauge, Traffic};
use crate::Host;
use dysco_pattern::Pattern;

const CHUNK: usize = 64 << 10;

/// Sends `PUT /up/NAME` with a pattern as the body until stopped, at most `rate` bytes per second,
/// and ends successfully: the server must have stored the body.
pub fn upload(host: &Host, to: SocketAddr, name: &str, seed: u64, rate: u64) -> Result<Traffic> {
    let path = name.to_owned();
    Traffic::start(host, name, move |gauge| run(gauge, to, &path, seed, rate))
}

fn run(gauge: &Gauge, to: SocketAddr, name: &str, seed: u64, rate: u64) -> Result<()> {
    let mut stream = gauge.connect(to)?;
    let head = format!(
        "PUT /up/{name} HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\
         Connection: close\r\n\r\n"
    );
    stream
        .write_all(head.as_bytes())
        .context("failed to send the head")?;
    let mut chunk = format!("{CHUNK:x}\r\n").into_bytes();
    let body = chunk.len();
    chunk.resize(body + CHUNK, 0);
    chunk.extend_from_slice(b"\r\n");
    let mut pace = Pace {
        rate,
        since: Instant::now(),
        sent: 0,
    };
    while gauge.goes_on() {
        Pattern::new(seed).fill(gauge.bytes(), &mut chunk[body..body + CHUNK]);
        stream
            .write_all(&chunk)
            .with_context(|| format!("failed at {}", gauge.bytes()))?;
        gauge.add(CHUNK);
        pace.hold(CHUNK as u64);
    }
    stream
        .write_all(b"0\r\n\r\n")
        .context("failed to end the body")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("failed to read the answer")?;
    let status = answer.lines().next().unwrap_or_default();
    ensure!(
        status.contains(" 201 ") || status.contains(" 204 "),
        "the answer was {status:?}"
    );
    Ok(())
}

/// Keeps to a rate. It does not catch up on data that a pause withheld.
struct Pace {
    rate: u64,
    since: Instant,
    sent: u64,
}

impl Pace {
    fn hold(&mut self, bytes: u64) {
        self.sent += bytes;
        let due = Duration::from_secs_f64(self.sent as f64 / self.rate as f64);
        let passed = self.since.elapsed();
        if passed > due + Duration::from_millis(100) {
            (self.since, self.sent) = (Instant::now(), 0);
        } else {
            std::thread::sleep(due.saturating_sub(passed));
        }
    }
}
