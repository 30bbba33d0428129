//! Another process, and its descriptors.
//!
//! What is duplicated has to be closed again, and a last close may wait for as long as
//! the other process's user likes: a file's until its file system has answered, and not
//! even a signal ends that; a socket's for its `SO_LINGER`. So nothing is taken but
//! sockets and pipes, and one that lingers is closed where nobody waits.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::sys::option;

/// A process, by a handle that outlives its number's reuse.
pub struct Process {
    handle: OwnedFd,
    pid: i32,
}

/// What may be taken of a process, as the kernel calls it under `/proc`.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A socket.
    Socket,
    /// A pipe.
    Pipe,
}

impl Process {
    /// The process that has this number now.
    pub fn open(pid: i32) -> io::Result<Process> {
        // SAFETY: no pointers; a descriptor that is returned is ours alone.
        let handle = unsafe {
            let fd = check(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Process { handle, pid })
    }

    /// Has it ended? Its handle is then readable.
    pub fn ended(&self) -> bool {
        let mut p = libc::pollfd {
            fd: self.handle.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, ours; no wait.
        unsafe { libc::poll(&raw mut p, 1, 0) == 1 }
    }

    /// A duplicate of a socket's descriptor. It keeps the socket open, so it must be
    /// dropped before the caller waits for anything.
    pub fn socket(&self, fd: RawFd) -> io::Result<Theirs> {
        self.take(fd, Kind::Socket)
    }

    /// A duplicate of a pipe's.
    pub fn pipe(&self, fd: RawFd) -> io::Result<Theirs> {
        self.take(fd, Kind::Pipe)
    }

    fn take(&self, fd: RawFd, kind: Kind) -> io::Result<Theirs> {
        // Before it is taken.
        match kind.has(&self.pid.to_string(), fd) {
            Ok(true) => {}
            Ok(false) => return Err(kind.wrong()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
            Err(e) => return Err(e),
        }
        // SAFETY: as above.
        let taken = unsafe {
            let handle = self.handle.as_raw_fd();
            let fd = check(libc::syscall(libc::SYS_pidfd_getfd, handle, fd, 0))?;
            OwnedFd::from_raw_fd(fd)
        };
        if !kind.is(&taken) {
            // Something else was put there meanwhile, which is not to be closed.
            std::mem::forget(taken);
            return Err(kind.wrong());
        }
        Ok(Theirs(ManuallyDrop::new(taken)))
    }
}

impl Kind {
    /// Is this process's own descriptor of it?
    pub fn is(self, fd: &OwnedFd) -> bool {
        self.has("self", fd.as_raw_fd()).unwrap_or(false)
    }

    /// Is a process's? By its name, for which no file system is asked and no lock of a
    /// pipe is taken; that of a file begins with a slash.
    fn has(self, pid: &str, fd: RawFd) -> io::Result<bool> {
        let name = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"))?;
        let begins = match self {
            Kind::Socket => "socket:[",
            Kind::Pipe => "pipe:[",
        };
        let name = name.as_os_str().as_encoded_bytes();
        Ok(name.starts_with(begins.as_bytes()))
    }

    fn wrong(self) -> io::Error {
        match self {
            Kind::Socket => io::Error::from_raw_os_error(libc::ENOTSOCK),
            Kind::Pipe => io::Error::new(io::ErrorKind::InvalidInput, "no pipe"),
        }
    }
}

/// Is a descriptor's number that of something else by now?
pub fn is_no_socket(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOTSOCK)
}

/// A duplicate of another process's descriptor, of a socket or a pipe.
pub struct Theirs(ManuallyDrop<OwnedFd>);

impl Deref for Theirs {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: taken once, and not looked at again.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if lingers(&fd) {
            close_apart(fd);
        }
    }
}

/// May its last close wait?
fn lingers(fd: &OwnedFd) -> bool {
    let linger = option::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    linger.is_ok_and(|l| l.l_onoff != 0 && l.l_linger != 0)
}

/// Closes that may wait at once. What is beyond stays open until the daemon ends.
const MOST: usize = 64;
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Closes it where nobody waits for it.
pub fn close_apart(fd: OwnedFd) {
    let fd = fd.into_raw_fd();
    if CLOSING.fetch_add(1, Relaxed) < MOST {
        let thread = std::thread::Builder::new().name("closing".into());
        let close = move || {
            // SAFETY: this thread's own since it was started.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            CLOSING.fetch_sub(1, Relaxed);
        };
        if thread.spawn(close).is_ok() {
            return;
        }
    }
    CLOSING.fetch_sub(1, Relaxed);
}

fn check(r: libc::c_long) -> io::Result<RawFd> {
    if r < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(r as RawFd)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn own() -> Process {
        Process::open(std::process::id() as i32).unwrap()
    }

    #[test]
    fn only_sockets_and_pipes_are_taken() {
        let file = tempfile::tempfile().unwrap();
        let (read, _write) = nix::unistd::pipe().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let process = own();
        assert!(is_no_socket(
            &process.socket(file.as_raw_fd()).err().unwrap()
        ));
        assert!(is_no_socket(
            &process.socket(read.as_raw_fd()).err().unwrap()
        ));
        assert!(process.pipe(file.as_raw_fd()).is_err());
        assert!(process.pipe(socket.as_raw_fd()).is_err());
        assert!(process.socket(socket.as_raw_fd()).is_ok());
        assert!(process.pipe(read.as_raw_fd()).is_ok());
        let none = process.socket(1 << 20).err().unwrap();
        assert_eq!(none.raw_os_error(), Some(libc::EBADF));
    }

    /// Of a socket that its owner has closed, whose peer does not read, for an hour.
    #[test]
    fn a_last_close_that_waits_stops_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 1 << 16]).is_ok() {}
        let hour = libc::linger {
            l_onoff: 1,
            l_linger: 3600,
        };
        nix::sys::socket::setsockopt(&slow, nix::sys::socket::sockopt::Linger, &hour).unwrap();
        let theirs = own().socket(slow.as_raw_fd()).unwrap();
        assert!(lingers(&theirs));
        drop(slow);
        drop(theirs);
        drop(reader);
    }
}
