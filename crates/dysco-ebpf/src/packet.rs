//! Locates the TCP header of a frame and reads its fixed fields.

mod forgotten;
mod ip;
mod usual;

use core::hint::cold_path;

use aya_ebpf::programs::{TcContext, XdpContext};
use dysco_common::short::TIMESTAMPS;
use dysco_common::tcp::{Header, MIN_HEADER, Segment};
use dysco_common::{FlowKey, ShortKey};

use forgotten::forget;
use ip::{ipv4, ipv6};

pub(crate) use ip::addresses_v6;
pub(crate) use usual::{Usual, usual};

/// True in the programs for interfaces whose packets begin with the IP header (tun, WireGuard,
/// ipip).
pub(crate) const HEADERLESS: bool = cfg!(feature = "headerless");
/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes before the IP header.
const L2: usize = if HEADERLESS { 0 } else { ETHERNET };
/// Offset of the EtherType in an Ethernet header.
pub(crate) const ETHERTYPE: usize = 12;
/// EtherType of IPv4.
pub(crate) const ETH_P_IP: u16 = 0x0800;
/// EtherType of IPv6.
pub(crate) const ETH_P_IPV6: u16 = 0x86dd;
const IP_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Bytes of a TCP header with timestamps alone.
pub(crate) const WITH_TIMESTAMPS: usize = 32;
const IPPROTO_TCP: u8 = 6;
/// Mask of the more-fragments flag and the fragment offset.
const IP_FRAGMENT: u16 = 0x3fff;

/// The end of a packet that is this host's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The source.
    Out,
    /// The destination.
    In,
}

/// The five-tuple of a packet, from this host's side. In this field order LLVM makes no double
/// words that a BPF stack would not accept.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Key {
    /// The key for the lookup.
    pub short: ShortKey,
    /// 1 for IPv6, 0 for IPv4.
    family: u32,
    /// The whole five-tuple.
    pub whole: FlowKey,
}

impl Key {
    /// Sets the other fields from `whole`.
    #[inline(always)]
    pub(crate) fn complete(&mut self) {
        self.family = self.whole.is_v6() as u32;
        self.short = self.whole.short();
    }

    /// True if the packet is IPv6.
    #[inline(always)]
    pub(crate) fn is_v6(&self) -> bool {
        self.family != 0
    }
}

/// A TCP packet's place in its frame, and its fixed fields.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// True for IPv6.
    pub v6: bool,
    /// Bytes of the TCP header.
    pub data_offset: usize,
    /// The fixed fields of the TCP header.
    pub seg: Segment,
}

impl Found {
    /// Returns the same, with a family, flags and header length that the verifier does not know
    /// (see [`forget`]).
    #[inline(always)]
    fn forgotten(mut self, key: &mut Key) -> Option<Found> {
        let (v6, words) = (self.v6 as u64, (self.data_offset / 4) as u64);
        let word = forget(v6 << 16 | words << 8 | self.seg.flags as u64)?;
        key.family = (word >> 16) as u32 & 1;
        self.v6 = key.is_v6();
        self.data_offset = (word >> 8) as usize % 16 * 4;
        self.seg.flags = word as u8;
        Some(self)
    }

    /// Offset of the TCP header in bytes.
    #[inline(always)]
    pub(crate) fn l4(&self) -> usize {
        l4(self.v6)
    }

    /// TSval and TSecr, if the options begin with `NOP, NOP, timestamps`.
    #[inline(always)]
    pub(crate) fn timestamps(&self, ctx: &TcContext) -> Option<(u32, u32)> {
        if self.data_offset < WITH_TIMESTAMPS {
            return None;
        }
        let words = at::<[u32; 3]>(ctx, self.l4() + MIN_HEADER)?;
        (words[0] == TIMESTAMPS).then(|| (u32::from_be(words[1]), u32::from_be(words[2])))
    }
}

