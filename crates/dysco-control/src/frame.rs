//! Frames of messages on a stream: a length of two bytes (big-endian), then that number of bytes.
//! The first frame of a stream is empty: it confirms that the certificate was accepted.

use std::io::ErrorKind;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// First frame of a stream.
pub(crate) const HELLO: [u8; 2] = [0, 0];

/// Error of a stream that does not consist of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// A frame is longer than [`MAX_MESSAGE`].
    #[error("a frame is too long")]
    Oversized,
    /// The stream ended inside a frame.
    #[error("a frame is cut short")]
    Truncated,
    /// The connection broke.
    #[error("the connection broke")]
    Broken,
}

/// Appends a message's frame. Returns false if the message's length is not allowed.
pub(crate) fn append(buffer: &mut Vec<u8>, message: &[u8]) -> bool {
    if message.is_empty() || message.len() > MAX_MESSAGE {
        return false;
    }
    buffer.extend_from_slice(&(message.len() as u16).to_be_bytes());
    buffer.extend_from_slice(message);
    true
}

/// Returns the next frame; `None` if the stream ends between two frames.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<Vec<u8>>, FrameError> {
    let mut len = [0; 2];
    match stream.read(&mut len[..1]).await {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(_) => return Err(FrameError::Broken),
    }
    fill(stream, &mut len[1..]).await?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > MAX_MESSAGE {
        return Err(FrameError::Oversized);
    }
    let mut message = vec![0; len];
    fill(stream, &mut message).await?;
    Ok(Some(message))
}

async fn fill(stream: &mut (impl AsyncRead + Unpin), bytes: &mut [u8]) -> Result<(), FrameError> {
    match stream.read_exact(bytes).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(FrameError::Truncated),
        Err(_) => Err(FrameError::Broken),
    }
}
