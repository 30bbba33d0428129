//! Ends of sessions on one side, worked by one thread.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// Milliseconds after which who waits looks whether he still should.
const LOOK_UP: u8 = 20;

/// After which a single one that hears nothing looks, too.
const LONGEST: Duration = Duration::from_millis(100);

/// What was done, unless it would have had to wait.
pub fn would_block(done: std::io::Result<usize>) -> std::io::Result<Option<usize>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

/// Ends of sessions on one side. A single one blocks: nothing need be asked.
pub struct Ends {
    /// All of them.
    pub sockets: Vec<TcpStream>,
    epoll: Option<Epoll>,
}

impl Ends {
    /// Takes them over, to be told when they can do what is wanted.
    pub fn new(sockets: Vec<TcpStream>, wanted: EpollFlags) -> Result<Ends> {
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
            // What is between the ends may tell neither of the other's end.
            socket.set_read_timeout(Some(LONGEST))?;
        }
        Ok(ends)
    }

    /// Whether there is but one.
    pub fn single(&self) -> bool {
        self.epoll.is_none()
    }

    /// Those that may be able to go on; all get their turn.
    pub fn ready(&self, ready: &mut Vec<usize>) -> Result<()> {
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