/// A packet that is examined as a whole.
#[repr(C)]
pub(crate) struct Packet {
    /// Its five-tuple.
    pub key: Key,
    /// Its first 20 bytes, or 32 if the data offset is 8 words or more; all bytes after
    /// [`load_options`].
    pub header: Header,
    /// The fixed fields of the TCP header.
    pub seg: Segment,
}

impl Packet {
    /// Offset of the IP header in bytes.
    pub(crate) const L3: usize = L2;

    /// Offset of the TCP header in bytes.
    #[inline(always)]
    pub(crate) fn l4(&self) -> usize {
        l4(self.key.is_v6())
    }

    /// Returns its place in its frame, and its fixed fields.
    #[inline(always)]
    pub(crate) fn found(&self) -> Found {
        Found {
            v6: self.key.is_v6(),
            data_offset: self.header.data_offset(),
            seg: self.seg,
        }
    }
}

/// Offset of the TCP header in bytes.
#[inline(always)]
pub(crate) fn l4(v6: bool) -> usize {
    L2 + if v6 { IPV6_LEN } else { IP_LEN }
}

/// A frame that a program runs on.
pub(crate) trait Bytes {
    /// Addresses of the frame's first byte and of the end of its readable part. The reads are
    /// volatile: LLVM may keep 32 bits of a plain value on the stack, and these are no longer a
    /// pointer.
    fn bounds(&self) -> (usize, usize);
}

impl Bytes for TcContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        let skb = self.skb.skb;
        // SAFETY: readable fields of the context.
        unsafe {
            let data = core::ptr::read_volatile(&raw const (*skb).data);
            let end = core::ptr::read_volatile(&raw const (*skb).data_end);
            (data as usize, end as usize)
        }
    }
}

impl Bytes for XdpContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        // SAFETY: as above.
        unsafe {
            let data = core::ptr::read_volatile(&raw const (*self.ctx).data);
            let end = core::ptr::read_volatile(&raw const (*self.ctx).data_end);
            (data as usize, end as usize)
        }
    }
}

/// Reads an unaligned value of the packet at a checked offset.
#[inline(always)]
pub(crate) fn at<T: Copy>(ctx: &impl Bytes, off: usize) -> Option<T> {
    let (data, end) = ctx.bounds();
    let p = data + off;
    if p + size_of::<T>() > end {
        return None;
    }
    // SAFETY: within the packet, by the comparison above.
    Some(unsafe { core::ptr::read_unaligned(p as *const T) })
}

/// Returns the EtherType of a packet. The kernel knows it for a packet without an Ethernet header.
#[inline(always)]
pub(crate) fn protocol(ctx: &TcContext) -> Option<u16> {
    let be = if HEADERLESS {
        // SAFETY: a readable field of the context.
        unsafe { (*ctx.skb.skb).protocol as u16 }
    } else {
        at::<u16>(ctx, ETHERTYPE)?
    };
    Some(u16::from_be(be))
}

/// Makes the first `len` bytes readable: some drivers leave headers in page fragments. Callers
/// ask for no more than they need, because pulling data of a packet that the stack holds for
/// retransmission copies its head.
#[inline(always)]
fn want(ctx: &TcContext, len: usize) {
    let (data, end) = ctx.bounds();
    if data + len > end && len <= ctx.len() as usize {
        cold_path();
        let _ = ctx.pull_data(len as u32);
    }
}

