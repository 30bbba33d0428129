//! The encoding of messages.

use super::{MAX_MESSAGE, Message, VERSION};

/// A message that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message is too long.
    #[error("encoding a message: {0} bytes are more than the {MAX_MESSAGE} that one may have")]
    Oversized(usize),
    /// The encoder failed.
    #[error("encoding a message: {0}")]
    Malformed(#[source] postcard::Error),
}

/// Bytes that are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("decoding a message: it is empty")]
    Empty,
    /// There are too many bytes.
    #[error("decoding a message: {0} bytes are more than the {MAX_MESSAGE} that one may have")]
    Oversized(usize),
    /// A daemon with another layout sent the message.
    #[error(
        "decoding a message: its version is {0}, this daemon speaks {VERSION}; run the same release of dyscod on both hosts"
    )]
    Version(u8),
    /// There are more bytes than the message has.
    #[error("decoding a message: {0} bytes are left over")]
    Trailing(usize),
    /// The bytes are truncated or garbage.
    #[error("decoding a message: {0}")]
    Malformed(#[source] postcard::Error),
}

impl Message {
    /// Returns the bytes of the message: a version byte, then postcard.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let bytes = postcard::to_extend(self, vec![VERSION]).map_err(EncodeError::Malformed)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(EncodeError::Oversized(bytes.len()));
        }
        Ok(bytes)
    }

    /// Returns the message that these bytes encode, if they encode exactly one.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(DecodeError::Oversized(bytes.len()));
        }
        let (&version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let (message, rest) = postcard::take_from_bytes(body).map_err(DecodeError::Malformed)?;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing(rest.len()));
        }
        Ok(message)
    }
}
