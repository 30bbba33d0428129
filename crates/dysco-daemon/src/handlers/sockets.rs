//! Two sockets in the middle of a session: one speaks with the local end in the place of the remote
//! end, and the other one with the remote end in the place of the local end.
//!
//! They are made in repair mode (TCP_REPAIR), with the numbers, the options and the addresses of
//! the session, and send nothing meanwhile.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dysco_agent::Start;
use dysco_common::session::offer;
use dysco_common::{FlowKey, Session};
use dysco_explain::Cause;
use dysco_proxy::kernel::{self, Still};
use dysco_proxy::repair::{self, Half};

/// Time within which the handler closes sockets that it was told to release.
const CLOSING: Duration = Duration::from_secs(2);
/// Number of readings of a socket to find a moment at which no packet came.
const READINGS: usize = 1000;
/// Interval of the attempts meanwhile.
const AGAIN: Duration = Duration::from_millis(10);

/// A session that two sockets are wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    key: FlowKey,
    near: Half,
    far: Option<Half>,
}

/// The two sockets.
pub(crate) struct Sockets {
    /// Speaks with the local end.
    pub near: OwnedFd,
    far: Far,
}

/// The socket on the other side of the services.
enum Far {
    /// Speaks with the remote end.
    End(OwnedFd),
    /// A connection to the handler of the remote end's host, once there is one.
    Handler(Option<OwnedFd>),
}

impl Wanted {
    /// Describes the sockets of a session that begin with these numbers: the near one, and the far
    /// one if it is wanted. `far` is the length of the longest segment that the path takes, TCP
    /// options included.
    pub(crate) fn new(s: &Session, start: Start, far: Option<u16>) -> Wanted {
        let both = s.local.flags & s.remote.flags;
        let mss = s.local.mss.min(s.remote.mss);
        let half = |sends, receives, scale_of_peer, own_scale, longest: u16| Half {
            sends,
            receives,
            mss: mss.min(longest),
            scales: (both & offer::WSCALE != 0).then_some((scale_of_peer, own_scale)),
            sack: both & offer::SACK != 0,
            timestamps: both & offer::TIMESTAMPS != 0,
        };
        let (local, remote) = (s.local_wscale(), s.remote_wscale());
        Wanted {
            key: s.key,
            near: half(start.back, start.out, local, remote, mss),
            far: far.map(|longest| half(start.out, start.back, remote, local, longest)),
        }
    }
}

/// Makes one of the sockets. The handler may be about to close that of earlier services, which has
/// the same addresses.
fn continued(own: SocketAddr, peer: SocketAddr, half: &Half) -> io::Result<OwnedFd> {
    let until = Instant::now() + CLOSING;
    loop {
        match repair::continue_session(own, peer, half) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrNotAvailable && Instant::now() < until =>
            {
                std::thread::sleep(AGAIN);
            }
            made => return made,
        }
    }
}

/// Returns the counts of a socket.
fn still(socket: &OwnedFd) -> Option<Still> {
    // The sockets were made in the midst of a session: no count contains a SYN.
    let mut readings = (0..READINGS).map(|_| kernel::counts(socket, false));
    readings.find_map(|read| read.ok().flatten())
}

impl Sockets {
    /// Makes the sockets in the namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub(crate) fn make(wanted: &Wanted) -> io::Result<Sockets> {
        let (local, remote): (SocketAddr, SocketAddr) = (wanted.key.local(), wanted.key.remote());
        let near = continued(remote, local, &wanted.near)?;
        let far = match &wanted.far {
            Some(far) => Far::End(continued(local, remote, far)?),
            None => Far::Handler(None),
        };
        Ok(Sockets { near, far })
    }

    /// Takes the connection to the handler of the remote end's host.
    pub(crate) fn connect(&mut self, tunnel: OwnedFd) {
        self.far = Far::Handler(Some(tunnel));
    }

    /// Returns the socket on the other side of the services.
    pub(crate) fn far(&self) -> Option<BorrowedFd<'_>> {
        match &self.far {
            Far::End(fd) => Some(fd.as_fd()),
            Far::Handler(fd) => fd.as_ref().map(AsFd::as_fd),
        }
    }

    /// True if as many bytes were written to each socket as were read from the other one, while no
    /// process uses them. Services that keep bytes then have none in hand.
    pub(crate) fn are_even(&self) -> bool {
        let Far::End(far) = &self.far else {
            return false;
        };
        match (still(&self.near), still(far)) {
            (Some(near), Some(far)) => near.read == far.written && far.read == near.written,
            _ => false,
        }
    }

    /// Lets both sockets acknowledge at once all that they have received. A sender whose data takes the
    /// direct route would else wait for an acknowledgement that a socket delays, up to 40 ms
    /// (`TCP_DELACK_MIN`, include/net/tcp.h).
    pub(crate) fn acknowledge(&self) {
        for fd in [Some(self.near.as_fd()), self.far()].into_iter().flatten() {
            // An error means that the connection is over.
            let _ = rustix::net::sockopt::set_tcp_quickack(fd, true);
        }
    }

    /// Tells both ends the window that the sockets have. The handler has nothing to write yet.
    pub(crate) fn open_windows(&self) {
        let far = match &self.far {
            Far::End(far) => Some(far.as_fd()),
            Far::Handler(_) => None,
        };
        // The far end's answer takes longer: the handler gets its bytes once the near socket is
        // ready again.
        for fd in far.into_iter().chain([self.near.as_fd()]) {
            if let Err(error) = repair::probe(fd) {
                tracing::warn!(%error, "an end of a session with services learns its window late");
            }
        }
    }

    /// Gives the socket towards the network this congestion control.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn set_congestion(&self, name: &str) -> Result<(), Cause> {
        let far = self
            .far()
            .ok_or("its handler has no socket to the network")?;
        rustix::net::sockopt::set_tcp_congestion(far, name).map_err(|error| {
            Cause::new(format!(
                "the socket to the network does not take the congestion control {name}: {error}"
            ))
        })
    }

    /// Gives the socket towards the network the host's default congestion control, as the other
    /// socket has it.
    pub(crate) fn reset_congestion(&self) {
        let default = rustix::net::sockopt::tcp_congestion(&self.near);
        if let (Ok(default), Some(far)) = (default, self.far()) {
            // An error means that the connection is over.
            let _ = rustix::net::sockopt::set_tcp_congestion(far, &default);
        }
    }

    /// Resets both connections.
    pub(crate) fn reset(&self) {
        for fd in [Some(self.near.as_fd()), self.far()].into_iter().flatten() {
            // An error means that the connection is over.
            let _ = repair::reset(fd);
        }
    }

    /// Closes the sockets of the session without a packet, once nobody else has them. A connection
    /// to another handler is closed as any other.
    pub(crate) fn hush(&self) {
        // An error means that the connection is over.
        let _ = repair::hush(&self.near);
        if let Far::End(far) = &self.far {
            let _ = repair::hush(far);
        }
    }
}
