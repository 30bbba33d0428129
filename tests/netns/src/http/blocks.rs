//! Long answers of known length on one connection, in sequence.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};

use super::{Gauge, Traffic, head_end};
use crate::Host;
use crate::nginx::{BLOCK, BLOCK_SEED};
use dysco_pattern::Pattern;

/// Requests `/block` repeatedly, until stopped, and checks each byte.
pub fn blocks(host: &Host, from: SocketAddr, name: &str) -> Result<Traffic> {
    Traffic::start(host, name, move |gauge| run(gauge, from))
}

fn run(gauge: &Gauge, from: SocketAddr) -> Result<()> {
    let mut stream = gauge.connect(from)?;
    let mut buffer = vec![0; 256 << 10];
    while gauge.goes_on() {
        fetch(gauge, &mut stream, &mut buffer)?;
    }
    Ok(())
}

fn fetch(gauge: &Gauge, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    stream
        .write_all(b"GET /block HTTP/1.1\r\nHost: lab\r\n\r\n")
        .context("failed to ask")?;
    let mut have = 0;
    let body = loop {
        let n = stream.read(&mut buffer[have..]).context("no head")?;
        ensure!(n > 0, "the connection was closed");
        have += n;
        if let Some(end) = head_end(&buffer[..have]) {
            break end;
        }
    };
    ensure!(buffer.starts_with(b"HTTP/1.1 200 "), "the answer is not OK");
    buffer.copy_within(body..have, 0);
    let (mut offset, mut have) = (0, have - body);
    loop {
        let wrong = Pattern::new(BLOCK_SEED).first_wrong(offset, &buffer[..have]);
        ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
        offset += have as u64;
        gauge.add(have);
        if offset == BLOCK || !gauge.goes_on() {
            return Ok(());
        }
        let room = (BLOCK - offset).min(buffer.len() as u64) as usize;
        have = stream.read(&mut buffer[..room]).context("failed to read")?;
        ensure!(have > 0, "the answer ended after {offset} bytes");
    }
}
