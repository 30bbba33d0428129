//! A link that takes its time, where the kernel has no netem: a device whose
//! packets come back later.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};

use crate::{Family, Host, Lab, Role};

const DEVICE: &str = "slow";
/// Packets that may be on their way; more are lost, as in a router.
const MOST: usize = 20_000;
/// Routes and rules that lead by the device.
const TABLE: &str = "77";

nix::ioctl_write_int!(
    /// Gives a file its device: TUNSETIFF.
    set_interface,
    b'T',
    202
);

/// Holds back what passes it. Dropping it loses what is on its way.
pub struct Delay {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delay {
    /// Makes each way between the proxy's host and the others so much longer.
    pub fn of_proxy(lab: &Lab, delay: Duration) -> Result<Delay> {
        let proxy = Role::Proxy.address(Family::V4);
        let to_it =
            [Role::Client, Role::Server].map(|from| format!("iif {} to {proxy}", from.name()));
        Delay::of(lab, delay, to_it.into_iter().chain(["iif proxy".into()]))
    }

    /// Makes the way between the client's host and the server's so much longer. A
    /// firewall of the router sees a packet where that begins.
    pub fn of_bypass(lab: &Lab, delay: Duration) -> Result<Delay> {
        let ways = [(Role::Client, Role::Server), (Role::Server, Role::Client)];
        let rules =
            ways.map(|(from, to)| format!("iif {} to {}", from.name(), to.address(Family::V4)));
        let slow = Delay::of(lab, delay, rules)?;
        let seen = "table inet seen { chain again { type filter hook prerouting priority raw; iifname slow notrack; }; }\n\
                    insert rule inet fw forward iifname slow accept\n";
        lab.router.input("nft", &["-f", "-"], seen)?;
        Ok(slow)
    }

    /// What these rules choose takes so much longer.
    fn of(lab: &Lab, delay: Duration, rules: impl IntoIterator<Item = String>) -> Result<Delay> {
        let router = &lab.router;
        let device = router.run(|| open_device(DEVICE));
        let device = device.with_context(|| format!("failed to make the device {DEVICE}"))?;
        router.output("ip", &["link", "set", DEVICE, "up", "txqueuelen", "20000"])?;
        for key in ["all", DEVICE] {
            router.sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
        }
        let ip = |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            router.output("ip", &words)
        };
        ip(&format!("route add default dev {DEVICE} table {TABLE}"))?;
        for rule in rules {
            ip(&format!("rule add {rule} lookup {TABLE}"))?;
        }
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let thread = router.thread("delay", move || hold(device, delay, &until))?;
        Ok(Delay {
            ended,
            thread: Some(thread),
        })
    }

    /// Lets each host of the lab send no more than so much a second.
    pub fn limit(lab: &Lab, rate: &str) -> Result<()> {
        let limit = |host: &Host, device: &str| {
            let bucket = ["rate", rate, "burst", "128k", "limit", "8m"];
            let words = ["qdisc", "replace", "dev", device, "root", "tbf"];
            host.output("tc", &[&words[..], &bucket].concat()).map(drop)
        };
        for role in Role::ALL {
            limit(lab.host(role), "eth0")?;
            limit(&lab.router, role.name())?;
        }
        Ok(())
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes a device whose packets this process takes and gives back.
pub(crate) fn open_device(name: &str) -> Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: all zeroes are a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request outlives the call, which reads and writes it.
    unsafe { set_interface(device.as_raw_fd(), (&raw mut request) as libc::c_ulong) }?;
    Ok(device)
}

/// Takes packets from the device and gives them back when they are due.
fn hold(mut device: File, delay: Duration, ended: &AtomicBool) {
    let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut packet = vec![0; 65_536];
    while !ended.load(Ordering::Relaxed) {
        let next = held.front().map(|(due, _)| *due);
        let rest = next.map_or(Duration::from_millis(20), |due| {
            due.saturating_duration_since(Instant::now())
        });
        let rest = TimeSpec::nanoseconds(rest.as_nanos() as i64);
        let mut wanted = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut wanted, Some(rest), None);
        while let Ok(n) = device.read(&mut packet) {
            if held.len() < MOST {
                held.push_back((Instant::now() + delay, packet[..n].to_vec()));
            }
        }
        let now = Instant::now();
        while held.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, packet)) = held.pop_front() {
                // A device that does not take it has lost it.
                let _ = device.write(&packet);
            }
        }
    }
}
