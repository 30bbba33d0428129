//! Another process, and duplicates of its descriptors.
//!
//! A duplicate must be closed again, and a last close may block for as long as the other
//! process's user likes: that of a file until its file system has answered, which not even a
//! signal interrupts, and that of a socket for its `SO_LINGER`. Only sockets and pipes are
//! therefore duplicated, and a socket that lingers is closed by a separate thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nix::poll::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, open, readlinkat_raw};
use rustix::io::Errno;
use rustix::path::{Arg, DecInt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::sys::{is_ready, option};

/// A process, identified by a handle that stays valid when its pid is reused.
pub(crate) struct Process {
    handle: OwnedFd,
    pid: i32,
    /// Directory of its descriptors, if many of them are taken: their names are then read without
    /// a search for the process, and they are this process's even if its pid is reused.
    descriptors: Option<OwnedFd>,
}

/// Processes that stay open for one pass over many pairs.
#[derive(Default)]
pub(crate) struct Processes(HashMap<i32, Process>);

impl Processes {
    /// Returns the process that had this pid when it was first asked for.
    pub(crate) fn open(&mut self, pid: i32) -> io::Result<&Process> {
        match self.0.entry(pid) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(Process::for_many(pid)?)),
        }
    }
}

/// Kind of a descriptor that may be duplicated, as named under `/proc`.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A socket.
    Socket,
    /// A pipe.
    Pipe,
}

impl Process {
    /// Opens the process that has this pid now.
    pub(crate) fn open(pid: i32) -> io::Result<Process> {
        let named = Pid::from_raw(pid.max(0)).ok_or(Errno::SRCH)?;
        let handle = pidfd_open(named, PidfdFlags::empty())?;
        Ok(Process {
            handle,
            pid,
            descriptors: None,
        })
    }

    /// Opens the process that has this pid now, to take many descriptors.
    fn for_many(pid: i32) -> io::Result<Process> {
        let process = Process::open(pid)?;
        // If the process has ended and the directory is another's, nothing can be taken.
        let descriptors = descriptors(pid).ok();
        Ok(Process {
            descriptors,
            ..process
        })
    }

    /// Returns true if a descriptor is of this kind.
    fn has(&self, fd: RawFd, kind: Kind) -> io::Result<bool> {
        match &self.descriptors {
            Some(directory) => Ok(kind.names(name(directory, DecInt::new(fd), &mut [0; _])?)),
            None => kind.has(&self.pid.to_string(), fd),
        }
    }

    /// Returns true if the process has ended. Its handle is then readable.
    pub(crate) fn ended(&self) -> bool {
        is_ready(&self.handle, PollFlags::POLLIN)
    }

    /// Returns a duplicate of a socket's descriptor. The duplicate keeps the socket open, so it
    /// must be dropped before the caller waits for anything.
    pub(crate) fn socket(&self, fd: RawFd) -> io::Result<Duplicate> {
        self.take(fd, Kind::Socket)
    }

    /// Returns a duplicate of a pipe's descriptor.
    pub(crate) fn pipe(&self, fd: RawFd) -> io::Result<Duplicate> {
        self.take(fd, Kind::Pipe)
    }

    fn take(&self, fd: RawFd, kind: Kind) -> io::Result<Duplicate> {
        // The kind is checked before the descriptor is duplicated.
        match self.has(fd, kind) {
            Ok(true) => {}
            Ok(false) => return Err(kind.wrong()),
            // The directory of an ended process may be readable only by root.
            Err(e) if e.kind() == io::ErrorKind::NotFound || self.ended() => {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
            Err(e) => return Err(e),
        }
        let taken = pidfd_getfd(&self.handle, fd, PidfdGetfdFlags::empty())?;
        if !kind.is(&taken) {
            // The descriptor was replaced meanwhile by something that must not be closed here.
            std::mem::forget(taken);
            return Err(kind.wrong());
        }
        Ok(Duplicate(ManuallyDrop::new(taken)))
    }
}

/// Opens the directory of a process's descriptors.
pub(crate) fn descriptors(pid: i32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(format!("/proc/{pid}/fd"), flags, Mode::empty())
}

/// Room for the name of a socket or a pipe. A longer name is cut.
pub(crate) type Room = [u8; 64];

/// Returns the name of a descriptor: the target of its link in a directory under `/proc`.
pub(crate) fn name(directory: impl AsFd, link: impl Arg, room: &mut Room) -> io::Result<&[u8]> {
    let length = readlinkat_raw(directory, link, &mut room[..])?;
    Ok(&room[..length])
}

impl Kind {
    /// Returns true if this process's own descriptor is of this kind. Queries no file system.
    pub(crate) fn is(self, fd: &OwnedFd) -> bool {
        match self {
            Kind::Socket => option::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok(),
            Kind::Pipe => self.has("self", fd.as_raw_fd()).unwrap_or(false),
        }
    }

