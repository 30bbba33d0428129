//! `compress`: compresses the bytes between two hosts.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use dysco_explain::Cause;
use zstd::stream::raw::{DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use super::no_operation;
use super::records::{Meaning, Records};
use crate::{Event, Flow, Needs, Out, Service, Session, TimerId};

/// Greatest number of bytes in a record. A record is a header of 32 bits in network order: the
/// number of its bytes, and [`PLAIN`]; then these bytes.
const RECORD: usize = 64 * 1024;

/// Number of restored bytes after which the service waits for its next turn: few bytes may restore to
/// very many.
const AT_ONCE: u64 = 256 * 1024;

/// The service goes on to restore bytes.
const NEXT_TURN: TimerId = TimerId(0);

/// Greatest window of the frames of another host, as a power of two: that of level 19.
const WINDOW_LOG: u32 = 23;

/// The bytes of the record are not compressed.
const PLAIN: u32 = 1 << 31;

/// Number of bytes over which the gain is measured.
const TRIAL: u64 = 256 * 1024;

/// Number of bytes that pass unchanged after a trial without a gain.
const REST: u64 = 16 * TRIAL;

/// Compresses bytes to the other host, and restores bytes from there. If compression gains nothing,
/// the service passes bytes on for a while, and then tries again. It is idle if enough bytes have
/// shown that neither direction gains anything.
pub struct Compress {
    records: Records,
    encoder: Encoder<'static>,
    decoder: Decoder<'static>,
    /// Bytes of the trial so far, before and after.
    trial: [u64; 2],
    /// Gain of the direction towards the other host, as the last trial has shown.
    outward: Gain,
    /// Gain of the other direction, as its records show.
    inward: Gain,
    /// Bytes that compressed records from the other host have had since the last plain one.
    shrunk: u64,
    /// Number of bytes that still pass unchanged.
    rest: u64,
    /// Bytes towards the other host, before and after.
    total: [u64; 2],
    /// The element behind the service wants no restored bytes.
    full: bool,
}

/// Gain of a direction by compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gain {
    /// Too few bytes have passed to know.
    Unknown,
    Some,
    None,
}

impl Compress {
    /// Default level, at which compression costs little.
    pub const LEVEL: i32 = 3;

    /// Creates the service of one end. `outward` is the direction towards the other host.
    pub fn new(outward: Flow, level: i32) -> Result<Compress, Cause> {
        let refused = |error: io::Error| Cause::new(format!("zstd does not start: {error}"));
        let mut decoder = Decoder::new().map_err(refused)?;
        let window = DParameter::WindowLogMax(WINDOW_LOG);
        decoder.set_parameter(window).map_err(refused)?;
        Ok(Compress {
            records: Records::new(outward),
            encoder: Encoder::new(level).map_err(refused)?,
            decoder,
            trial: [0; 2],
            outward: Gain::Unknown,
            inward: Gain::Unknown,
            shrunk: 0,
            rest: 0,
            total: [0; 2],
            full: false,
        })
    }

    /// Appends the record of some bytes.
    fn write(&mut self, bytes: &[u8], records: &mut BytesMut) -> io::Result<()> {
        let before = records.len();
        if self.rest > 0 {
            self.rest = self.rest.saturating_sub(bytes.len() as u64);
            records.extend_from_slice(&(bytes.len() as u32 | PLAIN).to_be_bytes());
            records.extend_from_slice(bytes);
        } else {
            let compressed = compress(&mut self.encoder, bytes)?;
            records.extend_from_slice(&(compressed.len() as u32).to_be_bytes());
            records.extend_from_slice(&compressed);
            self.judge(bytes.len() as u64, compressed.len() as u64);
        }
        self.total[0] += bytes.len() as u64;
        self.total[1] += (records.len() - before) as u64;
        Ok(())
    }

    /// Ends a trial that has seen enough bytes.
    fn judge(&mut self, before: u64, after: u64) {
        self.trial[0] += before;
        self.trial[1] += after;
        let [before, after] = self.trial;
        if before >= TRIAL {
            self.outward = Gain::Some;
            if after > before - before / 20 {
                self.outward = Gain::None;
                self.rest = REST;
            }
            self.trial = [0; 2];
        }
    }

    /// Returns the header of the next record, if that is complete.
    fn next_header(&self) -> io::Result<Option<u32>> {
        let Some(header) = self.records.header() else {
            return Ok(None);
        };
        let header = u32::from_be_bytes(header);
        let len = (header & !PLAIN) as usize;
        // Bytes that do not become smaller become a little larger.
        if len > 2 * RECORD {
            return Err(io::Error::other("a record is too long"));
        }
        let complete = self.records.is_complete(size_of::<u32>(), len);
        Ok(complete.then_some(header))
    }

