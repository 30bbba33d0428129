//! Another process's descriptors, held for a moment.

use std::io;
use std::os::fd::OwnedFd;

use super::pair::{Direction, End, Pair};
use super::pipes;
use super::sys::{cookie, key};
use super::theirs::{Process, Theirs, is_no_socket};

/// Duplicates of a pair's descriptors: for a few milliseconds, since they keep
/// the proxy's own close from closing.
pub struct Held {
    /// The client's side.
    pub a: Theirs,
    /// The server's side.
    pub b: Theirs,
    /// The read ends of its pipes, forward and reverse, where they may be asked.
    pub pipes: [Option<Theirs>; 2],
    /// One of these may not, since a splice waits in it.
    pub kept: bool,
}

impl Held {
    /// Takes them, if they still are what the pair says.
    pub fn take(pair: &Pair) -> io::Result<Option<Held>> {
        let Some(process) = gone(Process::open(pair.id.pid))? else {
            return Ok(None);
        };
        let end = |fd: i32, end: &End| -> io::Result<Option<Theirs>> {
            match gone(process.socket(fd)) {
                Ok(fd) => Ok(fd.filter(|fd| is(fd, end))),
                Err(e) if is_no_socket(&e) => Ok(None),
                Err(e) => Err(e),
            }
        };
        let (Some(a), Some(b)) = (end(pair.id.fd_a, &pair.a)?, end(pair.id.fd_b, &pair.b)?) else {
            return Ok(None);
        };
        // A splice that waits holds the pipe's lock, and asking a locked pipe
        // for its bytes cannot be interrupted: only where no splice waits.
        let ask = never_waits(&a) && never_waits(&b);
        let pipe = |d: &Direction| {
            let fd = process.pipe(d.pipe.filter(|_| ask)?).ok()?;
            // Not a pipe any more: as if none were known.
            pipes::inode(&fd).map(|_| fd)
        };
        let mut pipes = [pipe(&pair.forward), pipe(&pair.reverse)];
        let kept = pipes::leave_kept(pair.id.pid, &mut pipes);
        Ok(Some(Held { a, b, pipes, kept }))
    }
}

/// Does a call on it come back at once, whatever there is?
pub fn never_waits(fd: &OwnedFd) -> bool {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_GETFL)
        .is_ok_and(|f| OFlag::from_bits_retain(f).contains(OFlag::O_NONBLOCK))
}

/// Is this the very socket, still connected as it was?
pub fn is(fd: &OwnedFd, end: &End) -> bool {
    cookie(fd).is_ok_and(|c| c == end.cookie) && key(fd).is_ok_and(|k| k == end.key)
}

/// A process or descriptor that is no more is no error.
pub fn gone<T>(r: io::Result<T>) -> io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::EBADF)) => Ok(None),
        Err(e) => Err(e),
    }
}
