//! The encoding of messages.

use dysco_explain::{Explain, Explanation, display_explained};

use super::{MAX_MESSAGE, Message, VERSION};

/// Hint for messages of another layout.
const SAME_RELEASE: &str = "run the same release of dyscod on both hosts";

/// A message that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message is too long.
    Oversized(usize),
    /// The encoder failed.
    Malformed(#[source] postcard::Error),
}

/// Bytes that are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    Empty,
    /// There are too many bytes.
    Oversized(usize),
    /// A daemon with another layout sent the message.
    Version(u8),
    /// There are more bytes than the message has.
    Trailing(usize),
    /// The bytes are truncated or garbage.
    Malformed(#[source] postcard::Error),
}

display_explained!(EncodeError, DecodeError);

impl Explain for EncodeError {
    fn explain(&self) -> Explanation {
        let what = "encode a message";
        match self {
            EncodeError::Oversized(bytes) => Explanation::new(what, oversized(*bytes)),
            EncodeError::Malformed(source) => Explanation::new(what, source),
        }
    }
}

impl Explain for DecodeError {
    fn explain(&self) -> Explanation {
        let of = |why: String| Explanation::new("decode a message", why);
        match self {
            DecodeError::Empty => of("it is empty".into()),
            DecodeError::Oversized(bytes) => of(oversized(*bytes)),
            DecodeError::Version(version) => of(format!(
                "its version is {version}, and this daemon speaks {VERSION}"
            ))
            .hint(SAME_RELEASE),
            DecodeError::Trailing(bytes) => {
                of(format!("{bytes} bytes are left over")).hint(SAME_RELEASE)
            }
            DecodeError::Malformed(source) => of(source.to_string()).hint(SAME_RELEASE),
        }
    }
}

fn oversized(bytes: usize) -> String {
    format!("{bytes} bytes are more than the {MAX_MESSAGE} that one may have")
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
