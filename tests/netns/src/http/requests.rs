//! Many short requests on one connection, one at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Gauge, Traffic, head_end, lock};
use crate::Host;
use crate::nginx::PONG;

/// Requests `/ping` until stopped, and times each answer.
pub fn requests(host: &Host, to: SocketAddr, name: &str) -> Result<Traffic> {
    Traffic::start(host, name, move |gauge| run(gauge, to))
}

fn run(gauge: &Gauge, to: SocketAddr) -> Result<()> {
    let mut stream = gauge.connect(to)?;
    let mut buffer = vec![0; 4096];
    let mut count = 0u64;
    while gauge.goes_on() {
        let start = Instant::now();
        ask(&mut stream, &mut buffer).with_context(|| format!("in request {count}"))?;
        let took = start.elapsed().as_nanos().try_into().unwrap_or(u32::MAX);
        lock(&gauge.latencies).push(took);
        gauge.add(PONG.len());
        count += 1;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    stream
        .write_all(b"GET /ping HTTP/1.1\r\nHost: lab\r\n\r\n")
        .context("failed to ask")?;
    let mut have = 0;
    loop {
        let n = stream
            .read(&mut buffer[have..])
            .context("failed to read the answer")?;
        ensure!(n > 0, "the connection was closed");
        have += n;
        let body = head_end(&buffer[..have]);
        if body.is_some_and(|body| have >= body + PONG.len()) {
            break;
        }
    }
    let body = head_end(&buffer[..have]).unwrap_or(have);
    ensure!(
        buffer.starts_with(b"HTTP/1.1 200 "),
        "the answer was not OK"
    );
    ensure!(
        &buffer[body..have] == PONG.as_bytes(),
        "the answer is not what was stored"
    );
    Ok(())
}