    /// Returns true if a process's descriptor is of this kind, judged by its name. Reading the
    /// name queries no file system and takes no lock of a pipe. The name of a file begins with a
    /// slash.
    fn has(self, pid: &str, fd: RawFd) -> io::Result<bool> {
        let link = format!("/proc/{pid}/fd/{fd}");
        Ok(self.names(name(CWD, link, &mut [0; _])?))
    }

    /// Returns true if this is the name of a descriptor of this kind.
    fn names(self, name: &[u8]) -> bool {
        let begins = match self {
            Kind::Socket => "socket:[",
            Kind::Pipe => "pipe:[",
        };
        name.starts_with(begins.as_bytes())
    }

    fn wrong(self) -> io::Error {
        match self {
            Kind::Socket => io::Error::from_raw_os_error(libc::ENOTSOCK),
            Kind::Pipe => io::Error::new(io::ErrorKind::InvalidInput, "no pipe"),
        }
    }
}

/// Returns true if the error means that the descriptor is something else now.
pub(crate) fn is_no_socket(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOTSOCK)
}

/// A duplicate of another process's descriptor of a socket or pipe.
pub struct Duplicate(ManuallyDrop<OwnedFd>);

impl Deref for Duplicate {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        // SAFETY: the value is taken once, and not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if lingers(&fd) {
            close_apart(fd);
        }
    }
}

/// Returns true if the last close of the socket may block.
fn lingers(fd: &OwnedFd) -> bool {
    let linger = option::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    linger.is_ok_and(|l| l.l_onoff != 0 && l.l_linger != 0)
}

/// Maximum number of closes that may block at once. Further descriptors stay open until the
/// daemon ends.
const MOST: usize = 64;
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Closes a descriptor in a separate thread.
pub(crate) fn close_apart(fd: OwnedFd) {
    let fd = fd.into_raw_fd();
    if CLOSING.fetch_add(1, Relaxed) < MOST {
        let thread = std::thread::Builder::new().name("closing".into());
        let close = move || {
            // SAFETY: this thread alone owns the descriptor since it was started.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            CLOSING.fetch_sub(1, Relaxed);
        };
        if thread.spawn(close).is_ok() {
            return;
        }
    }
    CLOSING.fetch_sub(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::sys::gone;

    fn own() -> Process {
        Process::open(std::process::id() as i32).unwrap()
    }

    #[test]
    fn only_sockets_and_pipes_are_taken() {
        let file = tempfile::tempfile().unwrap();
        let (read, _write) = nix::unistd::pipe().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let pid = std::process::id() as i32;
        for process in [own(), Process::for_many(pid).unwrap()] {
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
    }

    /// A pass over many pairs keeps the directory, and what is in it changes meanwhile.
    #[test]
    fn a_descriptor_is_taken_as_it_is_now() {
        let mut processes = Processes::default();
        let process = processes.open(std::process::id() as i32).unwrap();
        let (read, _write) = nix::unistd::pipe().unwrap();
        // A number that no other test gets meanwhile.
        let fd = nix::fcntl::fcntl(&read, nix::fcntl::FcntlArg::F_DUPFD(500)).unwrap();
        // SAFETY: this test alone has the descriptor.
        let mut own = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_no_socket(&process.socket(fd).err().unwrap()));
        nix::unistd::dup2(&socket, &mut own).unwrap();
        let taken = process.socket(fd).unwrap();
        let is_same = |fd: &OwnedFd| crate::sys::cookie(fd).unwrap();
        assert_eq!(is_same(&taken), is_same(&OwnedFd::from(socket)));
        drop(own);
        assert!(gone(process.socket(fd)).unwrap().is_none());
    }

    #[test]
    fn nothing_of_an_ended_process_is_taken() {
        let mut processes = Processes::default();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = processes.open(child.id() as i32).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(gone(process.socket(0)).unwrap().is_none());
    }

    /// The owner has closed the socket, which lingers for an hour because its peer does not read.
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
        let duplicate = own().socket(slow.as_raw_fd()).unwrap();
        assert!(lingers(&duplicate));
        drop(slow);
        drop(duplicate);
        drop(reader);
    }
}
