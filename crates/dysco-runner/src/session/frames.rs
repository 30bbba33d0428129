//! Frames on a connection between the runners of two hosts. A connection that ends without the last
//! frame has lost bytes: a process that is killed closes its connections as well.

use std::io;

use bytes::{Bytes, BytesMut};

/// Greatest number of bytes of a frame.
const LONGEST: u32 = 1 << 30;

/// Returns the header of a frame with this number of bytes; 0 ends the direction.
pub fn header(len: usize) -> Bytes {
    // A service sends at most a few records at a time.
    Bytes::copy_from_slice(&(len as u32).to_be_bytes())
}

/// Frames that are being read.
#[derive(Default)]
pub struct Frames {
    header: Vec<u8>,
    /// Bytes of the frame that have not come.
    rest: u32,
    ended: bool,
}

impl Frames {
    /// True once the last frame has come.
    pub(crate) fn have_ended(&self) -> bool {
        self.ended
    }

    /// Takes what has come. Returns the frames' bytes.
    ///
    /// # Errors
    /// If it is no frame, or comes after the last one.
    pub fn take(&mut self, mut input: &[u8]) -> io::Result<Bytes> {
        let mut out = BytesMut::with_capacity(input.len());
        while !input.is_empty() {
            if self.ended {
                return Err(invalid("the other host sends after the end"));
            }
            if self.rest > 0 {
                let (now, later) = input.split_at(input.len().min(self.rest as usize));
                out.extend_from_slice(now);
                self.rest -= now.len() as u32;
                input = later;
                continue;
            }
            self.header.push(input[0]);
            input = &input[1..];
            if let Ok(header) = <[u8; 4]>::try_from(&self.header[..]) {
                self.header.clear();
                self.rest = u32::from_be_bytes(header);
                self.ended = self.rest == 0;
                if self.rest > LONGEST {
                    return Err(invalid("a frame of the other host is too long"));
                }
            }
        }
        Ok(out.freeze())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_give_their_bytes_however_they_are_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            cuts in prop::collection::vec(1usize..9, 1..8),
        ) {
            let mut wire = Vec::new();
            for frame in &frames {
                wire.extend_from_slice(&header(frame.len()));
                wire.extend_from_slice(frame);
            }
            wire.extend_from_slice(&header(0));
            let (mut read, mut got, mut at) = (Frames::default(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                prop_assert!(!read.have_ended());
                let to = (at + cut).min(wire.len());
                got.extend_from_slice(&read.take(&wire[at..to]).unwrap());
                at = to;
                if at == wire.len() {
                    break;
                }
            }
            prop_assert!(read.have_ended());
            prop_assert_eq!(got, frames.concat());
            prop_assert!(read.take(b"more").is_err());
        }
    }
}
