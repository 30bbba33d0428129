//! Number of bytes in another process's pipes. The kernel returns the number under the pipe's
//! lock. A waiting splice holds this lock for as long as its peers like, and the wait for the
//! lock cannot be interrupted, not even by the end of this process. The kernel is therefore not
//! queried about an empty pipe, nor about a pipe that a thread is seen to wait in.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::fs::MetadataExt;

use nix::poll::PollFlags;
use nix::sys::stat::{SFlag, fstat};

use super::duplicate::{Duplicate, Process};
use super::sys::{count, gone, is_ready};

const FIONREAD: libc::c_ulong = 0x541B;
/// Bit for read access in the mode of a descriptor's link in `/proc`.
const READS: u32 = 0o400;

/// Returns the number of bytes in a pipe, given its read end.
pub(crate) fn bytes(pipe: &OwnedFd) -> io::Result<i64> {
    match holds_something(pipe) {
        true => count(pipe, FIONREAD),
        false => Ok(0),
    }
}

/// Returns true if the pipe is not empty. Does not take the pipe's lock.
fn holds_something(pipe: &OwnedFd) -> bool {
    is_ready(pipe, PollFlags::POLLIN)
}

/// Returns the inode of a pipe, or `None` if the descriptor is no pipe.
pub(crate) fn inode(fd: &OwnedFd) -> Option<u64> {
    let stat = fstat(fd).ok()?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    (kind == SFlag::S_IFIFO).then_some(stat.st_ino)
}

/// Removes the pipes that a splice waits in. Returns true if there was one.
pub(crate) fn leave_kept(pid: i32, pipes: &mut [Option<Duplicate>]) -> bool {
    if !pipes.iter().flatten().any(|p| holds_something(p)) {
        return false;
    }
    let kept = kept(pid);
    let mut left = false;
    for pipe in pipes {
        let keep = |p: &Duplicate| inode(p).is_some_and(|i| !kept.contains(&i));
        let before = pipe.is_some();
        *pipe = pipe.take().filter(keep);
        left |= before && pipe.is_none();
    }
    left
}

/// Returns the inodes of the pipes whose lock a waiting thread of the process holds: in a splice,
/// or in a sendfile into the pipe.
pub(crate) fn kept(pid: i32) -> HashSet<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let calls = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("syscall")).ok());
    let fds: HashSet<u32> = calls.flat_map(|call| spliced(&call)).flatten().collect();
    let pipe = |fd| fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok();
    let is_pipe = |m: &fs::Metadata| m.st_mode() & libc::S_IFMT == libc::S_IFIFO;
    let found = fds.into_iter().filter_map(pipe).filter(is_pipe);
    found.map(|m| m.st_ino()).collect()
}

/// Returns the descriptors that a call may hold locked, parsed from `/proc` while its thread
/// waits: `number first second …`, with the arguments in hexadecimal.
fn spliced(call: &str) -> [Option<u32>; 2] {
    let mut words = call.split_whitespace();
    let number = words.next().and_then(|n| n.parse().ok());
    let arguments: Vec<&str> = words.collect();
    let fd = |i: usize| {
        let word = arguments.get(i)?.strip_prefix("0x")?;
        // An int in a register, whose upper half is undefined.
        Some(u64::from_str_radix(word, 16).ok()? as u32)
    };
    match number {
        Some(libc::SYS_splice) => [fd(0), fd(2)],
        Some(libc::SYS_sendfile) => [fd(0), None],
        _ => [None; 2],
    }
}

/// Returns the pipes of a process that hold bytes and may be queried. The caller should hold one
/// at a time, because there may be hundreds.
pub(crate) fn filled(pid: i32) -> io::Result<impl Iterator<Item = Duplicate>> {
    let process = gone(Process::open(pid))?;
    let entries = match &process {
        Some(_) => Some(fs::read_dir(format!("/proc/{pid}/fd"))?),
        None => None,
    };
    let kept = kept(pid);
    let mut seen = HashSet::new();
    let entries = entries.into_iter().flatten().flatten();
    Ok(entries.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        // Only the read end shows whether the pipe is empty.
        let reads = entry.metadata().is_ok_and(|m| m.st_mode() & READS != 0);
        if !reads || !target.to_str()?.starts_with("pipe:") {
            return None;
        }
        let fd = entry.file_name().to_str()?.parse().ok()?;
        let pipe = process.as_ref()?.pipe(fd).ok()?;
        let inode = inode(&pipe)?;
        (seen.insert(inode) && !kept.contains(&inode) && holds_something(&pipe)).then_some(pipe)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_names_the_pipes_that_it_keeps() {
        let splice = libc::SYS_splice;
        let call = format!("{splice} 0x5 0x0 0xffffffff00000008 0x0 0x40000000 0x1 0x7f00 0x7f01");
        assert_eq!(spliced(&call), [Some(5), Some(8)]);
        let sendfile = libc::SYS_sendfile;
        let call = format!("{sendfile} 0x7 0x3 0x0 0x1000 0x0 0x0 0x7f00 0x7f01");
        assert_eq!(spliced(&call), [Some(7), None]);
        for other in ["running", "-1 0x7ffc 0x7f00", "0 0x5 0x7f00 0x10", ""] {
            assert_eq!(spliced(other), [None; 2], "{other}");
        }
    }

    #[test]
    fn what_is_in_a_pipe_is_reported_and_an_empty_one_holds_nothing() {
        let (read, write) = nix::unistd::pipe().unwrap();
        assert_eq!(bytes(&read).unwrap(), 0);
        assert_eq!(inode(&read), inode(&write));
        nix::unistd::write(&write, b"seven b").unwrap();
        assert_eq!(bytes(&read).unwrap(), 7);
        let own = std::process::id() as i32;
        let found = filled(own).unwrap().any(|p| inode(&p) == inode(&read));
        assert!(found);
    }
}
