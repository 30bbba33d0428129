//! Descriptors that somebody sends along with a report. Nobody asked for them, and
//! their last close may wait for as long as their sender likes (see `theirs`): the
//! kernel is to refuse them, and where it does not know how, they are closed where
//! nobody waits for it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::theirs::{Kind, close_apart};

/// `SO_PASSRIGHTS`, which libc does not name; of kernel 6.16.
const SO_PASSRIGHTS: i32 = 83;

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

/// Never waits for what the sender chose.
pub fn close(fd: OwnedFd) {
    if Kind::Socket.is(&fd) {
        let at_once = libc::linger {
            l_onoff: 0,
            l_linger: 0,
        };
        set(&fd, libc::SO_LINGER, &at_once);
        // The sender may have set it again.
        close_apart(fd);
    } else if Kind::Pipe.is(&fd) {
        drop(fd);
    } else {
        // Its file system could keep whoever closes it for ever: open until the daemon ends.
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
        // Until nobody can write any more.
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
