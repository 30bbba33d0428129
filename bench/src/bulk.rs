//! One stream of bytes, as fast as it goes. The bytes are not checked: tests do
//! that, and here it would be most of the work.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::wait;

use crate::pair::{Pair, stay};
use crate::turns::{Stretch, stretch};

/// Which end sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The client.
    Up,
    /// The server.
    Down,
}

const BUFFER: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// A session that carries a stream when told to.
pub struct Bulk {
    shared: Arc<Shared>,
    /// A relay may tell it nothing of the sender's end.
    receiver: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    on: AtomicBool,
    gate: Mutex<Gate>,
    turned: Condvar,
    sent: AtomicU64,
    received: AtomicU64,
    /// The sender is at the gate.
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

    /// Waits until there is something to send; false when it is all over.
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
    /// Takes a session over; it is silent at first.
    pub fn new(pair: Pair, way: Way) -> Result<Bulk> {
        let shared = Arc::<Shared>::default();
        let (from, to) = match way {
            Way::Up => (pair.client, pair.server),
            Way::Down => (pair.server, pair.client),
        };
        let receiving = to.try_clone().context("failed to share a socket")?;
        let (for_sender, for_receiver) = (shared.clone(), shared.clone());
        let start = |name: &str, f: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(f);
            thread.context("failed to start a thread")
        };
        let sender = start("sender", Box::new(move || send(from, &for_sender)))?;
        let receiver = start("receiver", Box::new(move || receive(to, &for_receiver)))?;
        Ok(Bulk {
            shared,
            receiver: receiving,
            threads: vec![sender, receiver],
        })
    }

    /// What arrives in `time`, once the stream has run in.
    pub fn measure(&self, run_in: Duration, time: Duration) -> Result<Stretch> {
        self.shared.turn(Gate::Open);
        std::thread::sleep(run_in);
        let seen = stretch(time, || self.received())?;
        self.rest()?;
        Ok(seen)
    }

    /// Falls silent: nothing is on its way any more.
    fn rest(&self) -> Result<()> {
        self.shared.turn(Gate::Shut);
        let empty = || {
            let rests = self.shared.rests.load(Ordering::SeqCst);
            let sent = self.shared.sent.load(Ordering::SeqCst);
            (rests && sent == self.received()).then_some(())
        };
        wait::until("the end of a stream", PATIENCE, empty)
    }

    fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }
}

fn send(mut to: TcpStream, shared: &Shared) {
    stay(0);
    let buffer = vec![0x5A; BUFFER];
    while shared.pass() {
        while shared.on.load(Ordering::Relaxed) {
            match to.write(&buffer) {
                Ok(n) => shared.sent.fetch_add(n as u64, Ordering::SeqCst),
                Err(error) => return eprintln!("a stream broke off: {error}"),
            };
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn receive(mut from: TcpStream, shared: &Shared) {
    stay(1);
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => shared.received.fetch_add(n as u64, Ordering::SeqCst),
            Err(error) => return eprintln!("a stream broke off: {error}"),
        };
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.shared.turn(Gate::Ended);
        let _ = self.receiver.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
