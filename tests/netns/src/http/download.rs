//! One long response.

use std::io::{Read, Write};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};

use super::{Gauge, Traffic, head_end};
use crate::Host;
use crate::nginx::{BLOCK, BLOCK_SEED};
use dysco_pattern::Pattern;

/// Downloads `/endless` on one connection until stopped, checking each byte.
pub fn download(host: &Host, from: SocketAddr, name: &str) -> Result<Traffic> {
    Traffic::start(host, name, move |gauge| run(gauge, from))
}

fn run(gauge: &Gauge, from: SocketAddr) -> Result<()> {
    let mut stream = gauge.connect(from)?;
    // With HTTP/1.0 the body is not chunked.
    stream
        .write_all(b"GET /endless HTTP/1.0\r\nHost: lab\r\n\r\n")
        .context("failed to ask")?;
    let mut buffer = vec![0; 256 << 10];
    let mut have = 0;
    let body = loop {
        let n = stream
            .read(&mut buffer[have..])
            .context("failed to read the response's head")?;
        ensure!(n > 0, "the response ended in its head");
        have += n;
        if let Some(end) = head_end(&buffer[..have]) {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..body]).into_owned();
    ensure!(
        head.lines().next().is_some_and(|l| l.contains(" 200 ")),
        "the answer was {head}"
    );
    let mut offset = 0;
    check(&mut offset, &buffer[body..have])?;
    gauge.add(have - body);
    while gauge.goes_on() {
        let n = stream
            .read(&mut buffer)
            .with_context(|| format!("failed to read at {offset}"))?;
        ensure!(n > 0, "the response ended after {offset} bytes");
        check(&mut offset, &buffer[..n])?;
        gauge.add(n);
    }
    Ok(())
}

fn check(offset: &mut u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let place = *offset % BLOCK;
        let n = bytes.len().min((BLOCK - place) as usize);
        if let Some(wrong) = Pattern::new(BLOCK_SEED).first_wrong(place, &bytes[..n]) {
            bail!("byte {} is wrong", *offset - place + wrong);
        }
        *offset += n as u64;
        bytes = &bytes[n..];
    }
    Ok(())
}
