//! Finds the TCP header of a frame and what it says.

use aya_ebpf::programs::TcContext;
use dysco_common::tcp::{Header, MIN_HEADER, Segment};
use dysco_common::{Addr, FlowKey};

const ETH_LEN: usize = 14;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const IP_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// The longest headers that are looked at.
const HEADERS: usize = ETH_LEN + IPV6_LEN + 60;
const IPPROTO_TCP: u8 = 6;
/// More-fragments flag and fragment offset.
const IP_FRAGMENT: u16 = 0x3fff;

/// Which end of a packet is this host's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The source.
    Out,
    /// The destination.
    In,
}

/// A TCP packet.
#[repr(C)]
pub struct Packet {
    /// IPv6?
    pub v6: bool,
    /// Its five-tuple, from this host's side.
    pub key: FlowKey,
    /// Its first 20 bytes, or 32 where the data offset says 8 words.
    pub header: Header,
    /// What it says.
    pub seg: Segment,
}

impl Packet {
    /// Offset of the IP header in bytes.
    pub const L3: usize = ETH_LEN;

    /// Offset of the TCP header in bytes.
    #[inline(always)]
    pub fn l4(&self) -> usize {
        if self.v6 {
            ETH_LEN + IPV6_LEN
        } else {
            ETH_LEN + IP_LEN
        }
    }

    #[inline(always)]
    fn set_addresses(&mut self, dir: Direction, src: Addr, dst: Addr) {
        (self.key.local, self.key.remote) = match dir {
            Direction::Out => (src, dst),
            Direction::In => (dst, src),
        };
    }
}

/// Reads an unaligned value of the packet at a checked offset.
#[inline(always)]
fn at<T: Copy>(ctx: &TcContext, off: usize) -> Option<T> {
    let p = ctx.data() + off;
    if p + size_of::<T>() > ctx.data_end() {
        return None;
    }
    // SAFETY: within the packet, by the comparison above.
    Some(unsafe { core::ptr::read_unaligned(p as *const T) })
}

/// A writable place in the packet at a checked offset. Invalid after any
/// helper that changes the packet.
#[inline(always)]
pub fn place<T>(ctx: &TcContext, off: usize) -> Option<*mut T> {
    let p = ctx.data() + off;
    if p + size_of::<T>() > ctx.data_end() {
        None
    } else {
        Some(p as *mut T)
    }
}

/// Parses a frame. `None` for all that is not TCP over plain IPv4 or IPv6:
/// other protocols, IP options, extension headers, fragments, inline VLAN
/// tags. Such packets are never changed.
#[inline(always)]
pub fn parse(ctx: &TcContext, dir: Direction, p: &mut Packet) -> Option<()> {
    // Some drivers leave headers in page fragments.
    let linear = ctx.data_end() - ctx.data();
    if linear < HEADERS && linear < ctx.len() as usize {
        let _ = ctx.pull_data(if ctx.len() < HEADERS as u32 {
            ctx.len()
        } else {
            HEADERS as u32
        });
    }
    let ethertype = u16::from_be(at::<u16>(ctx, 12)?);
    let ip_len = match ethertype {
        ETH_P_IP => {
            let ip = at::<[u8; IP_LEN]>(ctx, ETH_LEN)?;
            if ip[0] != 0x45
                || ip[9] != IPPROTO_TCP
                || u16::from_be_bytes([ip[6], ip[7]]) & IP_FRAGMENT != 0
            {
                return None;
            }
            p.v6 = false;
            let src = Addr::v4([ip[12], ip[13], ip[14], ip[15]]);
            let dst = Addr::v4([ip[16], ip[17], ip[18], ip[19]]);
            p.set_addresses(dir, src, dst);
            u16::from_be_bytes([ip[2], ip[3]]) as u32
        }
        ETH_P_IPV6 => {
            let ip = at::<[u8; 8]>(ctx, ETH_LEN)?;
            if ip[6] != IPPROTO_TCP {
                return None;
            }
            p.v6 = true;
            let src = at::<Addr>(ctx, ETH_LEN + 8)?;
            let dst = at::<Addr>(ctx, ETH_LEN + 24)?;
            p.set_addresses(dir, src, dst);
            let payload = u16::from_be_bytes([ip[4], ip[5]]) as u32;
            if payload == 0 {
                0
            } else {
                payload + IPV6_LEN as u32
            }
        }
        _ => return None,
    };
    p.header = Header::zeroed();
    let l4 = p.l4();
    let fixed = at::<[u8; MIN_HEADER]>(ctx, l4)?;
    p.header.0[..MIN_HEADER].copy_from_slice(&fixed);
    let data_offset = p.header.data_offset();
    if data_offset < MIN_HEADER {
        return None;
    }
    if data_offset >= 32 {
        let options = at::<[u8; 12]>(ctx, l4 + MIN_HEADER)?;
        p.header.0[MIN_HEADER..32].copy_from_slice(&options);
    }
    let sport = u16::from_ne_bytes([p.header.0[0], p.header.0[1]]);
    let dport = u16::from_ne_bytes([p.header.0[2], p.header.0[3]]);
    (p.key.local_port, p.key.remote_port) = match dir {
        Direction::Out => (sport, dport),
        Direction::In => (dport, sport),
    };
    // The IP length, since short frames are padded; a super-packet over 64 KiB
    // has none, and no padding.
    let frame = if ip_len == 0 {
        ctx.len()
    } else {
        ip_len + ETH_LEN as u32
    };
    let len = frame.checked_sub((l4 + data_offset) as u32)?;
    p.seg = p.header.segment(len);
    Some(())
}

/// Completes the header with all its options, for the rare headers that
/// [`parse`] took only the start of.
#[inline(always)]
pub fn load_options(ctx: &TcContext, p: &mut Packet) -> Result<(), i64> {
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

/// A header length that the verifier can see to be 20 to 60.
#[inline(always)]
pub fn bound_header(len: u64) -> u64 {
    let mut y = len;
    // SAFETY: moves a register onto itself, so that LLVM does not prove the
    // bounds away that the verifier has to see.
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
pub trait AsPtr {
    /// The raw `__sk_buff`.
    fn as_ptr_const(&self) -> *const core::ffi::c_void;
}

impl AsPtr for TcContext {
    #[inline(always)]
    fn as_ptr_const(&self) -> *const core::ffi::c_void {
        self.skb.skb.cast()
    }
}
