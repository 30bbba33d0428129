//! A TCP socket, and the bytes that wait for it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::frames::{self, Frames, Mark, Part};

/// Load from which the services are told that the socket is full. Below half of it they are told
/// that the socket wants bytes again.
pub(super) const HIGH: usize = 256 * 1024;

/// Load from which nothing is read for the socket, even if the services accept more.
pub(crate) const HARD: usize = 2 * HIGH;

/// Load of a part besides its bytes, so that many short parts do not take much memory.
const PART: usize = 128;

/// Events after which reading finds something.
const READABLE: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::RDHUP);

/// Greatest number of attempts to use a socket that is in repair mode.
const REPAIRED: u32 = 10_000;

/// Greatest number of parts that one system call writes.
const PARTS: usize = 32;

/// A TCP socket. Its readiness is edge-triggered: it is valid until a call returns that it would
/// wait. Calls do not wait, although the descriptor may be in blocking mode: `dyscod` has
/// duplicates of it, which share the mode.
pub(super) struct Link {
    pub socket: OwnedFd,
    /// Token of the socket in the poller.
    pub token: u64,
    readable: bool,
    writable: bool,
    /// True if the kernel has announced an end, an error or urgent data. A read that is shorter
    /// than wanted then does not mean that nothing is left.
    uneven: bool,
    /// Number of attempts to read, without success, from a socket that is in repair mode.
    refused: u32,
    failed: bool,
    /// True if the services want nothing from this socket for now.
    pub held: bool,
    /// True if the end of its bytes was read.
    pub ended: bool,
    queue: VecDeque<Bytes>,
    waiting: usize,
    full: bool,
    fin: Fin,
    /// Frames, if the link is a connection to another runner.
    frames: Option<Frames>,
    /// Parts of frames that were read and not given yet.
    parts: VecDeque<Part>,
    /// True if nothing may be read yet.
    closed: bool,
    /// True if the other runner has closed the connection.
    gone: bool,
}

/// State of the end of the written stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fin {
    Open,
    /// The end follows the bytes that wait.
    Waiting,
    Sent,
}

/// Result of reading.
pub(super) enum Input {
    Bytes(Bytes),
    /// A mark of the other runner.
    Mark(Mark),
    End,
    /// Nothing can be read now.
    Nothing,
}

impl Link {
    pub(super) fn new(socket: OwnedFd, token: u64) -> Link {
        Link {
            socket,
            token,
            readable: false,
            writable: false,
            uneven: false,
            refused: 0,
            failed: false,
            held: false,
            ended: false,
            queue: VecDeque::new(),
            waiting: 0,
            full: false,
            fin: Fin::Open,
            frames: None,
            parts: VecDeque::new(),
            closed: false,
            gone: false,
        }
    }

    /// Makes this link a connection to another runner. Nothing is read from it yet.
    pub(super) fn frame(&mut self) {
        self.frames = Some(Frames::default());
        self.closed = true;
    }

    /// Permits to read bytes.
    pub(super) fn open(&mut self) {
        self.closed = false;
    }

    /// Sets the options that a relay needs. Bytes are sent at once (TCP_NODELAY): the sender has
    /// already coalesced them if it wanted. An urgent byte stays in its place (SO_OOBINLINE), so
    /// that it is not lost.
    pub(super) fn set_options(socket: &OwnedFd) -> rustix::io::Result<()> {
        rustix::net::sockopt::set_tcp_nodelay(socket, true)?;
        rustix::net::sockopt::set_socket_oobinline(socket, true)
    }

    /// Records events of the socket.
    pub(super) fn ready(&mut self, flags: EventFlags) {
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        self.uneven |= broken || flags.intersects(EventFlags::RDHUP | EventFlags::PRI);
        self.readable |= broken || flags.intersects(READABLE);
        self.writable |= broken || flags.contains(EventFlags::OUT);
        self.failed |= flags.contains(EventFlags::ERR);
    }

    /// True if the kernel takes bytes, as far as is known.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// True if reading may find something that the services want.
    pub(crate) fn wants_read(&self) -> bool {
        self.readable && !self.held && !self.ended && !self.closed
    }

