//! Descriptors that somebody sends along with a report. Nobody asked for them, and
//! the last close of a socket waits for as long as its sender likes (`SO_LINGER`):
//! the kernel is to refuse them, and where it does not know how, a thread of its
//! own closes them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// `SO_PASSRIGHTS`, which libc does not name; of kernel 6.16.
const SO_PASSRIGHTS: i32 = 83;
/// As many may wait to be closed.
const WAITING: usize = 256;

/// Who sends descriptors to this socket gets an error. An older kernel does not
/// know that: no harm.
pub fn refuse(socket: &UnixDatagram) {
    set(socket, SO_PASSRIGHTS, &0i32);
}

fn set<T>(fd: &impl AsRawFd, name: i32, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    let p = std::ptr::from_ref(value).cast();
    // SAFETY: the value is the caller's, of that size; the kernel only reads it.
    unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, p, len) };
}

/// Closes them where nobody waits for it.
pub struct Closer(SyncSender<OwnedFd>);

impl Closer {
    /// Its thread ends when all is closed and this is dropped.
    pub fn start() -> io::Result<Closer> {
        let (closer, fds) = sync_channel::<OwnedFd>(WAITING);
        let thread = std::thread::Builder::new().name("unasked".into());
        thread.spawn(move || fds.into_iter().for_each(drop))?;
        Ok(Closer(closer))
    }

    /// Never waits for what the sender chose.
    pub fn close(&self, fd: OwnedFd) {
        let at_once = libc::linger {
            l_onoff: 0,
            l_linger: 0,
        };
        set(&fd, libc::SO_LINGER, &at_once);
        if let Err(TrySendError::Full(fd) | TrySendError::Disconnected(fd)) = self.0.try_send(fd) {
            drop(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_along_is_closed() {
        let closer = Closer::start().unwrap();
        for _ in 0..2 * WAITING {
            let (read, write) = nix::unistd::pipe().unwrap();
            closer.close(write);
            // Until nobody can write any more.
            assert_eq!(nix::unistd::read(&read, &mut [0]).unwrap(), 0);
        }
    }
}
