//! `crypt`: encrypts the bytes between two hosts.

use bytes::{Buf, BytesMut};
use dysco_explain::Cause;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::{Ends, Event, Flow, Needs, Out, Service, Session};

/// Greatest number of bytes in a record. A record is the number of its bytes (16 bits, network
/// order), the sealed bytes, and the tag.
const RECORD: usize = 16 * 1024;

/// The key of one direction. Both ends need a fresh one for each session.
pub type Key = [u8; 32];

/// Seals what goes to the other host, and opens what comes from there. The two ends come into
/// the session, and leave it, at the same byte.
pub struct Crypt {
    outward: Flow,
    seal: Sealed,
    open: Sealed,
    buffer: BytesMut,
}

/// The key of one direction, and the number of records so far. The number is the nonce.
struct Sealed(LessSafeKey, u64);

impl Crypt {
    /// Creates the service of one end. `outward` is the direction towards the other host; `keys`
    /// are those of `outward` and of the other direction.
    pub fn new(outward: Flow, keys: [Key; 2]) -> Result<Crypt, Cause> {
        let key = |key: Key| UnboundKey::new(&CHACHA20_POLY1305, &key).map(LessSafeKey::new);
        let [Ok(seal), Ok(open)] = keys.map(key) else {
            return Err(Cause::new("the cipher takes no key of this length"));
        };
        Ok(Crypt {
            outward,
            seal: Sealed(seal, 0),
            open: Sealed(open, 0),
            buffer: BytesMut::new(),
        })
    }

    fn open_records(&mut self, flow: Flow, out: &mut Out) {
        while self.buffer.len() >= 2 {
            let len = usize::from(u16::from_be_bytes([self.buffer[0], self.buffer[1]]));
            if self.buffer.len() < 2 + len + CHACHA20_POLY1305.tag_len() {
                return;
            }
            let header = self.buffer.copy_to_bytes(2);
            let mut sealed = self.buffer.split_to(len + CHACHA20_POLY1305.tag_len());
            let (nonce, aad) = (self.open.nonce(), Aad::from(&header[..]));
            if self.open.0.open_in_place(nonce, aad, &mut sealed).is_err() {
                return out.fail("a record was forged or damaged on its way");
            }
            sealed.truncate(len);
            out.send(flow, sealed);
        }
    }
}

impl Sealed {
    fn nonce(&mut self) -> Nonce {
        self.1 += 1;
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.1.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(
        &mut self,
        bytes: &[u8],
        record: &mut BytesMut,
    ) -> Result<(), ring::error::Unspecified> {
        let header = (bytes.len() as u16).to_be_bytes();
        record.extend_from_slice(&header);
        let mut sealed = BytesMut::from(bytes);
        let (nonce, aad) = (self.nonce(), Aad::from(header));
        self.0.seal_in_place_append_tag(nonce, aad, &mut sealed)?;
        record.unsplit(sealed);
        Ok(())
    }
}

impl Service for Crypt {
    fn name(&self) -> &'static str {
        "crypt"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs {
            ends: Ends::Pair,
            ..Needs::default()
        })
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data { flow, bytes } if flow == self.outward => {
                let mut records = BytesMut::new();
                for part in bytes.chunks(RECORD) {
                    if self.seal.seal(part, &mut records).is_err() {
                        return out.fail("the cipher refused a record");
                    }
                }
                out.send(flow, records);
            }
            Event::Data { flow, bytes } if flow.is_session() => {
                self.buffer.extend_from_slice(&bytes);
                self.open_records(flow, out);
            }
            Event::Fin(flow) if !self.buffer.is_empty() && flow != self.outward => {
                out.fail("the session ended in the middle of a record");
            }
            other => other.pass_on(out),
        }
    }
}
