//! The list of this network namespace's TCP sockets in `/proc/net`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::{fs, io};

use dysco_common::FlowKey;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_families_are_read() {
        let line = "   0: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 \
                    00000000  1000  0 12345 1 0";
        let read = row(line).unwrap();
        assert_eq!(read.key.local().to_string(), "127.0.0.1:8080");
        assert_eq!(read.key.remote().to_string(), "127.0.0.2:54321");
        assert_eq!((read.state, read.inode), (1, 12345));
        let v6 = "000000FD000000000000000001000000:0050";
        assert_eq!(address(v6).unwrap().to_string(), "[fd00::1]:80");
        assert!(row("  sl  local_address").is_none());
    }
}
