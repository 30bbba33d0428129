//! HTTP traffic that checks every byte: endless downloads, uploads, and a stream of requests on one
//! connection. Each is one blocking thread on the client's host, which costs less than an event
//! loop.

mod blocks;
mod download;
mod requests;
mod upload;

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Host;

pub use blocks::blocks;
pub use download::download;
pub use requests::requests;
pub use upload::upload;

/// Controls and measurements of one stream of traffic.
#[derive(Default)]
pub struct Gauge {
    bytes: AtomicU64,
    stop: AtomicBool,
    paused: Mutex<bool>,
    resumed: Condvar,
    latencies: Mutex<Vec<u32>>,
    local: Mutex<Option<SocketAddr>>,
}

impl Gauge {
    /// Number of bytes of bodies so far, checked or sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Pauses the stream, or continues it.
    pub fn pause(&self, on: bool) {
        *lock(&self.paused) = on;
        self.resumed.notify_all();
    }

    /// Returns the nanoseconds of the requests since the previous call.
    pub fn take_latencies(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.latencies))
    }

    /// Address of the client's end of the connection, once it exists.
    pub fn local(&self) -> Option<SocketAddr> {
        *lock(&self.local)
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Waits while paused. Returns false when the stream is to end.
    fn goes_on(&self) -> bool {
        let stopped = || self.stop.load(Ordering::Relaxed);
        let held = |paused: &mut bool| *paused && !stopped();
        drop(self.resumed.wait_while(lock(&self.paused), held));
        !stopped()
    }

    fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let what = || format!("failed to connect to {to}");
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20)).with_context(what)?;
        stream.set_nodelay(true).with_context(what)?;
        // The limit bounds every stall: a test should fail instead of hanging.
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .with_context(what)?;
        stream
            .set_write_timeout(Some(Duration::from_secs(30)))
            .with_context(what)?;
        *lock(&self.local) = stream.local_addr().ok();
        Ok(stream)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A stream of traffic that runs on a host.
pub struct Traffic {
    /// Controls and measurements of the stream.
    pub gauge: Arc<Gauge>,
    name: String,
    thread: JoinHandle<Result<()>>,
}

impl Traffic {
    fn start(
        host: &Host,
        name: &str,
        work: impl FnOnce(&Gauge) -> Result<()> + Send + 'static,
    ) -> Result<Traffic> {
        let gauge = Arc::new(Gauge::default());
        let shared = gauge.clone();
        let thread = host.thread(name, move || work(&shared))?;
        Ok(Traffic {
            gauge,
            name: name.into(),
            thread,
        })
    }

    /// Name of the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the stream has ended by itself, which will be reported as an error.
    pub fn ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks the stream to end successfully.
    pub fn stop(&self) {
        self.gauge.stop.store(true, Ordering::Relaxed);
        self.gauge.pause(false);
    }

    /// Ends the stream. Returns its number of bytes, or its error.
    pub fn finish(self) -> Result<u64> {
        self.stop();
        let ended = self.thread.join();
        let ended = ended.unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")));
        ended.with_context(|| format!("{} failed", self.name))?;
        Ok(self.gauge.bytes())
    }
}

/// Returns the offset of the end of an HTTP head in `bytes`, including the blank line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map(|at| at + 4)
}