    /// Reads once.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<Input> {
        if let Some(part) = self.parts.pop_front() {
            return Ok(match part {
                Part::Bytes(bytes) => Input::Bytes(bytes),
                Part::Mark(mark) => Input::Mark(mark),
            });
        }
        if self.frames.as_ref().is_some_and(Frames::have_ended) {
            self.ended = true;
            return Ok(Input::End);
        }
        let len = scratch.len();
        match rustix::net::recv(&self.socket, &mut *scratch, RecvFlags::DONTWAIT) {
            // A frame marks the end of a direction. Without it, the other handler is gone.
            Ok((0, _)) if self.frames.is_some() => {
                self.gone = true;
                Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the handler of the other host is gone",
                ))
            }
            Ok((0, _)) => {
                self.ended = true;
                Ok(Input::End)
            }
            Ok((n, _)) => {
                self.refused = 0;
                // Everything was read, and further bytes make a new edge. An end that has already
                // arrived makes none.
                self.readable = n == len || self.uneven;
                let Some(frames) = &mut self.frames else {
                    return Ok(Input::Bytes(Bytes::copy_from_slice(&scratch[..n])));
                };
                self.parts.extend(frames.take(&scratch[..n])?);
                // Further calls return the parts and the end.
                self.readable |= frames.have_ended() || !self.parts.is_empty();
                match self.parts.is_empty() {
                    true => Ok(Input::Nothing),
                    false => self.read(&mut []),
                }
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(Input::Nothing)
            }
            Err(Errno::INTR) => Ok(Input::Nothing),
            // As in `flush`. The socket stays readable, and the next turn reads again.
            Err(Errno::PERM) if self.refused < REPAIRED => {
                self.refused += 1;
                std::thread::yield_now();
                Ok(Input::Nothing)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the error that the kernel has announced, if it has. A socket that is read has its
    /// bytes first: reading returns the error behind them.
    pub(crate) fn announced_error(&mut self) -> Option<io::Error> {
        if !std::mem::take(&mut self.failed) {
            return None;
        }
        self.error()
    }

    /// Returns the error of the socket, if it has one.
    pub(super) fn error(&self) -> Option<io::Error> {
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error.into()),
        }
    }

    /// Queues bytes.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if self.frames.is_some() {
            if bytes.is_empty() {
                return;
            }
            self.queue_up(frames::header(bytes.len()));
        }
        self.queue_up(bytes);
    }

    /// Queues a mark, unless the end was queued.
    pub(super) fn push_mark(&mut self, mark: &Mark) {
        if self.fin == Fin::Open {
            self.queue_up(mark.frame());
        }
    }

    /// True if neither direction has ended.
    pub(super) fn is_open(&self) -> bool {
        !self.ended && self.fin == Fin::Open
    }

    fn queue_up(&mut self, bytes: Bytes) {
        self.waiting += bytes.len();
        self.queue.push_back(bytes);
    }

    /// Queues the end.
    pub(crate) fn push_fin(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Waiting;
            if self.frames.is_some() {
                self.queue_up(frames::header(0));
            }
        }
    }

    /// Writes what waits, as far as the kernel takes it. Returns the number of bytes.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        let before = self.waiting;
        let mut refused = 0;
        while self.writable && self.waiting > 0 {
            let mut parts = [IoSlice::new(&[]); PARTS];
            for (part, bytes) in parts.iter_mut().zip(&self.queue) {
                *part = IoSlice::new(bytes);
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let used = self.queue.len().min(PARTS);
            let mut no_descriptors = SendAncillaryBuffer::default();
            let parts = &parts[..used];
            match rustix::net::sendmsg(&self.socket, parts, &mut no_descriptors, flags) {
                Ok(n) => self.written(n),
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                // dyscod makes the socket probe its peer, which takes some microseconds.
                Err(Errno::INVAL) if refused < REPAIRED => {
                    refused += 1;
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
        if self.fin == Fin::Waiting && self.waiting == 0 {
            if self.frames.is_none() {
                rustix::net::shutdown(&self.socket, Shutdown::Write)?;
            }
            self.fin = Fin::Sent;
        }
        Ok(before - self.waiting)
    }

    fn written(&mut self, mut n: usize) {
        self.waiting -= n;
        while let Some(first) = self.queue.front_mut() {
            if first.len() > n {
                first.advance(n);
                return;
            }
            n -= first.len();
            self.queue.pop_front();
        }
    }

    /// Number of bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Bytes that wait, and the memory that they need besides.
    pub(super) fn load(&self) -> usize {
        self.waiting + PART * self.queue.len()
    }

    /// True if the end was written.
    pub(crate) fn has_sent_fin(&self) -> bool {
        self.fin == Fin::Sent
    }

    /// Returns whether the socket is full, if that has changed.
    pub(crate) fn pressure(&mut self) -> Option<bool> {
        let full = match self.full {
            true => self.load() >= HIGH / 2,
            false => self.load() >= HIGH,
        };
        (full != self.full).then(|| {
            self.full = full;
            full
        })
    }

    /// Lets the kernel reset the connection if this process dies: the peer must not take the stream for
    /// complete. Between two runners the last frame marks the end.
    pub(super) fn resets_on_death(&self) {
        if self.frames.is_none() {
            // An error means that the connection is over.
            let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        }
    }

    /// Lets the kernel end the connection in order once the socket is closed.
    pub(super) fn ends_in_order(&self) {
        // An error means that the connection is over.
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket, None);
    }

    /// Resets the connection, although `dyscod` has duplicates of the socket. A socket whose
    /// connection is gone stays as it is.
    pub(super) fn reset(&self) {
        if !self.gone {
            let _ = rustix::net::connect_unspec(&self.socket);
        }
    }
}