/// Parses a frame. Returns `None` unless it is TCP over plain IPv4 or IPv6: for other protocols,
/// IP options, extension headers, fragments and inline VLAN tags. Such packets are never
/// changed.
#[inline(always)]
pub(crate) fn find(ctx: &TcContext, dir: Direction, key: &mut Key) -> Option<Found> {
    want(ctx, l4(false) + MIN_HEADER);
    let (ip_len, local, remote) = match protocol(ctx)? {
        ETH_P_IP => {
            let len = ipv4(ctx, dir, &mut key.whole)?;
            let (local, remote) = (key.whole.local.words()[3], key.whole.remote.words()[3]);
            (len, local, remote)
        }
        ETH_P_IPV6 => {
            want(ctx, l4(true) + MIN_HEADER);
            key.family = 1;
            let len = ipv6(ctx, dir, &mut key.whole)?;
            (len, key.whole.local.folded(), key.whole.remote.folded())
        }
        _ => return None,
    };
    let v6 = key.is_v6();
    let words = at::<[u32; 5]>(ctx, l4(v6))?;
    let [s0, s1, d0, d1] = words[0].to_ne_bytes();
    let (sport, dport) = (u16::from_ne_bytes([s0, s1]), u16::from_ne_bytes([d0, d1]));
    let (local_port, remote_port) = match dir {
        Direction::Out => (sport, dport),
        Direction::In => (dport, sport),
    };
    (key.whole.local_port, key.whole.remote_port) = (local_port, remote_port);
    key.short = ShortKey::new(local, remote, local_port, remote_port);
    let [offset, flags, w0, w1] = words[3].to_ne_bytes();
    let data_offset = (offset >> 4) as usize * 4;
    if data_offset < MIN_HEADER {
        return None;
    }
    if data_offset >= WITH_TIMESTAMPS {
        want(ctx, l4(v6) + WITH_TIMESTAMPS);
    }
    // The IP length counts, because short frames are padded. A super-packet of more than 64 KiB
    // has no IP length, and no padding.
    let frame = if ip_len == 0 {
        ctx.len()
    } else {
        ip_len + L2 as u32
    };
    let seg = Segment {
        seq: u32::from_be(words[1]),
        ack: u32::from_be(words[2]),
        len: frame.checked_sub((l4(v6) + data_offset) as u32)?,
        window: u16::from_be_bytes([w0, w1]),
        flags,
    };
    let found = Found {
        v6,
        data_offset,
        seg,
    };
    found.forgotten(key)
}

/// Copies a packet into scratch memory, to examine it as a whole.
#[inline(always)]
pub(crate) fn load(ctx: &TcContext, key: &Key, found: &Found, p: &mut Packet) -> Option<()> {
    p.key = *key;
    p.seg = found.seg;
    p.header = Header::zeroed();
    let l4 = found.l4();
    let fixed = at::<[u8; MIN_HEADER]>(ctx, l4)?;
    p.header.0[..MIN_HEADER].copy_from_slice(&fixed);
    if found.data_offset >= WITH_TIMESTAMPS {
        let options = at::<[u8; 12]>(ctx, l4 + MIN_HEADER)?;
        p.header.0[MIN_HEADER..WITH_TIMESTAMPS].copy_from_slice(&options);
    }
    Some(())
}

/// Loads the whole TCP header with all its options.
#[inline(always)]
pub(crate) fn load_options(ctx: &TcContext, p: &mut Packet) -> Result<(), i64> {
    let len = p.header.data_offset() as u64;
    let len = bound_header(len);
    // SAFETY: `len` is at most 60 of the buffer's 64 bytes.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_load_bytes(
            ctx.as_ptr_const(),
            p.l4() as u32,
            p.header.0.as_mut_ptr().cast(),
            len as u32,
        )
    };
    if r == 0 { Ok(()) } else { Err(r) }
}

/// Returns the header length, bounded to 20 to 60 so that the verifier sees it.
#[inline(always)]
#[expect(
    clippy::manual_clamp,
    reason = "the verifier follows two comparisons, whatever LLVM makes of a clamp"
)]
pub(crate) fn bound_header(len: u64) -> u64 {
    let mut y = len;
    // SAFETY: moves a register onto itself, so that LLVM does not remove the bounds checks that
    // the verifier must see.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) y, options(pure, nomem, nostack, preserves_flags));
    }
    y &= 63;
    if y < 20 {
        y = 20;
    }
    if y > 60 {
        y = 60;
    }
    y
}

/// The context pointer as helpers take it.
pub(crate) trait AsPtr {
    /// The raw `__sk_buff`.
    fn as_ptr_const(&self) -> *const core::ffi::c_void;
}

impl AsPtr for TcContext {
    #[inline(always)]
    fn as_ptr_const(&self) -> *const core::ffi::c_void {
        self.skb.skb.cast()
    }
}
