//! Both ends of one TCP session, opened from this process.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::{Lab, wait};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce};
use nix::unistd::Pid;

/// The two ends of a session, direct or relayed.
pub(crate) struct Pair {
    /// The end that opened it.
    pub client: TcpStream,
    /// The end that accepted it.
    pub server: TcpStream,
}

/// Listener that accepts sessions.
pub(crate) struct Listener(TcpListener);

impl Listener {
    /// Listens on the lab's server.
    pub(crate) fn start(lab: &Lab, at: SocketAddr) -> Result<Listener> {
        let listener = lab.server.run(move || TcpListener::bind(at));
        let socket = listener.with_context(|| format!("failed to listen on {at}"))?;
        socket
            .set_nonblocking(true)
            .context("failed to set up a listener")?;
        Ok(Listener(socket))
    }

    /// Opens a session from the lab's client to an address that leads to this listener.
    pub(crate) fn open(&self, lab: &Lab, to: SocketAddr) -> Result<Pair> {
        let client = lab.client.run(move || TcpStream::connect(to));
        let client = client.with_context(|| format!("failed to connect to {to}"))?;
        let accept = || self.0.accept().ok();
        let (server, _) = wait::until("the session at the server", PATIENCE, accept)?;
        for stream in [&client, &server] {
            let set = stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| fix_buffers(stream, BUFFER));
            set.context("failed to set up a session")?;
        }
        Ok(Pair { client, server })
    }
}

/// Bytes of a socket's buffer in each direction. The kernel doubles them.
const BUFFER: usize = 1 << 20;
/// Bytes of the buffers of all sessions that are open together.
const ALL_BUFFERS: usize = 256 << 20;

/// Returns the buffer size for each of this number of sessions.
pub(crate) fn buffer_of(sessions: usize) -> usize {
    (ALL_BUFFERS / sessions.max(1)).min(BUFFER)
}

/// Fixes the buffers of a session. Without this each buffer grows by chance to another size and
/// keeps it, which would make more of a difference than the measured effect.
pub(crate) fn fix_buffers(stream: &TcpStream, bytes: usize) -> std::io::Result<()> {
    setsockopt(stream, SndBufForce, &bytes)?;
    setsockopt(stream, RcvBufForce, &bytes)?;
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(10);

/// Pins the calling thread to one processor: a scheduler that moves the ends would make more of a
/// difference than the measured effect. `end` is 0 or 1. On a machine with one processor, both ends
/// use that processor.
pub(crate) fn stay(end: usize) {
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    let own = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(own) else {
        return;
    };
    let mut usable = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let first = usable.next().unwrap_or(0);
    let cpu = if end == 0 {
        first
    } else {
        usable.next().unwrap_or(first)
    };
    let mut set = CpuSet::new();
    let done = set.set(cpu).and_then(|()| sched_setaffinity(own, &set));
    if done.is_err() && FAILED.fetch_add(1, Ordering::Relaxed) == 0 {
        eprintln!("failed to pin the ends of sessions to processors: results will vary more");
    }
}
