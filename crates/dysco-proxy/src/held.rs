//! Temporary duplicates of another process's descriptors.

use std::io;
use std::os::fd::OwnedFd;

use super::duplicate::{Duplicate, Process, is_no_socket};
use super::pair::{Direction, End, Pair};
use super::pipes;
use super::sys::{cookie, gone, key};

/// Duplicates of a pair's descriptors. They must be held for a few milliseconds only, because the
/// proxy's own close does not close a socket while a duplicate exists.
pub(crate) struct Held {
    /// The client's side.
    pub a: Duplicate,
    /// The server's side.
    pub b: Duplicate,
    /// Read ends of the pipes, forward and reverse; `None` for a pipe that cannot be queried.
    pub pipes: [Option<Duplicate>; 2],
    /// True if a pipe was omitted because a splice waits in it.
    pub kept: bool,
}

impl Held {
    /// Duplicates the descriptors, if they still are the pair's sockets.
    pub(crate) fn take(pair: &Pair) -> io::Result<Option<Held>> {
        let Some(process) = gone(Process::open(pair.id.pid))? else {
            return Ok(None);
        };
        let Some([a, b]) = sockets(&process, pair)? else {
            return Ok(None);
        };
        // A waiting splice holds the lock of its pipe. A query for the bytes in a locked pipe
        // cannot be interrupted, so pipes are queried only if no splice can wait.
        let ask = never_waits(&a) && never_waits(&b);
        let pipe = |d: &Direction| {
            let fd = process.pipe(d.pipe.filter(|_| ask)?).ok()?;
            // A descriptor that is no longer a pipe counts as unknown.
            pipes::inode(&fd).map(|_| fd)
        };
        let mut pipes = [pipe(&pair.forward), pipe(&pair.reverse)];
        let kept = pipes::leave_kept(pair.id.pid, &mut pipes);
        Ok(Some(Held { a, b, pipes, kept }))
    }
}

/// Duplicates the descriptors of a pair's two sockets, if they still are these.
pub(crate) fn sockets(process: &Process, pair: &Pair) -> io::Result<Option<[Duplicate; 2]>> {
    let end = |fd: i32, end: &End| -> io::Result<Option<Duplicate>> {
        match gone(process.socket(fd)) {
            Ok(fd) => Ok(fd.filter(|fd| is(fd, end))),
            Err(e) if is_no_socket(&e) => Ok(None),
            Err(e) => Err(e),
        }
    };
    let (a, b) = (end(pair.id.fd_a, &pair.a)?, end(pair.id.fd_b, &pair.b)?);
    Ok(a.zip(b).map(|(a, b)| [a, b]))
}

/// Returns true if calls on the descriptor never block.
pub(crate) fn never_waits(fd: &OwnedFd) -> bool {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_GETFL)
        .is_ok_and(|f| OFlag::from_bits_retain(f).contains(OFlag::O_NONBLOCK))
}

/// Returns true if this is the same socket, with the same connection.
pub(crate) fn is(fd: &OwnedFd, end: &End) -> bool {
    cookie(fd).is_ok_and(|c| c == end.cookie) && key(fd).is_ok_and(|k| k == end.key)
}
