//! Devices of user space, whose packets have no Ethernet header. A thread of this process reads the
//! packets that a route leads to a device, and writes them back, or to another device.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;

use crate::Host;

/// Milliseconds after which a thread checks whether it is to end.
const LOOK: u8 = 20;
/// Size of a buffer that is longer than any packet.
const LONGEST: usize = 70_000;
/// Maximum number of packets that are held back. Further packets are lost, as in a router.
const MOST: usize = 20_000;
/// Base of the numbers of routing tables that lead to a device; the device's index is added.
const TABLE: u32 = 1000;

nix::ioctl_write_int!(
    /// Attaches a file to its device: TUNSETIFF.
    set_interface,
    b'T',
    202
);
nix::ioctl_write_int!(
    /// Sets the type of a device (`ARPHRD_*`): TUNSETLINK.
    set_type,
    b'T',
    205
);
nix::ioctl_write_int!(
    /// Sets the packets that a device takes without segmentation and checksum: TUNSETOFFLOAD.
    set_offload,
    b'T',
    208
);

/// A thread that carries packets. Dropping it ends it.
pub struct Wire {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Reads packets from a device of a host until the wire is dropped. `pass` decides what is
    /// written back for each of them.
    pub fn through(
        host: &Host,
        name: &str,
        device: File,
        pass: impl FnMut(&mut [u8], &mut Out) + Send + 'static,
    ) -> Result<Wire> {
        Wire::start(host, name, move |ended| serve(device, ended, pass))
    }

    /// Runs `carry` on a host until the wire is dropped. `carry` returns soon after its flag is
    /// set.
    fn start(
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

/// Packets that leave a device.
pub struct Out {
    device: File,
    held: VecDeque<(Instant, Vec<u8>)>,
}

impl Out {
    /// Writes a packet. A packet that the device does not take is lost.
    pub fn now(&mut self, packet: &[u8]) {
        let _ = self.device.write(packet);
    }

    /// Writes a packet after this time, and after all packets that are held back already.
    pub fn later(&mut self, delay: Duration, packet: &[u8]) {
        if self.held.len() < MOST {
            let due = Instant::now() + delay;
            self.held.push_back((due, packet.to_vec()));
        }
    }

    /// Writes the packets that are due.
    fn give_back(&mut self) {
        let now = Instant::now();
        while let Some((_, packet)) = self.held.pop_front_if(|(due, _)| *due <= now) {
            self.now(&packet);
        }
    }

    /// Returns the time until a packet is due, or until the thread checks whether it is to end.
    fn rest(&self) -> Duration {
        let look = Duration::from_millis(LOOK.into());
        self.held.front().map_or(look, |(due, _)| {
            due.saturating_duration_since(Instant::now())
        })
    }
}

fn serve(device: File, ended: &AtomicBool, mut pass: impl FnMut(&mut [u8], &mut Out)) {
    let mut packet = vec![0; LONGEST];
    let mut out = Out {
        device,
        held: VecDeque::new(),
    };
    while !ended.load(Ordering::Relaxed) {
        let rest = TimeSpec::from_duration(out.rest());
        let mut wanted = [PollFd::new(out.device.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut wanted, Some(rest), None);
        while let Ok(n) = out.device.read(&mut packet) {
            pass(&mut packet[..n], &mut out);
            out.give_back();
        }
        out.give_back();
    }
}

/// Creates a device on a host.
pub fn device(host: &Host, name: &str) -> Result<File> {
    open_on(host, name, open_device)
}

/// Creates a device on a host, which leaves segmentation and checksums to this process. Segments of
/// one packet stay together, as on all other links: separately they use a whole processor at half a
/// gigabit per second.
pub fn offloading_device(host: &Host, name: &str) -> Result<File> {
    open_on(host, name, open_offloading)
}

fn open_on(host: &Host, name: &str, open: fn(&str) -> Result<File>) -> Result<File> {
    let named = name.to_owned();
    host.run(move || open(&named))
        .with_context(|| format!("failed to make the device {name}"))
}

/// Makes packets that a router forwards pass a device: those that match these rules, each of one
/// address family (`-4` or `-6`). Without the device its routing table is empty, and packets take
/// other routes.
pub fn divert(router: &Host, name: &str, rules: &[(&str, String)]) -> Result<()> {
    router.output("ip", &["link", "set", name, "up", "txqueuelen", "20000"])?;
    for key in ["all", name] {
        router.sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
    }
    let ip = |words: String| {
        let words: Vec<_> = words.split(' ').collect();
        router.output("ip", &words)
    };
    let named = name.to_owned();
    let table = TABLE + router.run(move || if_nametoindex(named.as_str()))?;
    let families: BTreeSet<_> = rules.iter().map(|(family, _)| family).collect();
    for family in families {
        ip(format!(
            "{family} route add default dev {name} table {table}"
        ))?;
    }
    for (family, rule) in rules {
        ip(format!("{family} rule add {rule} lookup {table}"))?;
    }
    Ok(())
}

/// Joins two hosts by a pair of devices without Ethernet headers. Segments of one packet stay
/// together.
pub fn join(one: (&Host, &str), other: (&Host, &str)) -> Result<Wire> {
    let ends = [
        offloading_device(one.0, one.1)?,
        offloading_device(other.0, other.1)?,
    ];
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

fn open_device(name: &str) -> Result<File> {
    open_as(name, 0)
}

fn open_offloading(name: &str) -> Result<File> {
    let device = open_as(name, libc::IFF_VNET_HDR)?;
    let whole = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: the argument of the call is a number.
    unsafe { set_offload(device.as_raw_fd(), whole.into()) }?;
    Ok(device)
}

/// Creates a device that calls itself a PPP link.
pub fn open_as_ppp(name: &str) -> Result<File> {
    let device = open_device(name)?;
    // SAFETY: the argument of the call is a number.
    unsafe { set_type(device.as_raw_fd(), libc::ARPHRD_PPP.into()) }?;
    Ok(device)
}

/// Creates a device of the kind that these flags select.
fn open_as(name: &str, flags: libc::c_int) -> Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: all zeroes are a valid request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: the request outlives the call, which reads and writes it.
    unsafe { set_interface(device.as_raw_fd(), (&raw mut request) as libc::c_ulong) }?;
    Ok(device)
}
