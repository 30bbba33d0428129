//! Payload that a capture shows.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::PORT;
use super::talk::{MARK, WORD};

/// Payload in a capture of TCP over IPv4.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Bytes of payload, of any connection.
    pub payload: u64,
    /// Bytes of payload of the sessions' own five-tuples.
    own: u64,
    /// Bytes of packets in whose captured part a word of the sessions is readable.
    pub readable: u64,
}

/// Length of the header of a file, and of a packet's.
const FILE: usize = 24;
const PACKET: usize = 16;
const ETHERNET: usize = 14;

impl Seen {
    /// Reads a file of tcpdump, as far as it is written.
    pub(super) fn read(file: &Path) -> Result<Seen> {
        let bytes = fs::read(file)?;
        let magic = bytes.first_chunk::<4>().context("no header")?;
        ensure!(
            u32::from_le_bytes(*magic) == 0xa1b2_c3d4,
            "no capture of this machine"
        );
        let mut seen = Seen::default();
        let mut rest = bytes.get(FILE..).unwrap_or_default();
        while let Some((header, after)) = rest.split_at_checked(PACKET) {
            let captured = header[8..]
                .first_chunk::<4>()
                .map(|n| u32::from_le_bytes(*n));
            let Some((packet, next)) = after.split_at_checked(captured.unwrap_or(0) as usize)
            else {
                break;
            };
            seen.take(packet);
            rest = next;
        }
        Ok(seen)
    }

    /// Bytes that were readable, or could have been.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.own.max(self.readable)
    }

    fn take(&mut self, frame: &[u8]) {
        let word = |at: usize| {
            let bytes = frame.get(at..at + 2)?;
            Some(u64::from(u16::from_be_bytes([bytes[0], bytes[1]])))
        };
        let ip = ETHERNET;
        let is_tcp =
            frame.get(ip).is_some_and(|first| first >> 4 == 4) && frame.get(ip + 9) == Some(&6);
        if !is_tcp {
            return;
        }
        let header = usize::from(frame[ip] & 15) * 4;
        let tcp = ip + header;
        let (Some(total), Some(from), Some(to), Some(offset)) =
            (word(ip + 2), word(tcp), word(tcp + 2), frame.get(tcp + 12))
        else {
            return;
        };
        let headers = header as u64 + u64::from(offset >> 4) * 4;
        let payload = total.saturating_sub(headers);
        self.payload += payload;
        if [from, to].contains(&u64::from(PORT)) {
            self.own += payload;
        }
        let readable = |word: &str| {
            frame
                .windows(word.len())
                .any(|part| part == word.as_bytes())
        };
        if payload > 0 && (readable(MARK) || readable(WORD)) {
            self.readable += payload;
        }
    }
}
