//! A session with continuous requests, and its longest time without an answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use dysco_netns::wait;

use crate::pair::Pair;

/// Pause after each answer. Without one the session would take a whole processor from the change.
const PAUSE: Duration = Duration::from_micros(200);
const PATIENCE: Duration = Duration::from_secs(20);

/// A session with continuous requests.
pub(crate) struct Talk {
    clock: Arc<Clock>,
    threads: [JoinHandle<std::io::Result<()>>; 2],
}

/// Times in microseconds since the beginning.
struct Clock {
    start: Instant,
    last: AtomicU64,
    longest: AtomicU64,
    ended: AtomicBool,
}

impl Clock {
    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

impl Talk {
    /// Takes over a session, and begins to send requests.
    pub(crate) fn start(pair: Pair) -> Result<Talk> {
        let clock = Arc::new(Clock {
            start: Instant::now(),
            last: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let (own, Pair { client, server }) = (clock.clone(), pair);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let asks = thread("ask").spawn(move || ask(&client, &own));
        let answers = thread("answer").spawn(move || answer(&server));
        Ok(Talk {
            clock,
            threads: [
                asks.context("failed to start a thread")?,
                answers.context("failed to start a thread")?,
            ],
        })
    }

    /// Returns the longest time without an answer during `work`, in milliseconds.
    pub(crate) fn longest(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.clock.longest.store(0, Ordering::SeqCst);
        work()?;
        // A silence that lasts beyond the work counts to its end.
        let after = self.clock.now();
        let answered = || (self.clock.last.load(Ordering::SeqCst) > after).then_some(());
        wait::until("an answer", PATIENCE, answered)?;
        Ok(self.clock.longest.load(Ordering::SeqCst) as f64 / 1e3)
    }

    /// Ends the session.
    pub(crate) fn finish(self) -> Result<()> {
        self.clock.ended.store(true, Ordering::SeqCst);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
            ended.context("a session with continuous requests broke off")?;
        }
        Ok(())
    }
}

fn ask(mut to: &TcpStream, clock: &Clock) -> std::io::Result<()> {
    let mut byte = [0];
    while !clock.ended.load(Ordering::SeqCst) {
        let asked = byte[0];
        to.write_all(&byte)?;
        to.read_exact(&mut byte)?;
        if byte[0] != asked {
            return Err(ErrorKind::InvalidData.into());
        }
        byte[0] = asked.wrapping_add(1);
        let now = clock.now();
        let last = clock.last.swap(now, Ordering::SeqCst);
        clock.longest.fetch_max(now - last, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
    to.shutdown(Shutdown::Write)
}

fn answer(mut from: &TcpStream) -> std::io::Result<()> {
    let mut byte = [0];
    loop {
        match from.read(&mut byte)? {
            0 => return Ok(()),
            _ => from.write_all(&byte)?,
        }
    }
}
