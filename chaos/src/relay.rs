//! A relay of this program, run as a process on a proxy's host. It either copies through a buffer,
//! or splices first and then rewrites without changing the length.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

/// Bits that are inverted in a rewritten byte.
pub(crate) const TURNED: u8 = 0x5a;

/// Arguments of a relay.
#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Address on which the relay listens
    listen: SocketAddr,
    /// Address to which the relay connects
    to: SocketAddr,
    /// Size in bytes of the buffer, which is filled before it is written
    #[arg(long, default_value_t = 65_536)]
    buffer: usize,
    /// Splice up to this byte of each direction, and rewrite from there on
    #[arg(long)]
    rewrite: Option<u64>,
}

impl Relay {
    /// Serves until it is killed.
    pub(crate) fn run(self) -> Result<()> {
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("failed to listen on {}", self.listen))?;
        let (to, buffer, rewrite) = (self.to, self.buffer, self.rewrite);
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(server) = TcpStream::connect(to) else {
                    return;
                };
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                // Each connection has only one descriptor: a duplicate would be private to
                // the proxy.
                let ends = Arc::new((client, server));
                let both = ends.clone();
                let up = std::thread::spawn(move || relay_bytes(&both.0, &both.1, buffer, rewrite));
                relay_bytes(&ends.1, &ends.0, buffer, rewrite);
                let _ = up.join();
            });
        }
        Ok(())
    }
}

/// Relays one direction until its end.
fn relay_bytes(from: &TcpStream, to: &TcpStream, buffer: usize, rewrite: Option<u64>) {
    let done = match rewrite {
        Some(first) => spliced(from, to, first).and_then(|()| copy(from, to, buffer, TURNED)),
        None => copy(from, to, buffer, 0),
    };
    match done {
        Ok(()) => drop(to.shutdown(Shutdown::Write)),
        // This resets both connections, as the end of a process does.
        Err(_) => {
            for stream in [from, to] {
                let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

fn copy(
    mut from: &TcpStream,
    mut to: &TcpStream,
    buffer: usize,
    turned: u8,
) -> std::io::Result<()> {
    let mut bytes = vec![0; buffer.max(1)];
    loop {
        let n = from.read(&mut bytes)?;
        if n == 0 {
            return Ok(());
        }
        bytes[..n].iter_mut().for_each(|b| *b ^= turned);
        to.write_all(&bytes[..n])?;
    }
}

/// Splices this number of bytes. Each call asks for as many bytes as HAProxy does, but never for
/// more than are left.
fn spliced(from: &TcpStream, to: &TcpStream, bytes: u64) -> std::io::Result<()> {
    let (out, into) = pipe2(OFlag::O_CLOEXEC)?;
    let mut left = bytes;
    while left > 0 {
        let n = splice(from.as_fd(), into.as_fd(), left.min(1 << 30) as usize)?;
        if n == 0 {
            return Ok(());
        }
        let mut held = n;
        while held > 0 {
            held -= splice(out.as_fd(), to.as_fd(), held)?;
        }
        left -= n as u64;
    }
    Ok(())
}

/// Calls the function of the C library, which a shim intercepts.
fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, most: usize) -> std::io::Result<usize> {
    let (none, flags) = (std::ptr::null_mut(), libc::SPLICE_F_MOVE);
    // SAFETY: both descriptors are open, and no offset is given.
    let n = unsafe { libc::splice(from.as_raw_fd(), none, to.as_raw_fd(), none, most, flags) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error())
}
