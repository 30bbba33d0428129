//! Many sessions with simultaneous requests. Each session has one outstanding request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::EpollFlags;

use crate::apart::{self, Between};
use crate::ends::{Ends, would_block};
use crate::figure::{rank, sorted};
use crate::machine;
use crate::pair::stay;

const REQUEST: usize = 128;
const RESPONSE: usize = 1024;
const BUFFER: usize = 16 << 10;

/// Sessions that send requests on order.
pub(crate) struct Asks {
    orders: Option<Sender<Duration>>,
    times: Receiver<Vec<f64>>,
    /// Set when the sessions end. A relay may not pass the end of the other side to the answering
    /// thread.
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Results of a series of requests.
pub(crate) struct Answers {
    /// Requests per second.
    pub rate: f64,
    /// Median time of a request, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the time of a request, in microseconds.
    pub p99_us: f64,
    /// Processor time of the machine, in microseconds.
    pub busy_us: f64,
    /// Number of requests.
    pub count: f64,
}

impl Asks {
    /// Opens `count` sessions, without traffic at first. Both ends of each session are in this
    /// process.
    pub(crate) fn open(between: Between<'_>, count: usize) -> Result<Asks> {
        let (orders, ordered) = channel();
        let (tell, times) = channel();
        let asking = move |streams| {
            if let Err(error) = ask(streams, &ordered, &tell) {
                eprintln!("requests broke off: {error:#}");
            }
        };
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let answering = move |streams| {
            if let Err(error) = answer(streams, &until) {
                eprintln!("answers broke off: {error:#}");
            }
        };
        let works: [apart::Work; 2] = [Box::new(asking), Box::new(answering)];
        let threads = apart::open(between, count, BUFFER, works)?;
        Ok(Asks {
            orders: Some(orders),
            times,
            ended,
            threads: threads.into(),
        })
    }

    /// Sends requests for this time.
    pub(crate) fn measure(&self, time: Duration) -> Result<Answers> {
        let (start, idle) = (Instant::now(), machine::idle()?);
        let orders = self.orders.as_ref().context("the sessions have ended")?;
        orders.send(time).context("the requester has ended")?;
        let times = sorted(&self.times.recv().context("the requester has ended")?);
        let (took, idle) = (start.elapsed(), machine::idle()? - idle);
        ensure!(!times.is_empty(), "no request was answered");
        let busy = (took * machine::processors() as u32).saturating_sub(idle);
        let count = times.len() as f64;
        Ok(Answers {
            rate: count / took.as_secs_f64(),
            p50_us: rank(&times, 50),
            p99_us: rank(&times, 99),
            busy_us: busy.as_secs_f64() * 1e6,
            count,
        })
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.orders = None;
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A session in the middle of a request.
struct Asked {
    at: Instant,
    missing: usize,
}

fn ask(
    streams: Vec<TcpStream>,
    orders: &Receiver<Duration>,
    tell: &Sender<Vec<f64>>,
) -> Result<()> {
    stay(0);
    let ends = Ends::new(streams, EpollFlags::EPOLLIN)?;
    let (mut buffer, mut ready) = ([0; RESPONSE], Vec::new());
    for time in orders {
        let until = Instant::now() + time;
        let mut times = Vec::with_capacity(1 << 16);
        let mut asked = Vec::with_capacity(ends.sockets.len());
        for socket in &ends.sockets {
            asked.push(begin(socket)?);
        }
        let mut open = asked.len();
        while open > 0 {
            ends.ready(&mut ready)?;
            for &at in &ready {
                let (mut socket, one) = (&ends.sockets[at], &mut asked[at]);
                let Some(n) = would_block(socket.read(&mut buffer[..one.missing]))? else {
                    continue;
                };
                ensure!(n > 0, "a session ended");
                one.missing -= n;
                if one.missing > 0 {
                    continue;
                }
                let now = Instant::now();
                times.push((now - one.at).as_secs_f64() * 1e6);
                if now < until {
                    *one = begin(socket)?;
                } else {
                    open -= 1;
                }
            }
        }
        tell.send(times).context("no thread receives the times")?;
    }
    Ok(())
}

fn begin(mut socket: &TcpStream) -> Result<Asked> {
    let at = Instant::now();
    socket.write_all(&[1; REQUEST])?;
    Ok(Asked {
        at,
        missing: RESPONSE,
    })
}

fn answer(streams: Vec<TcpStream>, ended: &AtomicBool) -> Result<()> {
    stay(1);
    let ends = Ends::new(streams, EpollFlags::EPOLLIN)?;
    let mut heard = vec![0; ends.sockets.len()];
    let (mut buffer, mut ready) = ([0; REQUEST], Vec::new());
    while !ended.load(Ordering::Relaxed) {
        ends.ready(&mut ready)?;
        for &at in &ready {
            let mut socket = &ends.sockets[at];
            match would_block(socket.read(&mut buffer[heard[at]..])) {
                // The session is ending.
                Ok(Some(0)) | Err(_) => return Ok(()),
                Ok(Some(n)) => heard[at] += n,
                Ok(None) => {}
            }
            if heard[at] == REQUEST {
                heard[at] = 0;
                socket.write_all(&[2; RESPONSE])?;
            }
        }
    }
    Ok(())
}
