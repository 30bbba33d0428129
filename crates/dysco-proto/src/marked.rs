//! Messages that begin with a mark and a version, by which they differ from those of the session
//! protocol.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns the encoded message.
///
/// # Errors
/// If a value of the message cannot be encoded.
pub fn encode(head: [u8; 2], message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(message, head.to_vec())
}

/// Returns the message that these bytes encode, if they encode exactly one.
pub fn decode<T: DeserializeOwned>(head: [u8; 2], bytes: &[u8]) -> Option<T> {
    let body = bytes.strip_prefix(&head)?;
    let (message, rest) = postcard::take_from_bytes(body).ok()?;
    rest.is_empty().then_some(message)
}
