//! Messages that begin with a mark and a version, by which they differ from those of the session
//! protocol.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message that begins with a mark and a version.
pub trait Marked: Serialize + DeserializeOwned {
    /// First byte of these messages. No version of the session protocol equals it.
    const MARK: u8;
    /// Second byte of these messages.
    const VERSION: u8;

    /// Returns true if these bytes are one of these messages, and not one of the session protocol.
    fn is_one(bytes: &[u8]) -> bool {
        bytes.first() == Some(&Self::MARK)
    }

    /// Returns the encoded message.
    ///
    /// # Errors
    /// If a value of the message cannot be encoded.
    fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, vec![Self::MARK, Self::VERSION])
    }

    /// Returns the message that these bytes encode, if they encode exactly one.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let body = bytes.strip_prefix(&[Self::MARK, Self::VERSION])?;
        let (message, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(message)
    }
}
