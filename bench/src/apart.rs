//! Many sessions whose ends belong to two threads. Each thread has its own table of open files, so
//! that the limit of a process applies to each side separately.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use dysco_netns::Host;

use crate::pair::fix_buffers;

/// Endpoints between which sessions are opened.
#[derive(Clone, Copy)]
pub(crate) struct Between<'a> {
    /// Host that opens the sessions.
    pub client: &'a Host,
    /// Address to which the client connects.
    pub to: SocketAddr,
    /// Host that accepts the sessions.
    pub server: &'a Host,
    /// Address on which the server listens.
    pub at: SocketAddr,
}

/// Work of a side on its ends of all sessions.
pub(crate) type Work = Box<dyn FnOnce(Vec<TcpStream>) + Send>;

/// Opens `count` sessions, and lets each side work with its ends. Returns once all sessions are
/// open.
pub(crate) fn open(
    between: Between<'_>,
    count: usize,
    buffer: usize,
    [client, server]: [Work; 2],
) -> Result<[JoinHandle<()>; 2]> {
    let (heard, listening) = channel();
    let (reported, done) = channel::<Result<()>>();
    let (at, to, tell) = (between.at, between.to, reported.clone());
    let serving = side(between.server, "accept", reported, server, move || {
        let listener = listen(at)?;
        let _ = heard.send(());
        let accept = |_| listener.accept().map(|(stream, _)| stream);
        sized((0..count).map(accept), buffer)
    })?;
    let asking = side(between.client, "connect", tell, client, move || {
        listening.recv().map_err(std::io::Error::other)?;
        sized((0..count).map(|_| TcpStream::connect(to)), buffer)
    })?;
    for _ in 0..2 {
        done.recv().context("a side of many sessions died")??;
    }
    Ok([asking, serving])
}

fn side(
    host: &Host,
    name: &str,
    reported: Sender<Result<()>>,
    work: Work,
    open: impl FnOnce() -> std::io::Result<Vec<TcpStream>> + Send + 'static,
) -> Result<JoinHandle<()>> {
    host.thread(name, move || {
        let opened = own_files().and_then(|()| Ok(open()?));
        match opened.context("failed to open many sessions") {
            Ok(streams) => {
                let _ = reported.send(Ok(()));
                work(streams);
            }
            Err(error) => drop(reported.send(Err(error))),
        }
    })
}

fn sized(
    streams: impl Iterator<Item = std::io::Result<TcpStream>>,
    buffer: usize,
) -> std::io::Result<Vec<TcpStream>> {
    let ready = |stream: std::io::Result<TcpStream>| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        fix_buffers(&stream, buffer)?;
        Ok(stream)
    };
    streams.map(ready).collect()
}

/// Listens with a queue that takes all SYNs that may arrive at the same time.
fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    // SAFETY: listen only changes the backlog of a socket that this function owns.
    unsafe { libc::listen(listener.as_raw_fd(), 4096) };
    Ok(listener)
}

/// Gives the calling thread its own table of open files with only the first three. Files of other
/// threads would otherwise stay open in its copy.
pub(crate) fn own_files() -> Result<()> {
    // SAFETY: with this flag the files of no other thread are closed, and this thread has just
    // begun and owns none.
    let done = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
    ensure!(
        done == 0,
        "failed to leave the files of other threads: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Open sessions without traffic. Dropping them ends them.
pub(crate) struct Parked {
    hold: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// Number of sessions that fit into one table of open files.
const LOT: usize = 10_000;
const BUFFER: usize = 4 << 10;

impl Parked {
    /// Opens `count` sessions, to as many ports as are needed, beginning with the server's port.
    pub(crate) fn open(between: Between<'_>, count: usize) -> Result<Parked> {
        let mut parked = Parked {
            hold: Vec::new(),
            threads: Vec::new(),
        };
        for first in (0..count).step_by(LOT) {
            let lot = (first / LOT) as u16;
            let (mut to, mut at) = (between.to, between.at);
            to.set_port(to.port() + lot);
            at.set_port(at.port() + lot);
            let works = [parked.keep(), parked.keep()];
            let between = Between { to, at, ..between };
            let threads = open(between, LOT.min(count - first), BUFFER, works)?;
            parked.threads.extend(threads);
        }
        Ok(parked)
    }

    fn keep(&mut self) -> Work {
        let (hold, held): (Sender<()>, Receiver<()>) = channel();
        self.hold.push(hold);
        Box::new(move |streams| {
            let _ = held.recv();
            drop(streams);
        })
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.hold.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
