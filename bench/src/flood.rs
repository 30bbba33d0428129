//! Frames of one five-tuple, as fast as one processor sends them, and the number of frames that
//! return.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{fs, io, mem};

use anyhow::{Context, Result, ensure};
use dysco_common::FlowKey;
use dysco_netns::{Host, Lab};

use crate::packet::{TIMESTAMPS, frame_of};
use crate::pair::stay;

/// The router's link to the proxy's host, on which frames leave and return.
const LINK: &str = "proxy";
/// Number of frames that one call sends.
const AT_ONCE: usize = 64;
/// Offsets in a frame.
const IP: usize = 14;
const IP_CHECK: usize = IP + 10;

/// A frame to be sent repeatedly.
pub(crate) struct Flood {
    frame: Vec<u8>,
}

impl Flood {
    /// Creates a small segment from `from` to `to`, for the proxy's host of the lab. Frames that
    /// return from there are counted, and go no further.
    pub(crate) fn new(lab: &Lab, from: SocketAddr, to: SocketAddr) -> Result<Flood> {
        let mut frame = frame_of(&FlowKey::new(to, from), TIMESTAMPS, 6, 0);
        frame[..6].copy_from_slice(&address(&lab.proxy, "eth0")?);
        frame[6..12].copy_from_slice(&address(&lab.router, LINK)?);
        let check = ip_check(&frame[IP..IP + 20]);
        frame[IP_CHECK..IP_CHECK + 2].copy_from_slice(&check);
        Ok(Flood { frame })
    }

    /// Sends frames for this time. Returns the number of returned frames per second.
    pub(crate) fn measure(&self, lab: &Lab, time: Duration) -> Result<f64> {
        let (frame, before) = (self.frame.clone(), came_back(&lab.router)?);
        let send = lab.router.thread("flood", move || send(&frame, time))?;
        let took = send
            .join()
            .map_err(|_| anyhow::anyhow!("the flooding thread panicked"))??;
        let packets = came_back(&lab.router)? - before;
        ensure!(packets > 0, "no frame came back");
        Ok(packets as f64 / took.as_secs_f64())
    }
}

/// From now on, counts and drops the frames that return from the proxy's host.
pub(crate) fn end_here(lab: &Lab) -> Result<()> {
    lab.router.input("nft", &["-f", "-"], DROP).map(drop)
}

/// The rule drops frames before the kernel spends any more time on them.
const DROP: &str = "
table inet flood {
  chain back {
    type filter hook prerouting priority -500
    iifname proxy meta l4proto tcp drop
  }
}
";

fn came_back(router: &Host) -> Result<u64> {
    let path = format!("/sys/class/net/{LINK}/statistics/rx_packets");
    let text = router.run(move || fs::read_to_string(path));
    let text = text.context("failed to count the returned frames")?;
    text.trim().parse().context("the count is no number")
}

/// Ethernet address of an interface.
fn address(host: &Host, interface: &str) -> Result<[u8; 6]> {
    let path = format!("/sys/class/net/{interface}/address");
    let text = host.run(move || fs::read_to_string(path))?;
    let byte = |part: &str| u8::from_str_radix(part, 16);
    let bytes = text.trim().split(':').map(byte);
    let bytes = bytes.collect::<Result<Vec<_>, _>>()?;
    <[u8; 6]>::try_from(bytes).map_err(|b| anyhow::anyhow!("an address of {} bytes", b.len()))
}

/// Checksum of an IPv4 header whose checksum field is zero.
fn ip_check(header: &[u8]) -> [u8; 2] {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Opens a socket that hands frames to the link's driver, without a queue.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the call has no pointer arguments.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let one = 1_i32;
    // SAFETY: the option has four bytes, which outlive the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const one).cast(),
            size_of::<i32>() as u32,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Sends the frame repeatedly. Returns the elapsed time. Runs on the link's host.
fn send(frame: &[u8], time: Duration) -> Result<Duration> {
    stay(0);
    let socket = socket().context("failed to open a packet socket")?;
    // SAFETY: the structure consists of integers and arrays, for which zeros are valid.
    let mut to: libc::sockaddr_ll = unsafe { mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = nix::net::if_::if_nametoindex(LINK)? as i32;
    let mut piece = libc::iovec {
        iov_base: frame.as_ptr().cast_mut().cast(),
        iov_len: frame.len(),
    };
    // SAFETY: the structure consists of integers and null pointers.
    let mut messages: [libc::mmsghdr; AT_ONCE] = unsafe { mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_name = (&raw mut to).cast();
        message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
        message.msg_hdr.msg_iov = &raw mut piece;
        message.msg_hdr.msg_iovlen = 1;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        // SAFETY: the messages and their buffers outlive the call, which writes only lengths into
        // the messages.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), AT_ONCE as u32, 0) };
        if sent < 0 {
            let error = io::Error::last_os_error();
            // The frames that exceed the link's capacity are lost, as on a wire.
            let full = error.raw_os_error() == Some(libc::ENOBUFS);
            ensure!(full, "failed to send frames: {error}");
        }
    }
    Ok(start.elapsed())
}

/// Makes the proxy's host process the packets of its link in a separate thread, and not in the
/// sending thread.
pub(crate) fn in_a_thread(lab: &Lab) -> Result<()> {
    lab.proxy.output("ethtool", &["-K", "eth0", "gro", "on"])?;
    let path = "/sys/class/net/eth0/threaded";
    let set = lab.proxy.run(move || fs::write(path, "1"));
    set.with_context(|| format!("failed to write {path}"))
}
