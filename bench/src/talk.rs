//! Sessions that send requests as fast as they can, each with one outstanding request, and the
//! longest time between two answers of each. Every answer is checked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::EpollFlags;

use crate::apart::{self, Between};
use crate::crowd::answer;
use crate::ends::{Ends, would_block};

const MESSAGE: usize = 64;
const BUFFER: usize = 16 << 10;

/// Order to the requesting thread.
enum Order {
    /// Starts requests on these sessions, in addition to the active sessions.
    Run(Range<usize>),
    /// Begins to measure the longest gaps.
    Mark,
    /// Returns the longest gap of each active session since the last mark.
    Take(Sender<Vec<Duration>>),
    /// Stops all sessions after their outstanding answers.
    Rest(Sender<()>),
}

/// Open sessions. Dropping them ends them.
pub(crate) struct Talk {
    /// The clients' addresses.
    pub locals: Vec<SocketAddr>,
    orders: Option<Sender<Order>>,
    failed: Receiver<anyhow::Error>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Talk {
    /// Opens `count` sessions, at least two, without traffic at first.
    pub(crate) fn open(between: Between<'_>, count: usize) -> Result<Talk> {
        let (orders, ordered) = channel();
        let (opened, locals) = channel();
        let (fail, failed) = channel();
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let asking = move |streams: Vec<TcpStream>| {
            let all = streams.iter().map(TcpStream::local_addr);
            let _ = opened.send(all.collect::<std::io::Result<Vec<_>>>());
            if let Err(error) = Asking::new(streams).and_then(|mut a| a.obey(&ordered)) {
                let _ = fail.send(error);
            }
        };
        let answering = move |streams| {
            if let Err(error) = answer(streams, &until) {
                eprintln!("answers broke off: {error:#}");
            }
        };
        let works: [apart::Work; 2] = [Box::new(asking), Box::new(answering)];
        let threads = apart::open(between, count, BUFFER, works)?;
        Ok(Talk {
            locals: locals.recv().context("no sessions")??,
            orders: Some(orders),
            failed,
            ended,
            threads: threads.into(),
        })
    }

    /// Starts requests on these sessions, in addition to the active sessions.
    pub(crate) fn run(&self, sessions: Range<usize>) -> Result<()> {
        self.order(Order::Run(sessions))
    }

    /// Begins to measure.
    pub(crate) fn mark(&self) -> Result<()> {
        self.order(Order::Mark)
    }

    /// Returns the longest gap of each active session since the last mark, in microseconds.
    pub(crate) fn longest(&self) -> Result<Vec<f64>> {
        let (tell, told) = channel();
        self.order(Order::Take(tell))?;
        let gaps = told.recv().map_err(|_| self.why())?;
        Ok(gaps.iter().map(|gap| gap.as_secs_f64() * 1e6).collect())
    }

    /// Stops all sessions, and waits until each has its answer.
    pub(crate) fn rest(&self) -> Result<()> {
        let (tell, told) = channel();
        self.order(Order::Rest(tell))?;
        told.recv().map_err(|_| self.why())
    }

    fn order(&self, order: Order) -> Result<()> {
        let orders = self.orders.as_ref().context("the sessions have ended")?;
        orders.send(order).map_err(|_| self.why())
    }

    fn why(&self) -> anyhow::Error {
        let why = self.failed.try_recv();
        why.unwrap_or_else(|_| anyhow::anyhow!("the sessions have ended"))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.orders = None;
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Client's end of a session.
struct End {
    asks: bool,
    /// Bytes of the awaited answer that have arrived; `None` if no answer is awaited.
    heard: Option<usize>,
    said: u32,
    answer: [u8; MESSAGE],
    last: Instant,
    longest: Duration,
}

struct Asking {
    ends: Ends,
    states: Vec<End>,
    resting: Option<Sender<()>>,
}

impl Asking {
    fn new(streams: Vec<TcpStream>) -> Result<Asking> {
        let state = || End {
            asks: false,
            heard: None,
            said: 0,
            answer: [0; MESSAGE],
            last: Instant::now(),
            longest: Duration::ZERO,
        };
        Ok(Asking {
            states: streams.iter().map(|_| state()).collect(),
            ends: Ends::new(streams, EpollFlags::EPOLLIN)?,
            resting: None,
        })
    }

    fn obey(&mut self, orders: &Receiver<Order>) -> Result<()> {
        let mut ready = Vec::new();
        loop {
            match orders.try_recv() {
                Ok(order) => self.take(order)?,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            if self.states.iter().all(|s| s.heard.is_none())
                && let Some(resting) = self.resting.take()
            {
                let _ = resting.send(());
            }
            self.ends.ready(&mut ready)?;
            for at in &ready {
                self.hear(*at).with_context(|| format!("session {at}"))?;
            }
        }
    }

    fn take(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Run(sessions) => {
                for at in sessions {
                    self.states[at].asks = true;
                    self.states[at].last = Instant::now();
                    self.ask(at)?;
                }
            }
            Order::Mark => {
                let all = self.states.iter_mut();
                all.for_each(|state| state.longest = Duration::ZERO);
            }
            Order::Take(tell) => {
                let asking = self.states.iter().filter(|state| state.asks);
                let longest = asking.map(|state| state.longest.max(state.last.elapsed()));
                let _ = tell.send(longest.collect());
            }
            Order::Rest(tell) => {
                self.states.iter_mut().for_each(|state| state.asks = false);
                self.resting = Some(tell);
            }
        }
        Ok(())
    }

    fn ask(&mut self, at: usize) -> Result<()> {
        let state = &mut self.states[at];
        state.said += 1;
        state.heard = Some(0);
        let mut socket = &self.ends.sockets[at];
        (socket.write_all(&message(at, state.said))).context("failed to ask")
    }

    fn hear(&mut self, at: usize) -> Result<()> {
        let state = &mut self.states[at];
        let heard = state.heard.unwrap_or(0);
        let mut socket = &self.ends.sockets[at];
        let Some(read) = would_block(socket.read(&mut state.answer[heard..]))? else {
            return Ok(());
        };
        ensure!(read > 0, "the session has ended");
        state.heard = Some(heard + read);
        if heard + read < MESSAGE {
            return Ok(());
        }
        ensure!(
            state.answer == message(at, state.said),
            "the answer has other bytes"
        );
        let now = Instant::now();
        state.longest = state.longest.max(now - state.last);
        state.last = now;
        state.heard = None;
        match state.asks {
            true => self.ask(at),
            false => Ok(()),
        }
    }
}

/// Returns a message that no session has sent before.
fn message(session: usize, said: u32) -> [u8; MESSAGE] {
    let mut bytes = [session as u8; MESSAGE];
    bytes[..4].copy_from_slice(&(session as u32).to_le_bytes());
    bytes[MESSAGE - 4..].copy_from_slice(&said.to_le_bytes());
    bytes
}
