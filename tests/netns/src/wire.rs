//! Devices of user space, whose packets have no Ethernet header. A thread of this process reads the
//! packets that a route leads to a device, and writes them back, or to another device.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Host;
use crate::delay::{open_device, open_offloading};

/// Milliseconds after which a thread checks whether it is to end.
const LOOK: u8 = 20;
/// Size of a buffer that is longer than any packet.
const LONGEST: usize = 70_000;

/// A thread that carries packets. Dropping it ends it.
pub struct Wire {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Runs `carry` on a host until the wire is dropped. `carry` returns soon after its flag is
    /// set.
    pub fn start(
        host: &Host,
        name: &str,
        carry: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<Wire> {
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let thread = host.thread(name, move || carry(&until))?;
        Ok(Wire {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates a device on a host.
pub fn device(host: &Host, name: &str) -> Result<File> {
    let named = name.to_owned();
    host.run(move || open_device(&named))
        .with_context(|| format!("failed to make the device {name}"))
}

/// Joins two hosts by a pair of devices without Ethernet headers. Segments of one packet stay
/// together.
pub fn join(one: (&Host, &str), other: (&Host, &str)) -> Result<Wire> {
    let open = |(host, name): (&Host, &str)| {
        let named = name.to_owned();
        host.run(move || open_offloading(&named))
            .with_context(|| format!("failed to make the device {name}"))
    };
    let ends = [open(one)?, open(other)?];
    for (host, name) in [one, other] {
        host.output("ip", &["link", "set", name, "up", "txqueuelen", "20000"])?;
    }
    Wire::start(one.0, "tun", move |ended| carry(ends, ended))
}

fn carry(mut ends: [File; 2], ended: &AtomicBool) {
    let mut packet = vec![0; LONGEST];
    while !ended.load(Ordering::Relaxed) {
        let mut wanted = [
            PollFd::new(ends[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(ends[1].as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut wanted, PollTimeout::from(LOOK));
        for from in 0..2 {
            while let Ok(n) = ends[from].read(&mut packet) {
                // A packet that the device does not take is lost.
                let _ = ends[1 - from].write(&packet[..n]);
            }
        }
    }
}
