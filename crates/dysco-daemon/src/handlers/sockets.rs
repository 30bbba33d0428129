//! Two sockets in the middle of a session: one speaks with the local end in the place of the remote
//! end, and the other one with the remote end in the place of the local end.
//!
//! They are made in repair mode (TCP_REPAIR), with the numbers, the options and the addresses of
//! the session, and send nothing meanwhile.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use dysco_agent::Start;
use dysco_common::session::offer;
use dysco_common::{FlowKey, Session};
use dysco_proxy::repair::{self, Half};

/// A session that two sockets are wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    key: FlowKey,
    near: Half,
    far: Half,
}

/// The two sockets.
pub struct Sockets {
    /// Speaks with the local end.
    pub near: OwnedFd,
    /// Speaks with the remote end.
    pub far: OwnedFd,
}

impl Wanted {
    /// Describes the sockets of a session that begin with these numbers.
    pub fn new(s: &Session, start: Start) -> Wanted {
        let both = s.local.flags & s.remote.flags;
        let mss = s.local.mss.min(s.remote.mss);
        let half = |sends, receives, scale_of_peer, own_scale| Half {
            sends,
            receives,
            mss,
            scales: (both & offer::WSCALE != 0).then_some((scale_of_peer, own_scale)),
            sack: both & offer::SACK != 0,
            timestamps: both & offer::TIMESTAMPS != 0,
        };
        let (local, remote) = (s.local_wscale(), s.remote_wscale());
        Wanted {
            key: s.key,
            near: half(start.back, start.out, local, remote),
            far: half(start.out, start.back, remote, local),
        }
    }
}

impl Sockets {
    /// Makes the sockets in the namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub fn make(wanted: &Wanted) -> io::Result<Sockets> {
        let (local, remote): (SocketAddr, SocketAddr) = (wanted.key.local(), wanted.key.remote());
        Ok(Sockets {
            near: repair::continue_session(remote, local, &wanted.near)?,
            far: repair::continue_session(local, remote, &wanted.far)?,
        })
    }

    /// Resets both connections.
    pub fn reset(&self) {
        for fd in [&self.near, &self.far] {
            // An error means that the connection is over.
            let _ = repair::reset(fd);
        }
    }

    /// Closes the sockets without a packet, once nobody else has them.
    pub fn hush(&self) {
        for fd in [&self.near, &self.far] {
            // An error means that the connection is over.
            let _ = repair::hush(fd);
        }
    }
}
