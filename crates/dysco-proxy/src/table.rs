//! The kernel's list of TCP sockets of this network namespace, and the processes that have them
//! open.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::{fs, io};

use dysco_common::FlowKey;

use super::diag;

/// `TCP_LISTEN` in the kernel's list.
pub const LISTEN: u8 = 10;

/// A row of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Both addresses. The remote address of a listener is unspecified.
    pub key: FlowKey,
    /// `TCP_ESTABLISHED` is 1, `TCP_LISTEN` 10.
    pub state: u8,
    /// Inode of the socket; 0 once no process has it open.
    pub inode: u64,
}

/// States `tcpi_state` of a socket that was closed, or never connected.
pub const CLOSED: [u8; 2] = [7, 2];

/// Returns all TCP sockets of the calling thread's network namespace.
pub fn rows() -> io::Result<Vec<Row>> {
    if let Ok(rows) = diag::rows() {
        return Ok(rows);
    }
    rows_in(Path::new("/proc/thread-self/net"))
}

/// Returns all TCP sockets of the network namespace that a directory of `/proc` shows.
pub(crate) fn rows_in(dir: &Path) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for file in ["tcp", "tcp6"] {
        let text = match fs::read_to_string(dir.join(file)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // no IPv6 here
            text => text?,
        };
        rows.extend(text.lines().skip(1).filter_map(row));
    }
    Ok(rows)
}

/// Parses `sl local_address rem_address st … inode`: addresses as words in memory order, and
/// ports, in hexadecimal (`get_tcp4_sock` in the kernel's net/ipv4/tcp_ipv4.c).
fn row(line: &str) -> Option<Row> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    Some(Row {
        key: FlowKey::new(local, remote),
        state,
        inode: words.nth(5)?.parse().ok()?,
    })
}

fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |i: usize| {
        u32::from_str_radix(ip.get(8 * i..8 * i + 8)?, 16)
            .ok()
            .map(u32::to_ne_bytes)
    };
    if ip.len() == 8 {
        return Some(SocketAddr::new(Ipv4Addr::from(word(0)?).into(), port));
    }
    let mut bytes = [0; 16];
    for i in 0..4 {
        bytes[4 * i..4 * i + 4].copy_from_slice(&word(i)?);
    }
    Some(SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port))
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
        let entries = fs::read_dir(format!("/proc/{pid}/fd"));
        for entry in entries.into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let Some(target) = target.to_str() else {
                continue;
            };
            let fd = entry.file_name().to_str().and_then(|n| n.parse().ok());
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

    #[test]
    fn lines_of_both_families_are_read() {
        let line = "   0: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 \
                    00000000  1000  0 12345 1 0";
        let row = row(line).unwrap();
        assert_eq!(row.key.local().to_string(), "127.0.0.1:8080");
        assert_eq!(row.key.remote().to_string(), "127.0.0.2:54321");
        assert_eq!((row.state, row.inode), (1, 12345));
        let v6 = "000000FD000000000000000001000000:0050";
        assert_eq!(address(v6).unwrap().to_string(), "[fd00::1]:80");
        assert!(super::row("  sl  local_address").is_none());
    }
}
