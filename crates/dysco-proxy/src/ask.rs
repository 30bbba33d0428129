//! Requests to the ends of a pair's sessions for a packet, while the sessions are silent.
//!
//! Leaving repair makes the kernel send a window probe: an empty segment with an old number,
//! which any TCP answers with an acknowledgement. This works on a socket that was not in repair.
//! The proxy would notice a socket in repair.

use std::io;
use std::os::fd::OwnedFd;

use super::held::Held;
use super::pair::Pair;
use super::sys::{option, set_option};

const TCP_REPAIR: i32 = 19;
const OFF: i32 = 0;

/// Sends a probe on both sessions, if they still belong to the pair. A session that one end has
/// closed sends none.
pub(crate) fn for_packets(pair: &Pair) -> io::Result<()> {
    let Some(held) = Held::take(pair)? else {
        return Ok(());
    };
    probe(&held.a)?;
    probe(&held.b)
}

fn probe(fd: &OwnedFd) -> io::Result<()> {
    // Setting the option clears SO_REUSEADDR, which the proxy's listener may need for a restart.
    let reuse: i32 = option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    set_option(fd, libc::IPPROTO_TCP, TCP_REPAIR, OFF)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns the number of segments that a socket has received.
    fn segments(fd: &OwnedFd) -> u32 {
        let info: libc::tcp_info = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap();
        info.tcpi_segs_in
    }

    #[test]
    fn a_probe_is_answered_and_leaves_the_socket_as_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let opened: OwnedFd = TcpStream::connect(listener.local_addr().unwrap())
            .unwrap()
            .into();
        let accepted: OwnedFd = listener.accept().unwrap().0.into();
        for (fd, reuse) in [(&opened, 0), (&accepted, 1)] {
            set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse).unwrap();
            let before = segments(fd);
            probe(fd).unwrap();
            // On the loopback interface the answer has arrived when the call returns.
            assert!(segments(fd) > before, "no answer");
            let now: i32 = option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap();
            assert_eq!(now, reuse);
        }
    }
}
