//! Frames on a connection between the runners of two hosts. A connection that ends without the last
//! frame has lost bytes: a process that is killed closes its connections as well.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use dysco_service::Change;

/// Greatest number of bytes of a frame.
const LONGEST: u32 = 1 << 30;

/// Bit of a header. If it is set, a mark follows instead of bytes of the session.
const MARK: u32 = 1 << 31;

/// Greatest number of bytes of a mark.
const LONGEST_MARK: usize = 256;

/// The byte at which one half of a service comes in or leaves. The mark precedes all bytes that are
/// sent after that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub change: Change,
    /// Number of the byte, as [`dysco_service::Stack`] counts.
    pub at: u64,
    /// Name of the service.
    pub service: String,
}

impl Mark {
    /// Returns the frame of a mark: header, kind (8 bits), number (64 bits, network order), name.
    pub(super) fn frame(&self) -> Bytes {
        let kind = match self.change {
            Change::Enters => 1,
            Change::Leaves => 2,
        };
        let mut body = BytesMut::new();
        body.put_u8(kind);
        body.put_u64(self.at);
        body.put_slice(self.service.as_bytes());
        let mut frame = BytesMut::new();
        frame.put_u32(MARK | body.len() as u32);
        frame.put_slice(&body);
        frame.freeze()
    }

    fn read(body: &[u8]) -> Option<Mark> {
        let (kind, rest) = body.split_first()?;
        let (at, name) = rest.split_first_chunk()?;
        Some(Mark {
            change: match kind {
                1 => Change::Enters,
                2 => Change::Leaves,
                _ => return None,
            },
            at: u64::from_be_bytes(*at),
            service: str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

/// A part of the bytes that were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Bytes(Bytes),
    Mark(Mark),
}

/// Returns the header of a frame with this number of bytes; 0 ends the direction.
pub(super) fn header(len: usize) -> Bytes {
    // A service sends at most a few records at a time.
    Bytes::copy_from_slice(&(len as u32).to_be_bytes())
}

/// Frames that are being read.
#[derive(Default)]
pub(super) struct Frames {
    header: Vec<u8>,
    /// Number of bytes of the frame that have not arrived.
    rest: u32,
    /// Bytes of the mark that have arrived, if the frame is a mark.
    mark: Option<Vec<u8>>,
    ended: bool,
}

impl Frames {
    /// True once the last frame has arrived.
    pub(crate) fn have_ended(&self) -> bool {
        self.ended
    }

    /// Parses bytes that have arrived. Returns the frames' bytes and marks, in order.
    ///
    /// # Errors
    /// If the bytes are no frame, or follow the last one.
    pub(super) fn take(&mut self, mut input: &[u8]) -> io::Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut out = BytesMut::with_capacity(input.len());
        while !input.is_empty() {
            if self.ended {
                return Err(invalid("the other host sends after the end"));
            }
            if self.rest == 0 {
                self.header.push(input[0]);
                input = &input[1..];
                self.begin()?;
                continue;
            }
            let (now, later) = input.split_at(input.len().min(self.rest as usize));
            self.rest -= now.len() as u32;
            input = later;
            let Some(mark) = &mut self.mark else {
                out.extend_from_slice(now);
                continue;
            };
            mark.extend_from_slice(now);
            if self.rest == 0 {
                let mark = self.mark.take().and_then(|mark| Mark::read(&mark));
                let mark = mark.ok_or_else(|| invalid("a mark of the other host is unknown"))?;
                push(&mut parts, &mut out);
                parts.push(Part::Mark(mark));
            }
        }
        push(&mut parts, &mut out);
        Ok(parts)
    }

    /// Begins a frame, once its header is complete.
    fn begin(&mut self) -> io::Result<()> {
        let Ok(header) = <[u8; 4]>::try_from(&self.header[..]) else {
            return Ok(());
        };
        self.header.clear();
        let header = u32::from_be_bytes(header);
        self.rest = header & !MARK;
        self.mark = (header & MARK != 0).then(Vec::new);
        self.ended = header == 0;
        let longest = match self.mark {
            Some(_) => LONGEST_MARK as u32,
            None => LONGEST,
        };
        match self.rest {
            0 if self.mark.is_some() => Err(invalid("a mark of the other host is empty")),
            len if len > longest => Err(invalid("a frame of the other host is too long")),
            _ => Ok(()),
        }
    }
}

/// Adds the bytes that have arrived to the parts.
fn push(parts: &mut Vec<Part>, out: &mut BytesMut) {
    if !out.is_empty() {
        parts.push(Part::Bytes(out.split().freeze()));
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark(at: u64) -> Mark {
        Mark {
            change: if at.is_multiple_of(2) {
                Change::Enters
            } else {
                Change::Leaves
            },
            at,
            service: format!("service{at}"),
        }
    }

    proptest! {
        #[test]
        fn frames_give_their_bytes_and_marks_however_they_are_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1usize..9, 1..8),
        ) {
            // A frame without bytes stands for a mark.
            let (mut wire, mut expected) = (Vec::new(), Vec::new());
            for frame in &frames {
                if frame.is_empty() {
                    let mark = mark(expected.len() as u64);
                    wire.extend_from_slice(&mark.frame());
                    expected.push(Err(mark));
                } else {
                    wire.extend_from_slice(&header(frame.len()));
                    wire.extend_from_slice(frame);
                    expected.extend(frame.iter().copied().map(Ok));
                }
            }
            wire.extend_from_slice(&header(0));
            let (mut read, mut got, mut at) = (Frames::default(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                prop_assert!(!read.have_ended());
                let to = (at + cut).min(wire.len());
                for part in read.take(&wire[at..to]).unwrap() {
                    match part {
                        Part::Bytes(bytes) => got.extend(bytes.iter().copied().map(Ok)),
                        Part::Mark(mark) => got.push(Err(mark)),
                    }
                }
                at = to;
                if at == wire.len() {
                    break;
                }
            }
            prop_assert!(read.have_ended());
            prop_assert_eq!(got, expected);
            prop_assert!(read.take(b"more").is_err());
        }
    }

    #[test]
    fn what_is_no_mark_is_refused() {
        for body in [&[][..], &[1], &[3, 0, 0, 0, 0, 0, 0, 0, 0], &[1; 257]] {
            let mut wire = (MARK | body.len() as u32).to_be_bytes().to_vec();
            wire.extend_from_slice(body);
            assert!(Frames::default().take(&wire).is_err(), "{body:?}");
        }
    }
}
