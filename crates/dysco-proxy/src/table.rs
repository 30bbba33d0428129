//! The kernel's list of TCP sockets of this network namespace, and the processes that have them
//! open.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::{fs, io};

use rustix::fs::Dir;

use super::diag;
use super::duplicate::{Room, descriptors, name};
use super::proc_net::rows_in;

pub use super::proc_net::{CLOSED, LISTEN, Row};

/// Returns all TCP sockets of the calling thread's network namespace.
pub fn rows() -> io::Result<Vec<Row>> {
    if let Ok(rows) = diag::rows() {
        return Ok(rows);
    }
    rows_in(Path::new("/proc/thread-self/net"))
}

/// A process that has a socket open, and its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Pid of the process.
    pub pid: i32,
    /// Descriptor in that process.
    pub fd: i32,
}

/// The open sockets of processes. Several processes may share a socket.
#[derive(Default)]
pub struct Holders {
    /// Holders by inode of the socket.
    pub of: HashMap<u64, Vec<Holder>>,
    /// Processes that use an io_uring for input and output.
    pub uring: HashSet<i32>,
}

impl Holders {
    /// Examines every process.
    pub fn find() -> io::Result<Holders> {
        let mut all = Holders::default();
        for pid in pids()? {
            all.add(pid);
        }
        Ok(all)
    }

    /// Examines one process.
    pub fn of_process(pid: i32) -> Holders {
        let mut own = Holders::default();
        own.add(pid);
        own
    }

    fn add(&mut self, pid: i32) {
        // A process that ends meanwhile has nothing open.
        let Ok(directory) = descriptors(pid) else {
            return;
        };
        let entries = Dir::read_from(&directory);
        let mut room: Room = [0; _];
        for entry in entries.into_iter().flatten().flatten() {
            let Ok(target) = name(&directory, entry.file_name(), &mut room) else {
                continue;
            };
            let Ok(target) = str::from_utf8(target) else {
                continue;
            };
            let fd = entry.file_name().to_str().ok();
            let fd = fd.and_then(|n| n.parse().ok());
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|t| t.strip_suffix(']')?.parse().ok());
            if let (Some(inode), Some(fd)) = (inode, fd) {
                self.of.entry(inode).or_default().push(Holder { pid, fd });
            } else if target.contains("[io_uring]") {
                self.uring.insert(pid);
            }
        }
    }
}

/// Returns the pids of all visible processes.
pub fn pids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use dysco_common::FlowKey;

    use super::*;

    #[test]
    fn a_connection_of_this_process_is_listed_with_its_holder() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let key = FlowKey::new(a.local_addr().unwrap(), a.peer_addr().unwrap());
        let all = rows().unwrap();
        let row = all.iter().find(|r| r.key == key).unwrap();
        assert_eq!(row.state, 1);
        let holder = Holder {
            pid: std::process::id() as i32,
            fd: a.as_raw_fd(),
        };
        assert_eq!(Holders::find().unwrap().of[&row.inode], [holder]);
        let at = listener.local_addr().unwrap();
        let listens = |r: &Row| r.state == LISTEN && r.key.local() == at;
        assert!(all.iter().any(listens));
    }
}
