//! Descriptors that a process sends along with a report. They are not wanted, and their last
//! close may block for as long as the sender likes (see `duplicate`). The kernel is told to refuse
//! them. Where it does not support this, they are closed without blocking the receiver.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::duplicate::{Kind, close_apart};

/// `SO_PASSRIGHTS` (Linux 6.16), which libc does not name.
const SO_PASSRIGHTS: i32 = 83;

/// Makes the kernel refuse descriptors that are sent to this socket: the sender gets an error. An
/// older kernel ignores the option, which does no harm.
pub(crate) fn refuse(socket: &UnixDatagram) {
    set(socket, SO_PASSRIGHTS, &0i32);
}

fn set<T>(fd: &impl AsRawFd, name: i32, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    let p = std::ptr::from_ref(value).cast();
    // SAFETY: the value belongs to the caller and has that size; the kernel only reads it.
    unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, p, len) };
}

/// Closes a descriptor without waiting for anything that the sender controls.
pub(crate) fn close(fd: OwnedFd) {
    if Kind::Socket.is(&fd) {
        let at_once = libc::linger {
            l_onoff: 0,
            l_linger: 0,
        };
        set(&fd, libc::SO_LINGER, &at_once);
        // The sender may have set the option again.
        close_apart(fd);
    } else if Kind::Pipe.is(&fd) {
        drop(fd);
    } else {
        // The file system could block the close for ever, so the file stays open until the daemon
        // ends.
        std::mem::forget(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_along_is_closed() {
        let (read, write) = nix::unistd::pipe().unwrap();
        close(write);
        // The read returns once nothing can write to the pipe any more.
        assert_eq!(nix::unistd::read(&read, &mut [0]).unwrap(), 0);
        let (read, write) = UnixDatagram::pair().unwrap();
        close(write.into());
        read.set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
        while read.send(b"?").is_ok() {
            std::thread::yield_now();
        }
    }
}
