//! Streams of bytes at full speed. The bytes are not checked: tests do that, and here it would be
//! most of the work.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::wait;
use nix::sys::epoll::EpollFlags;

use crate::apart::{self, Between, Work};
use crate::ends::{Ends, would_block};
use crate::pair::{Pair, stay};
use crate::stretch::{Stretch, stretch};

/// Direction of a stream, by the end that sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The client sends.
    Up,
    /// The server sends.
    Down,
}

const BUFFER: usize = 256 << 10;
/// Number of bytes that one of many sessions sends before the next one has its turn.
const PIECE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// Sessions that carry streams on order.
pub(crate) struct Bulk {
    shared: Arc<Shared>,
    /// Both ends of a single session. A device between them may not notify either end of the other
    /// end's close.
    ends: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    on: AtomicBool,
    ended: AtomicBool,
    gate: Mutex<Gate>,
    turned: Condvar,
    sent: AtomicU64,
    received: AtomicU64,
    /// True if the sender waits at the gate.
    rests: AtomicBool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Gate {
    #[default]
    Shut,
    Open,
    Ended,
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, gate: Gate) {
        *self.gate() = gate;
        self.on.store(gate == Gate::Open, Ordering::SeqCst);
        self.turned.notify_all();
    }

    /// Waits until there is something to send. Returns false when the stream is over.
    fn pass(&self) -> bool {
        let mut gate = self.gate();
        while *gate == Gate::Shut {
            self.rests.store(true, Ordering::SeqCst);
            gate = self
                .turned
                .wait(gate)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.rests.store(false, Ordering::SeqCst);
        *gate == Gate::Open
    }
}

impl Bulk {
    /// Takes over a session, without traffic at first.
    pub(crate) fn new(pair: Pair, way: Way) -> Result<Bulk> {
        Bulk::writing(pair, way, BUFFER)
    }

    /// Takes over a session as [`Bulk::new`] does, with a sender that writes this number of bytes
    /// at a time.
    pub(crate) fn writing(pair: Pair, way: Way, write: usize) -> Result<Bulk> {
        let shared = Arc::<Shared>::default();
        let (from, to) = match way {
            Way::Up => (pair.client, pair.server),
            Way::Down => (pair.server, pair.client),
        };
        let share = |end: &TcpStream| end.try_clone().context("failed to share a socket");
        let ends = vec![share(&from)?, share(&to)?];
        let start = |name: &str, work: Work, end: TcpStream| {
            let thread = std::thread::Builder::new().name(name.into());
            let started = thread.spawn(move || work(vec![end]));
            started.context("failed to start a thread")
        };
        let threads = vec![
            start("sender", sender(&shared, None, write), from)?,
            start("receiver", receiver_of(&shared), to)?,
        ];
        Ok(Bulk {
            shared,
            ends,
            threads,
        })
    }

    /// Opens `count` sessions, without traffic at first. The server sends.
    pub(crate) fn open(between: Between<'_>, count: usize, buffer: usize) -> Result<Bulk> {
        Bulk::open_paced(between, count, buffer, None)
    }

    /// Opens sessions that send at most `pace` bytes per second.
    pub(crate) fn open_paced(
        between: Between<'_>,
        count: usize,
        buffer: usize,
        pace: Option<u64>,
    ) -> Result<Bulk> {
        let shared = Arc::<Shared>::default();
        let write = if count == 1 { BUFFER } else { PIECE };
        let works = [receiver_of(&shared), sender(&shared, pace, write)];
        let threads = apart::open(between, count, buffer, works)?;
        Ok(Bulk {
            shared,
            ends: Vec::new(),
            threads: threads.into(),
        })
    }

    /// Starts the streams.
    pub(crate) fn start(&self) {
        self.shared.turn(Gate::Open);
    }

    /// Number of bytes that have arrived so far.
    pub(crate) fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Measures the data that arrives in `time`, after a run-in.
    pub(crate) fn measure(&self, run_in: Duration, time: Duration) -> Result<Stretch> {
        self.shared.turn(Gate::Open);
        std::thread::sleep(run_in);
        let seen = stretch(time, || self.received())?;
        self.rest()?;
        Ok(seen)
    }

    /// Stops the streams. When this function returns, no data is in flight.
    pub(crate) fn rest(&self) -> Result<()> {
        self.shared.turn(Gate::Shut);
        let empty = || {
            let rests = self.shared.rests.load(Ordering::SeqCst);
            let sent = self.shared.sent.load(Ordering::SeqCst);
            (rests && sent == self.received()).then_some(())
        };
        wait::until("the end of a stream", PATIENCE, empty)
    }
}

fn sender(shared: &Arc<Shared>, pace: Option<u64>, write: usize) -> Work {
    let shared = shared.clone();
    Box::new(move |streams| {
        let paced = pace.map_or(Ok(()), |rate| {
            streams.iter().try_for_each(|s| slow(s, rate))
        });
        tell(&shared, paced.and_then(|()| send(streams, &shared, write)));
    })
}

/// Makes the kernel pace a session to this number of bytes per second.
fn slow(socket: &TcpStream, rate: u64) -> Result<()> {
    let (at, len) = (
        (&raw const rate).cast(),
        size_of_val(&rate) as libc::socklen_t,
    );
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    // SAFETY: the kernel reads `len` bytes of a number that outlives the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, len) };
    let error = std::io::Error::last_os_error();
    ensure!(done == 0, "failed to pace a session: {error}");
    Ok(())
}

fn receiver_of(shared: &Arc<Shared>) -> Work {
    let shared = shared.clone();
    Box::new(move |streams| tell(&shared, receive(streams, &shared)))
}

fn tell(shared: &Shared, ended: Result<()>) {
    // At the end, an end that is gone may leave data unread.
    let meant = *shared.gate() == Gate::Ended;
    if let (false, Err(error)) = (meant, ended) {
        eprintln!("a stream broke off: {error:#}");
    }
}

fn send(streams: Vec<TcpStream>, shared: &Shared, write: usize) -> Result<()> {
    stay(0);
    let to = Ends::new(streams, EpollFlags::EPOLLOUT)?;
    let buffer = vec![0x5A; write];
    let mut ready = Vec::new();
    while shared.pass() {
        while shared.on.load(Ordering::Relaxed) {
            to.ready(&mut ready)?;
            for at in &ready {
                let sent = would_block((&to.sockets[*at]).write(&buffer))?;
                let sent = sent.unwrap_or(0) as u64;
                shared.sent.fetch_add(sent, Ordering::SeqCst);
            }
        }
    }
    for socket in &to.sockets {
        let _ = socket.shutdown(Shutdown::Both);
    }
    Ok(())
}

fn receive(streams: Vec<TcpStream>, shared: &Shared) -> Result<()> {
    stay(1);
    let from = Ends::new(streams, EpollFlags::EPOLLIN)?;
    let mut buffer = vec![0; BUFFER];
    let mut ready = Vec::new();
    while !shared.ended.load(Ordering::Relaxed) {
        from.ready(&mut ready)?;
        for at in &ready {
            match would_block((&from.sockets[*at]).read(&mut buffer))? {
                Some(0) => return Ok(()),
                Some(n) => drop(shared.received.fetch_add(n as u64, Ordering::SeqCst)),
                None => {}
            }
        }
    }
    Ok(())
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.shared.turn(Gate::Ended);
        self.shared.ended.store(true, Ordering::Relaxed);
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
