//! A link with a delay, without netem: a device of user space that returns its packets later.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};

use crate::{Family, Host, Lab, Role};

const DEVICE: &str = "slow";
/// Size of the longest packet, with the header for its offloads.
const LONGEST: usize = 10 + 65_536;
/// Maximum number of packets in flight. Further packets are lost, as in a router.
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

/// Holds back the packets that pass it. Dropping it loses the packets in flight.
pub struct Delay {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delay {
    /// Delays each path between the proxy's host and the others by this time.
    pub fn of_proxy(lab: &Lab, delay: Duration) -> Result<Delay> {
        let others = [Role::Client, Role::Server].map(Role::name);
        let proxy = Role::Proxy.address(Family::V4);
        Delay::between(&lab.router, (Role::Proxy.name(), &[proxy]), &others, delay)
    }

    /// Delays the path between the client's host and the server's by this time. A firewall of the
    /// router sees a packet at the beginning of this path.
    pub fn of_bypass(lab: &Lab, delay: Duration) -> Result<Delay> {
        let ways = [(Role::Client, Role::Server), (Role::Server, Role::Client)];
        let rule = |(from, to): (Role, Role)| {
            let to = to.address(Family::V4);
            ("-4", format!("iif {} to {to}", from.name()))
        };
        let slow = Delay::of(&lab.router, DEVICE, &ways.map(rule), delay)?;
        let seen = format!(
            "table inet seen {{ chain again {{ type filter hook prerouting priority raw; \
             iifname {DEVICE} notrack; }}; }}\n\
             insert rule inet fw forward iifname {DEVICE} accept\n"
        );
        lab.router.input("nft", &["-f", "-"], &seen)?;
        Ok(slow)
    }

    /// Delays each path between a host at a router's port, which has these addresses, and the hosts
    /// at other ports.
    pub fn between(
        router: &Host,
        (port, addresses): (&str, &[IpAddr]),
        others: &[&str],
        delay: Duration,
    ) -> Result<Delay> {
        let mut rules = Vec::new();
        for address in addresses {
            let family = if address.is_ipv4() { "-4" } else { "-6" };
            let to_it = others.iter().map(|from| format!("iif {from} to {address}"));
            let rule = |rule| (family, rule);
            rules.extend(to_it.chain([format!("iif {port}")]).map(rule));
        }
        Delay::of(router, &format!("{DEVICE}-{port}"), &rules, delay)
    }

    /// Delays packets that match these rules, each of one address family, by a device with this
    /// name.
    fn of(router: &Host, name: &str, rules: &[(&str, String)], delay: Duration) -> Result<Delay> {
        let named = name.to_owned();
        let opened = router.run(move || {
            let device = open_offloading(&named)?;
            // Each such device has its own table.
            Ok::<_, anyhow::Error>((device, if_nametoindex(named.as_str())?))
        });
        let (device, index) =
            opened.with_context(|| format!("failed to make the device {name}"))?;
        router.output("ip", &["link", "set", name, "up", "txqueuelen", "20000"])?;
        for key in ["all", name] {
            router.sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
        }
        let ip = |words: String| {
            let words: Vec<_> = words.split(' ').collect();
            router.output("ip", &words)
        };
        let table = TABLE + index;
        let families: BTreeSet<_> = rules.iter().map(|(family, _)| family).collect();
        for family in families {
            ip(format!(
                "{family} route add default dev {name} table {table}"
            ))?;
        }
        for (family, rule) in rules {
            ip(format!("{family} rule add {rule} lookup {table}"))?;
        }
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let thread = router.thread("delay", move || hold(device, delay, &until))?;
        Ok(Delay {
            ended,
            thread: Some(thread),
        })
    }

    /// Limits the rate of each host of the lab.
    pub fn limit(lab: &Lab, rate: &str) -> Result<()> {
        let limit = |host: &Host, device: &str| host.limit(device, rate, "128k", "8m");
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

/// Creates a device whose packets this process reads and writes back.
pub fn open_device(name: &str) -> Result<File> {
    open_as(name, 0)
}

/// Creates such a device that leaves segmentation and checksums to this process. Segments of one
/// packet stay together, as on all other links: separately they use a whole processor at half a
/// gigabit per second.
pub fn open_offloading(name: &str) -> Result<File> {
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

/// Reads packets from the device and writes them back when they are due.
fn hold(mut device: File, delay: Duration, ended: &AtomicBool) {
    let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut packet = vec![0; LONGEST];
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
                // A packet that the device does not take is lost.
                let _ = device.write(&packet);
            }
        }
    }
}
