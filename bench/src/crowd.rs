//! Tens of thousands of sessions, without traffic until they are ordered to send. Each session
//! receives the messages that it sent, and no two messages are equal.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::EpollFlags;

use crate::apart::{self, Between};
use crate::ends::{Ends, would_block};

/// Number of sessions that fit into one table of open files, with room for a proxy's own.
pub(crate) const LOT: usize = 9_000;
const BUFFER: usize = 16 << 10;
const MESSAGE: usize = 512;
const PATIENCE: Duration = Duration::from_secs(30);

/// Up to [`LOT`] sessions, or more if their proxy has room for them.
pub(crate) struct Crowd {
    count: usize,
    orders: Option<Sender<Order>>,
    took: Receiver<Result<Duration>>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Order to send messages.
#[derive(Clone)]
pub(crate) struct Order {
    /// Sessions that send.
    pub sessions: Range<usize>,
    /// Number of messages of each session.
    pub rounds: usize,
    /// Number of sessions that may wait for an answer at the same time.
    pub at_once: usize,
}

impl Crowd {
    /// Opens `count` sessions.
    pub(crate) fn open(between: Between<'_>, count: usize) -> Result<Crowd> {
        let (orders, ordered) = channel();
        let (tell, took) = channel();
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let own = between.to.port();
        let asking = move |streams| ask(streams, own, &ordered, &tell);
        let answering = move |streams| {
            if let Err(error) = answer(streams, &until) {
                eprintln!("answers broke off: {error:#}");
            }
        };
        let works: [apart::Work; 2] = [Box::new(asking), Box::new(answering)];
        let threads = apart::open(between, count, BUFFER, works)?;
        Ok(Crowd {
            count,
            orders: Some(orders),
            took,
            ended,
            threads: threads.into(),
        })
    }

    /// Number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Makes sessions send messages. Returns the time that they took.
    ///
    /// # Errors
    /// If a session does not receive the message that it sent.
    pub(crate) fn speak(&self, order: Order) -> Result<Duration> {
        let orders = self.orders.as_ref().context("the sessions have ended")?;
        orders.send(order).context("the sessions have ended")?;
        self.took.recv().context("the sessions have ended")?
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.orders = None;
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn ask(
    mut streams: Vec<TcpStream>,
    own: u16,
    orders: &Receiver<Order>,
    tell: &Sender<Result<Duration>>,
) {
    let mut said = 0;
    for order in orders {
        let done = speak(&mut streams, own, &order, &mut said);
        if tell.send(done).is_err() {
            return;
        }
    }
}

fn speak(streams: &mut [TcpStream], own: u16, order: &Order, said: &mut u32) -> Result<Duration> {
    let streams = streams
        .get_mut(order.sessions.clone())
        .context("there are fewer sessions")?;
    let begun = Instant::now();
    for _ in 0..order.rounds {
        *said += 1;
        let mut first = order.sessions.start;
        for some in streams.chunks_mut(order.at_once) {
            for (at, stream) in some.iter_mut().enumerate() {
                stream
                    .write_all(&message(own, first + at, *said))
                    .context("a session ended")?;
            }
            for (at, stream) in some.iter_mut().enumerate() {
                let mut heard = [0; MESSAGE];
                stream
                    .set_read_timeout(Some(PATIENCE))
                    .context("failed to set up a session")?;
                stream
                    .read_exact(&mut heard)
                    .with_context(|| format!("session {} received nothing", first + at))?;
                ensure!(
                    heard == message(own, first + at, *said),
                    "session {} received other bytes",
                    first + at
                );
            }
            first += some.len();
        }
    }
    Ok(begun.elapsed())
}

/// Returns a message that no session has sent before.
fn message(own: u16, session: usize, said: u32) -> [u8; MESSAGE] {
    let mut bytes = [own as u8; MESSAGE];
    bytes[..2].copy_from_slice(&own.to_le_bytes());
    bytes[2..6].copy_from_slice(&(session as u32).to_le_bytes());
    bytes[MESSAGE - 4..].copy_from_slice(&said.to_le_bytes());
    bytes
}

/// Returns received messages to their sender.
pub(crate) fn answer(streams: Vec<TcpStream>, ended: &AtomicBool) -> Result<()> {
    let ends = Ends::new(streams, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)?;
    let mut ready = Vec::new();
    let mut bytes = [0; 16 * MESSAGE];
    while !ended.load(Ordering::Relaxed) {
        ends.ready(&mut ready)?;
        for at in &ready {
            let mut end = &ends.sockets[*at];
            loop {
                match would_block(end.read(&mut bytes)) {
                    Ok(Some(n @ 1..)) => end
                        .write_all(&bytes[..n])
                        .context("failed to send an answer")?,
                    Ok(_) => break,
                    // Other sessions continue.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}
