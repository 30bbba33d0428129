//! The process at the other end of the socket, apart from a later one with the same number.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use dysco_explain::Cause;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Socket option for the handle of the process that connected (include/uapi/asm-generic/socket.h).
const SO_PEERPIDFD: i32 = 77;

/// Returns a handle of the process that connected a socket; `None` if it has ended.
pub(super) fn of_peer(socket: &impl AsFd, pid: i32) -> Option<OwnedFd> {
    handle_of(socket.as_fd().as_raw_fd()).or_else(|| {
        // Kernels before 6.5 have no such option. The process has connected a moment ago.
        let named = Pid::from_raw(pid).filter(|_| pid > 0)?;
        pidfd_open(named, PidfdFlags::empty()).ok()
    })
}

fn handle_of(socket: i32) -> Option<OwnedFd> {
    let mut handle: i32 = -1;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `handle` has `len` bytes to write to, and `socket` is open, since the caller borrows it.
    let done = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut handle).cast(),
            &mut len,
        )
    };
    // SAFETY: the kernel has just opened the descriptor for this process.
    (done == 0 && handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) })
}

/// Checks that the process of a handle runs, has this number, and runs as this user.
pub(super) fn check(handle: Option<&OwnedFd>, pid: i32, uid: u32) -> Result<(), Cause> {
    if pid <= 0 {
        let why = "dyscod does not see the process that asked: it is in another process namespace";
        return Err(Cause::new(why).hint("run dyscod in the host's own process namespace"));
    }
    let ended = || Cause::new(format!("process {pid}, which asked, has ended"));
    let users = users(pid).map_err(|_| ended())?;
    // The number was its own while its users were read.
    if !handle.is_some_and(runs) {
        return Err(ended());
    }
    match users.iter().find(|user| **user != uid) {
        None => Ok(()),
        Some(user) => {
            let why = format!("process {pid} has asked as user {uid}, and now runs as user {user}");
            Err(Cause::new(why))
        }
    }
}

/// True if the process of a handle has not ended.
fn runs(handle: &OwnedFd) -> bool {
    // The handle is readable once it has.
    let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO) == Ok(0)
}

/// Returns the real, effective, saved and file system user of a process.
fn users(pid: i32) -> io::Result<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let words = line.ok_or(io::ErrorKind::InvalidData)?.split_whitespace();
    let users = words.map(str::parse).collect::<Result<Vec<u32>, _>>();
    users.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_kernel_gives_a_handle_of_the_peer() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pid = std::process::id().cast_signed();
        let handle = of_peer(&ours, pid).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(check(Some(&handle), pid, uid), Ok(()));
        let other = check(Some(&handle), pid, uid + 1).unwrap_err();
        assert!(other.to_string().contains("now runs as user"), "{other}");
    }

    #[test]
    fn a_process_that_has_ended_is_not_the_one_that_has_its_number() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let named = Pid::from_raw(child.id().cast_signed()).unwrap();
        let handle = pidfd_open(named, PidfdFlags::empty()).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(check(Some(&handle), child.id().cast_signed(), uid), Ok(()));
        drop(child.stdin.take());
        child.wait().unwrap();
        // Another process has the number now.
        let pid = std::process::id().cast_signed();
        for handle in [Some(&handle), None] {
            let cause = check(handle, pid, uid).unwrap_err();
            assert!(cause.to_string().contains("has ended"), "{cause}");
        }
    }

    #[test]
    fn a_process_that_is_not_seen_is_refused() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let handle = of_peer(&ours, std::process::id().cast_signed());
        for pid in [0, -1] {
            let cause = check(handle.as_ref(), pid, 0).unwrap_err();
            assert!(cause.to_string().contains("does not see"), "{cause}");
        }
    }
}
