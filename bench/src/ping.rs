//! Requests and responses, in sequence.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::figure::median;
use crate::pair::{Pair, stay};

const REQUEST: usize = 128;
const RESPONSE: usize = 1024;

/// A session that sends requests on order.
pub(crate) struct Ping {
    client: TcpStream,
    /// Socket of the server, which is closed explicitly: a relay may not pass the client's close to
    /// it.
    server: TcpStream,
    answering: Option<JoinHandle<()>>,
    /// Bytes of a request.
    request: usize,
    /// Bytes of a response.
    response: usize,
}

/// Results of a series of requests.
pub(crate) struct Answers {
    /// Median time from a request to its response, in microseconds.
    pub p50_us: f64,
    /// Requests per second.
    pub rate: f64,
}

impl Ping {
    /// Takes over a session, without traffic at first.
    pub(crate) fn new(pair: Pair) -> Result<Ping> {
        Ping::of(pair, REQUEST, RESPONSE)
    }

    /// Takes over a session whose requests and responses have these numbers of bytes.
    pub(crate) fn of(pair: Pair, request: usize, response: usize) -> Result<Ping> {
        let Pair { client, server } = pair;
        let answers = server.try_clone().context("failed to share a socket")?;
        let answering = std::thread::Builder::new()
            .name("answer".into())
            .spawn(move || answer(answers, request, response))
            .context("failed to start a thread")?;
        Ok(Ping {
            client,
            server,
            answering: Some(answering),
            request,
            response,
        })
    }

    /// Sends requests for this time. An additional tenth before it is not counted.
    pub(crate) fn measure(&self, time: Duration) -> Result<Answers> {
        let client = self.client.try_clone().context("failed to ask")?;
        let sizes = [self.request, self.response];
        let asking = std::thread::Builder::new()
            .name("ask".into())
            .spawn(move || {
                stay(0);
                ask(&client, sizes, time / 10)?;
                ask(&client, sizes, time)
            });
        let asked = asking.context("failed to start a thread")?.join();
        let times = asked
            .map_err(|_| anyhow!("a thread that asks panicked"))?
            .context("a request failed")?;
        Ok(Answers {
            p50_us: median(&times),
            rate: times.len() as f64 / time.as_secs_f64(),
        })
    }
}

fn ask(
    mut to: &TcpStream,
    [request, response]: [usize; 2],
    time: Duration,
) -> std::io::Result<Vec<f64>> {
    let (request, mut response) = (vec![1; request], vec![0; response]);
    let mut times = Vec::with_capacity(1 << 16);
    let start = Instant::now();
    let mut then = start;
    while then < start + time {
        to.write_all(&request)?;
        to.read_exact(&mut response)?;
        let now = Instant::now();
        times.push((now - then).as_secs_f64() * 1e6);
        then = now;
    }
    Ok(times)
}

fn answer(mut from: TcpStream, request: usize, response: usize) {
    stay(1);
    let (mut request, response) = (vec![0; request], vec![2; response]);
    while from.read_exact(&mut request).is_ok() {
        if from.write_all(&response).is_err() {
            return;
        }
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}
