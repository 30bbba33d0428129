//! The sessions: a download of text, and sessions that ask and answer line by line. Every byte is
//! checked where it arrives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::{Lab, wait};

use super::{PATIENCE, server};

/// Words of the download, and of the other sessions.
pub(super) const MARK: &str = "this line is part of a download";
pub(super) const WORD: &str = "how many rows has the table";

/// Lines that the server's side writes at a time.
const LINES: u64 = 500;

/// Returns a line that is short enough for the captured part of each packet to have a whole [`MARK`].
fn line(number: u64) -> String {
    format!("{number:012} {MARK}\n")
}

/// Opens a session. Returns its two sockets.
fn open(lab: &Lab, listener: &TcpListener) -> Result<[TcpStream; 2]> {
    let client = lab.client.run(move || TcpStream::connect(server()))?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok([client, server])
}

fn listen(lab: &Lab) -> Result<TcpListener> {
    Ok(lab.server.run(move || TcpListener::bind(server()))?)
}

/// A download that goes on until it is stopped.
pub(super) struct Download {
    received: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    sends: JoinHandle<Result<u64>>,
    receives: JoinHandle<Result<u64>>,
}

impl Download {
    pub(super) fn start(lab: &Lab) -> Result<Download> {
        let [client, server] = open(lab, &listen(lab)?)?;
        let (received, ends) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (stop, count) = (ends.clone(), received.clone());
        Ok(Download {
            received,
            ends,
            sends: thread::spawn(move || send(server, &stop)),
            receives: thread::spawn(move || receive(client, &count)),
        })
    }

    /// Bytes that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until this many more bytes have arrived.
    pub(super) fn wait(&self, bytes: u64) -> Result<()> {
        let until = self.received() + bytes;
        let there = || (self.received() >= until).then_some(());
        wait::until("the download to go on", PATIENCE, there)
    }

    /// Ends the download. Returns an error unless every line that was sent has arrived.
    pub(super) fn finish(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        let [sent, received] = [self.sends, self.receives].map(|thread| {
            let done = thread
                .join()
                .map_err(|_| anyhow!("a thread has panicked"))?;
            done.context("the download")
        });
        let (sent, received) = (sent?, received?);
        ensure!(
            sent == received,
            "{received} of {sent} lines of the download have arrived"
        );
        Ok(())
    }
}

fn send(mut to: TcpStream, stop: &AtomicBool) -> Result<u64> {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let lines: String = (number..number + LINES).map(line).collect();
        to.write_all(lines.as_bytes())?;
        number += LINES;
    }
    to.shutdown(Shutdown::Write)?;
    // The other side closes once it has everything.
    to.read_to_end(&mut Vec::new())?;
    Ok(number)
}

fn receive(from: TcpStream, count: &AtomicU64) -> Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, from);
    let (mut number, mut got) = (0, String::new());
    while reader.read_line(&mut got)? > 0 {
        ensure!(got == line(number), "line {number} is wrong: {got:?}");
        count.fetch_add(got.len() as u64, Ordering::Relaxed);
        number += 1;
        got.clear();
    }
    Ok(number)
}

/// Sessions that ask and answer until they are stopped.
pub(super) struct Talks {
    /// Time of the last answer of each session, and its longest silence, in microseconds since the
    /// beginning.
    clocks: Vec<Arc<Clock>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// Times of a session.
struct Clock {
    start: Instant,
    last: AtomicU64,
    longest: AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn answered(&self) {
        let now = self.now();
        let last = self.last.swap(now, Ordering::Relaxed);
        self.longest.fetch_max(now - last, Ordering::Relaxed);
    }
}

impl Talks {
    pub(super) fn start(lab: &Lab, count: usize) -> Result<Talks> {
        let listener = listen(lab)?;
        let ends = Arc::new(AtomicBool::new(false));
        let (mut clocks, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let [client, server] = open(lab, &listener)?;
            let clock = Arc::new(Clock {
                start: Instant::now(),
                last: AtomicU64::new(0),
                longest: AtomicU64::new(0),
            });
            let (own, stop) = (clock.clone(), ends.clone());
            threads.push(thread::spawn(move || ask(client, &own, &stop)));
            threads.push(thread::spawn(move || answer(server)));
            clocks.push(clock);
        }
        Ok(Talks {
            clocks,
            ends,
            threads,
        })
    }

    /// Returns each session's longest time without an answer during the work, in milliseconds.
    pub(super) fn silences(&self, work: impl FnOnce() -> Result<()>) -> Result<Vec<f64>> {
        for clock in &self.clocks {
            clock.longest.store(0, Ordering::Relaxed);
        }
        work()?;
        let after: Vec<u64> = self.clocks.iter().map(|clock| clock.now()).collect();
        // A silence at the end of the work counts in full: it lasts until the next answer.
        let went_on = || {
            let mut all = self.clocks.iter().zip(&after);
            all.all(|(clock, at)| clock.last.load(Ordering::Relaxed) > *at)
                .then_some(())
        };
        wait::until("an answer in every session", PATIENCE, went_on)?;
        let longest = self
            .clocks
            .iter()
            .map(|clock| clock.longest.load(Ordering::Relaxed));
        Ok(longest.map(|us| us as f64 / 1000.0).collect())
    }

    /// Ends the sessions. Returns an error unless every answer was right.
    pub(super) fn finish(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let done = thread
                .join()
                .map_err(|_| anyhow!("a thread has panicked"))?;
            done.context("a session that asks and answers")?;
        }
        Ok(())
    }
}

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(1);

fn ask(client: TcpStream, clock: &Clock, stop: &AtomicBool) -> Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut writer, mut got, mut number) = (&client, String::new(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        writer.write_all(format!("{number} {WORD}\n").as_bytes())?;
        got.clear();
        reader.read_line(&mut got)?;
        ensure!(
            got == format!("{number} rows\n"),
            "answer {number} is wrong: {got:?}"
        );
        clock.answered();
        number += 1;
        thread::sleep(PAUSE);
    }
    Ok(client.shutdown(Shutdown::Write)?)
}

fn answer(server: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(server.try_clone()?);
    let (mut writer, mut got) = (&server, String::new());
    while reader.read_line(&mut got)? > 0 {
        let (number, rest) = got.split_once(' ').context("no question")?;
        ensure!(rest.trim_end() == WORD, "a question is wrong: {got:?}");
        writer.write_all(format!("{number} rows\n").as_bytes())?;
        got.clear();
    }
    Ok(())
}
