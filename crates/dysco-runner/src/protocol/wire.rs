//! Datagrams with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::LONGEST;

/// Greatest number of descriptors with a message.
const DESCRIPTORS: usize = 4;

/// Sends a message. Does not wait.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let json = serde_json::to_vec(message).map_err(io::Error::other)?;
    if json.len() > LONGEST || fds.len() > DESCRIPTORS {
        let error = format!("the message has {} bytes, more than {LONGEST}", json.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| {
        sendmsg(socket.as_fd(), &[IoSlice::new(&json)], &mut control, flags)
    })?;
    Ok(())
}

/// Receives a message and its descriptors, or nothing if the other side has closed the connection.
/// Does not wait.
///
/// # Errors
/// `WouldBlock` if no message is there; `InvalidData` if a message is too long or cannot be parsed.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut json = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut json)];
        recvmsg(socket.as_fd(), &mut parts, &mut control, flags)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(invalid(format!("a message is longer than {LONGEST} bytes")));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&json[..received.bytes])
        .map_err(|error| invalid(format!("a message cannot be read: {error}")))?;
    Ok(Some((message, fds)))
}
