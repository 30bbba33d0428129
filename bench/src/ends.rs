//! Ends of sessions on one side, processed by one thread.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// Milliseconds after which a waiting thread checks whether to continue.
const LOOK_UP: u8 = 20;

/// Time after which a single end that receives nothing also checks.
const LONGEST: Duration = Duration::from_millis(100);

/// Converts an operation that would block to `None`.
pub(crate) fn would_block(done: std::io::Result<usize>) -> std::io::Result<Option<usize>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

/// Ends of sessions on one side. A single end blocks, because no poll is needed.
pub(crate) struct Ends {
    /// Sockets of all ends.
    pub sockets: Vec<TcpStream>,
    epoll: Option<Epoll>,
}

impl Ends {
    /// Takes over the ends. They are polled for the events in `wanted`.
    pub(crate) fn new(sockets: Vec<TcpStream>, wanted: EpollFlags) -> Result<Ends> {
        let mut ends = Ends {
            sockets,
            epoll: None,
        };
        if ends.sockets.len() > 1 {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            for (at, socket) in ends.sockets.iter().enumerate() {
                socket.set_nonblocking(true)?;
                epoll.add(socket, EpollEvent::new(wanted, at as u64))?;
            }
            ends.epoll = Some(epoll);
        } else if let [socket] = &ends.sockets[..] {
            // A device between the ends may not notify either end of the other end's close.
            socket.set_read_timeout(Some(LONGEST))?;
        }
        Ok(ends)
    }

    /// Ends that may be able to continue. Each end gets its turn.
    pub(crate) fn ready(&self, ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        let Some(epoll) = &self.epoll else {
            ready.push(0);
            return Ok(());
        };
        let mut events = [EpollEvent::empty(); 256];
        let count = match epoll.wait(&mut events, LOOK_UP) {
            Err(Errno::EINTR) => 0,
            count => count?,
        };
        ready.extend(events[..count].iter().map(|event| event.data() as usize));
        Ok(())
    }
}