    /// Restores records, about `most` bytes. Returns true if complete records are left.
    fn read(&mut self, flow: Flow, most: u64, out: &mut Out) -> io::Result<bool> {
        let mut given = 0;
        while let Some(header) = self.next_header()? {
            if given >= most {
                return Ok(true);
            }
            let len = (header & !PLAIN) as usize;
            let Some(record) = self.records.next(size_of::<u32>(), len) else {
                return Ok(false);
            };
            if header & PLAIN != 0 {
                (self.inward, self.shrunk) = (Gain::None, 0);
                given += record.len() as u64;
                out.send(flow, record);
            } else {
                let mut restored = 0;
                restore(&mut self.decoder, &record, |part| {
                    restored += part.len() as u64;
                    if restored > RECORD as u64 {
                        return Err(io::Error::other("a record restores to too many bytes"));
                    }
                    out.send(flow, BytesMut::from(part));
                    Ok(())
                })?;
                given += restored;
                self.shrunk += restored;
                // The bytes of a trial without a gain on the other host are fewer.
                if self.shrunk > 2 * TRIAL {
                    self.inward = Gain::Some;
                }
            }
        }
        Ok(false)
    }

    /// Restores what is there, as far as it is wanted, and holds the direction while more is there.
    fn restore_some(&mut self, flow: Flow, out: &mut Out) {
        let most = if self.full { 0 } else { AT_ONCE };
        match self.read(flow, most, out) {
            Ok(more) => {
                if more && !self.full {
                    out.timer(NEXT_TURN, Duration::ZERO);
                }
                match more || self.full {
                    true => out.hold(flow),
                    false => out.release(flow),
                }
            }
            Err(error) => out.fail(format!("what the other host sent is damaged: {error}")),
        }
    }
}

/// Returns the compressed form of bytes, complete.
fn compress(encoder: &mut Encoder<'_>, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut input = InBuffer::around(bytes);
    let mut all = Vec::new();
    let mut space = [0; 8 * 1024];
    loop {
        let done = input.pos() == bytes.len();
        let mut output = OutBuffer::around(&mut space[..]);
        let left = match done {
            true => encoder.flush(&mut output)?,
            false => encoder.run(&mut input, &mut output)?,
        };
        all.extend_from_slice(output.as_slice());
        if done && left == 0 {
            return Ok(all);
        }
    }
}

/// Gives the bytes of a record, in parts.
fn restore(
    decoder: &mut Decoder<'_>,
    record: &[u8],
    mut give: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut input = InBuffer::around(record);
    let mut space = vec![0; RECORD];
    loop {
        let mut output = OutBuffer::around(&mut space[..]);
        decoder.run(&mut input, &mut output)?;
        let (full, got) = (output.pos() == RECORD, output.as_slice());
        if !got.is_empty() {
            give(got)?;
        }
        if input.pos() == record.len() && !full {
            return Ok(());
        }
    }
}

impl Service for Compress {
    fn name(&self) -> &'static str {
        "compress"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Records::needs())
    }

    fn is_idle(&self) -> bool {
        let both = [self.outward, self.inward];
        both.contains(&Gain::None) && !both.contains(&Gain::Some)
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        let inward = self.records.outward.reverse();
        match self.records.take(event, out) {
            Meaning::Send(bytes) => {
                let mut records = BytesMut::new();
                for part in bytes.chunks(RECORD) {
                    if let Err(error) = self.write(part, &mut records) {
                        return out.fail(format!("zstd refused bytes: {error}"));
                    }
                }
                out.send(self.records.outward, records);
            }
            Meaning::Receive(flow) => self.restore_some(flow, out),
            Meaning::Other(Event::Timer(NEXT_TURN)) => self.restore_some(inward, out),
            Meaning::Other(event @ (Event::Full(flow) | Event::Writable(flow)))
                if flow == inward =>
            {
                self.full = matches!(event, Event::Full(_));
                self.restore_some(flow, out);
            }
            Meaning::Other(Event::Leave) => match self.read(inward, u64::MAX, out) {
                Ok(_) => out.leave(),
                Err(error) => out.fail(format!("what the other host sent is damaged: {error}")),
            },
            Meaning::Other(Event::Call(question)) if question[..] == *b"read" => {
                let [before, after] = self.total;
                let rests = self.rest > 0;
                out.answer(format!(
                    "{{\"before\":{before},\"after\":{after},\"compresses\":{}}}",
                    !rests
                ));
            }
            Meaning::Other(Event::Call(question)) => {
                out.refuse(no_operation("compress", &question, "read"));
            }
            Meaning::Other(other) => other.pass_on(out),
            Meaning::Nothing => {}
        }
    }
}
