//! Keys and records of `crypt`. A record is the number of its bytes (16 bits, network order), the
//! sealed bytes, and the tag.

use bytes::BytesMut;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Prk};

use super::Records;

/// The key of one direction. Both ends need a fresh one for each session.
pub type Key = [u8; 32];

/// Headers of records without bytes. They are greater than any number of bytes.
const NEXT_KEY: u16 = 0x8000;
const BOTH_NEXT_KEYS: u16 = 0x8001;

/// Content of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record {
    /// Bytes of the session.
    Data,
    /// The records that follow have the next key, as after `KeyUpdate` in TLS 1.3 (RFC 8446, 4.6.3).
    NextKey,
    /// As `NextKey`, and a request to the other host for the next key of its direction.
    BothNextKeys,
}

/// The key of one direction.
pub(super) struct Sealed {
    key: LessSafeKey,
    /// Secret of the key, from which the next one is derived.
    secret: Key,
    /// Number of records that this key has sealed or opened. It is the nonce.
    pub records: u64,
    /// Number of keys before this one.
    pub keys: u64,
}

impl Sealed {
    /// Returns the key of a secret, after this number of earlier keys.
    pub(super) fn new(secret: Key, keys: u64) -> Result<Sealed, Unspecified> {
        Ok(Sealed {
            key: LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &secret)?),
            secret,
            records: 0,
            keys,
        })
    }

    /// Takes the next key. It is derived from the present one by HKDF-Expand (RFC 5869, 2.3).
    pub(super) fn advance(&mut self) -> Result<(), Unspecified> {
        let mut next = [0; 32];
        Prk::new_less_safe(HKDF_SHA256, &self.secret)
            .expand(&[b"dysco crypt next key"], HKDF_SHA256)?
            .fill(&mut next)?;
        *self = Sealed::new(next, self.keys + 1)?;
        Ok(())
    }

    fn nonce(&mut self) -> Nonce {
        self.records += 1;
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.records.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends a record with at most 32,767 bytes.
    pub(super) fn seal(
        &mut self,
        record: Record,
        bytes: &[u8],
        to: &mut BytesMut,
    ) -> Result<(), Unspecified> {
        let header = match record {
            Record::Data => bytes.len() as u16,
            Record::NextKey => NEXT_KEY,
            Record::BothNextKeys => BOTH_NEXT_KEYS,
        };
        let header = header.to_be_bytes();
        to.extend_from_slice(&header);
        let mut sealed = BytesMut::from(bytes);
        let (nonce, aad) = (self.nonce(), Aad::from(header));
        self.key.seal_in_place_append_tag(nonce, aad, &mut sealed)?;
        to.unsplit(sealed);
        Ok(())
    }

    /// Removes the next record and returns its decrypted bytes; `None` if it is not complete. Also
    /// takes the next key if the record announces it.
    pub(super) fn open(
        &mut self,
        records: &mut Records,
    ) -> Result<Option<(Record, BytesMut)>, Unspecified> {
        let Some(header) = records.header() else {
            return Ok(None);
        };
        let (record, len) = match u16::from_be_bytes(header) {
            NEXT_KEY => (Record::NextKey, 0),
            BOTH_NEXT_KEYS => (Record::BothNextKeys, 0),
            len => (Record::Data, usize::from(len)),
        };
        let len = len + CHACHA20_POLY1305.tag_len();
        let Some(mut sealed) = records.next(header.len(), len) else {
            return Ok(None);
        };
        let (nonce, aad) = (self.nonce(), Aad::from(header));
        let opened = self.key.open_in_place(nonce, aad, &mut sealed)?.len();
        sealed.truncate(opened);
        if record != Record::Data {
            self.advance()?;
        }
        Ok(Some((record, sealed)))
    }
}
