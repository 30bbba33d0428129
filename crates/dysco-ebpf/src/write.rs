//! Puts an edit into the packet: addresses, TCP header, checksums.
//!
//! The TCP checksum may be a full one or only that of the pseudo-header (to be
//! completed by hardware), and the program cannot tell which: only the
//! kernel's helper may change it, told apart what is pseudo-header and what is
//! not. The header is written directly, the differences are our own.

use aya_ebpf::bindings::BPF_F_PSEUDO_HDR;
use aya_ebpf::programs::TcContext;
use dysco_common::Addr;
use dysco_common::tcp::Edit;

use crate::maps::{self, Scratch};
use crate::packet::{AsPtr, Packet, bound_header, load_options, place};

/// A multiple of 2^32-1 that keeps a difference of sums positive.
const BIAS: u64 = 0xffff_ffff * 64;
/// TCP, in the pseudo-header.
const IPPROTO_TCP: u32 = 6;
/// Offset of the checksum in the TCP header.
const CHECK: usize = 16;

/// A difference of sums that are the same, folded.
const NOTHING: u64 = 0xffff_ffff;

/// The packet could not be changed as a whole and must be dropped.
struct Failed;

/// Folds a sum of words to 32 bits.
#[inline(always)]
fn fold32(mut s: u64) -> u64 {
    s = (s & 0xffff_ffff) + (s >> 32);
    (s & 0xffff_ffff) + (s >> 32)
}

/// Folds a sum of words to 16 bits.
#[inline(always)]
fn fold16(s: u64) -> u16 {
    let mut s = fold32(s);
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    ((s & 0xffff) + (s >> 16)) as u16
}

/// All that is put into a packet.
#[repr(C)]
pub struct Change {
    /// The TCP header's.
    pub edit: Edit,
    /// The source address.
    pub src: Addr,
    /// The destination address.
    pub dst: Addr,
    /// Not 0: make the ECN field of the IP header Not-ECT.
    pub clear_ect: u32,
    /// A difference of the pseudo-header that came before (see [`trim`]).
    pub pseudo: u64,
}

/// Changes the packet's addresses and TCP header as the scratch memory of the
/// run says. A function of its own in the kernel too: it has its own stack
/// frame.
#[inline(never)]
pub fn apply(ctx: &TcContext, run: u32) -> bool {
    try_apply(ctx, run).is_ok()
}

#[inline(always)]
fn try_apply(ctx: &TcContext, run: u32) -> Result<(), Failed> {
    let Scratch {
        packet: p,
        change: c,
        ..
    } = maps::scratch(run).ok_or(Failed)?;
    let fast = p.header.data_offset() == 20 || p.header.has_only_timestamps();
    let header_diff = if fast {
        p.header.rewrite_fast(&c.edit);
        write_fast(ctx, p)?
    } else {
        write_slow(ctx, run)?
    };
    let Scratch {
        packet: p,
        change: c,
        ..
    } = maps::scratch(run).ok_or(Failed)?;
    let address_diff = write_addresses(ctx, p, c)?;
    fix_checksum(ctx, p.l4(), address_diff + c.pseudo, header_diff)
}

/// Adds the differences of the pseudo-header and of the header to the TCP
/// checksum.
#[inline(always)]
fn fix_checksum(ctx: &TcContext, l4: usize, pseudo: u64, header: u64) -> Result<(), Failed> {
    if pseudo != 0 {
        ctx.l4_csum_replace(l4 + CHECK, 0, fold32(pseudo), BPF_F_PSEUDO_HDR as u64)
            .map_err(|_| Failed)?;
    }
    if header == NOTHING {
        return Ok(());
    }
    ctx.l4_csum_replace(l4 + CHECK, 0, header, 0)
        .map_err(|_| Failed)
}

/// A word of the packet, in memory's order.
///
/// # Safety
/// `p` must be valid for 4 bytes at `off`, after the last helper that changes
/// the packet.
#[inline(always)]
unsafe fn word(p: *mut u8, off: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { p.add(off).cast::<u32>().read_unaligned() }
}

/// Writes a word of the packet.
///
/// # Safety
/// As [`word`].
#[inline(always)]
unsafe fn set_word(p: *mut u8, off: usize, v: u32) {
    // SAFETY: the caller's.
    unsafe { p.add(off).cast::<u32>().write_unaligned(v) }
}

/// Writes the first `N` words of the header from `first` on; returns how their
/// sum changes.
#[inline(always)]
fn write_words<const N: usize>(ctx: &TcContext, p: &Packet, first: usize) -> Result<u64, Failed> {
    let to: *mut u8 = place::<[u32; N]>(ctx, p.l4() + first).ok_or(Failed)?.cast();
    let mut diff = 0xffff_ffff * N as u64;
    let mut i = 0;
    while i < 4 * N {
        let new = p.header.raw(first + i);
        // SAFETY: `place` checked the bounds; no helper ran since.
        unsafe {
            diff = diff + new as u64 - word(to, i) as u64;
            set_word(to, i, new);
        }
        i += 4;
    }
    Ok(diff)
}

#[inline(always)]
fn write_fast(ctx: &TcContext, p: &Packet) -> Result<u64, Failed> {
    let mut diff = write_words::<5>(ctx, p, 0)?;
    if p.header.data_offset() == 32 {
        diff += write_words::<3>(ctx, p, 20)?;
    }
    Ok(fold32(diff))
}

/// A header with other options: rewritten in the buffer. Exported, so that the
/// verifier goes through the loop once (see `learn::dysco_offer`). Returns how
/// the header's sum changes, 0 if it cannot be rewritten.
#[unsafe(no_mangle)]
extern "C" fn dysco_rewrite(run: u32) -> u64 {
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return 0;
    };
    let before = p.header.sum();
    if p.header.rewrite(&c.edit).is_err() {
        return 0;
    }
    // Never 0: the bias is in it.
    fold32(BIAS + p.header.sum() - before)
}

#[inline(always)]
fn write_slow(ctx: &TcContext, run: u32) -> Result<u64, Failed> {
    let Scratch { packet: p, .. } = maps::scratch(run).ok_or(Failed)?;
    load_options(ctx, p).map_err(|_| Failed)?;
    let diff = dysco_rewrite(run);
    if diff == 0 {
        return Err(Failed);
    }
    let Scratch { packet: p, .. } = maps::scratch(run).ok_or(Failed)?;
    let len = bound_header(p.header.data_offset() as u64);
    // SAFETY: `len` is at most 60 of the buffer's 64 bytes.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_store_bytes(
            ctx.as_ptr_const().cast_mut().cast(),
            p.l4() as u32,
            p.header.0.as_ptr().cast(),
            len as u32,
            0,
        )
    };
    if r == 0 { Ok(diff) } else { Err(Failed) }
}

/// Writes `N` words of the packet from `from`; returns how their sum changes.
#[inline(always)]
fn replace<const N: usize>(p: *mut u8, off: usize, from: &[u32; 4], first: usize) -> u64 {
    let mut diff = 0xffff_ffff * N as u64;
    let mut i = 0;
    while i < N {
        // SAFETY: the callers checked the bounds of the IP header.
        unsafe {
            diff = diff + from[first + i] as u64 - word(p, off + 4 * i) as u64;
            set_word(p, off + 4 * i, from[first + i]);
        }
        i += 1;
    }
    diff
}

/// Writes the addresses and returns how the sum of the pseudo-header changes.
#[inline(always)]
fn write_addresses(ctx: &TcContext, p: &Packet, c: &Change) -> Result<u64, Failed> {
    if p.v6 {
        let ip: *mut u8 = place::<[u8; 40]>(ctx, Packet::L3).ok_or(Failed)?.cast();
        if c.clear_ect != 0 {
            // SAFETY: `place` checked the bounds; no helper ran since.
            unsafe { *ip.add(1) &= !0x30 };
        }
        let diff = replace::<4>(ip, 8, &c.src.words(), 0);
        return Ok(fold32(diff + replace::<4>(ip, 24, &c.dst.words(), 0)));
    }
    let ip: *mut u8 = place::<[u8; 20]>(ctx, Packet::L3).ok_or(Failed)?.cast();
    let diff = replace::<1>(ip, 12, &c.src.words(), 3) + replace::<1>(ip, 16, &c.dst.words(), 3);
    let mut ip_diff = fold32(diff);
    if c.clear_ect != 0 {
        // SAFETY: as above.
        unsafe {
            let old = word(ip, 0);
            *ip.add(1) &= !3;
            ip_diff += 0xffff_ffff + word(ip, 0) as u64 - old as u64;
        }
    }
    fix_ip_checksum(ip, ip_diff);
    Ok(fold32(diff))
}

/// Adds a difference of words to the IPv4 header checksum (RFC 1624).
#[inline(always)]
fn fix_ip_checksum(ip: *mut u8, diff: u64) {
    // SAFETY: the callers checked the bounds of the IP header.
    unsafe {
        let check = ip.add(10).cast::<u16>();
        let old = check.read_unaligned();
        check.write_unaligned(!fold16(diff + (!old) as u64));
    }
}

/// Cuts the payload off, so that what is left is a header, and sets the IP
/// length to it. Returns the difference of the pseudo-header's length.
#[inline(always)]
pub fn trim(ctx: &TcContext, p: &mut Packet) -> Option<u64> {
    let header = bound_header(p.header.data_offset() as u64) as u32;
    if p.seg.len == 0 {
        return Some(0);
    }
    let end = p.l4() as u32 + header;
    // SAFETY: the context is valid; the length is that of the headers.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_change_tail(
            ctx.as_ptr_const().cast_mut().cast(),
            end,
            0,
        )
    };
    if r != 0 {
        return None;
    }
    if p.v6 {
        let length = place::<[u8; 2]>(ctx, Packet::L3 + 4)?;
        // SAFETY: `place` checked the bounds after the last helper.
        unsafe { *length = (header as u16).to_be_bytes() };
    } else {
        let ip: *mut u8 = place::<[u8; 20]>(ctx, Packet::L3)?.cast();
        // SAFETY: as above.
        unsafe {
            let length = ip.add(2).cast::<u16>();
            let old = length.read_unaligned();
            let new = (end as u16 - Packet::L3 as u16).to_be();
            length.write_unaligned(new);
            fix_ip_checksum(ip, 0xffff + new as u64 - old as u64);
        }
    }
    let old_len = header + p.seg.len;
    p.seg.len = 0;
    forget_payload(ctx, p, old_len, header)
}

/// The sum of the pseudo-header of a packet with `len` bytes of TCP. Its length
/// has 32 bits in IPv6, 16 in IPv4: the same sum, and so it is for the zeros of
/// a mapped address.
#[inline(always)]
fn pseudo_header(p: &Packet, len: u32) -> u64 {
    let (a, b) = (p.key.local.words(), p.key.remote.words());
    let mut sum = (len + IPPROTO_TCP).to_be() as u64;
    // ::ffff:0:0/96 adds ffff twice, which is nothing in one's complement.
    let mut i = 0;
    while i < 4 {
        sum += a[i] as u64 + b[i] as u64;
        i += 1;
    }
    sum
}

/// Takes the payload that was cut off out of the checksum. One that is only
/// that of the pseudo-header never had it, and is told apart by its value;
/// one packet of 65,536 is taken for the other, and lost. Returns the
/// difference of the pseudo-header that is still to be added.
#[inline(always)]
fn forget_payload(ctx: &TcContext, p: &mut Packet, old_len: u32, len: u32) -> Option<u64> {
    load_options(ctx, p).ok()?;
    let check = u16::from_ne_bytes([p.header.0[CHECK], p.header.0[CHECK + 1]]);
    if fold16(pseudo_header(p, old_len)) == check {
        return Some(fold32(BIAS + len.to_be() as u64 - old_len.to_be() as u64));
    }
    p.header.0[CHECK] = 0;
    p.header.0[CHECK + 1] = 0;
    let whole = !fold16(fold32(p.header.sum()) + fold32(pseudo_header(p, len)));
    [p.header.0[CHECK], p.header.0[CHECK + 1]] = whole.to_ne_bytes();
    let place = place::<[u8; 2]>(ctx, p.l4() + CHECK)?;
    // SAFETY: `place` checked the bounds after the last helper.
    unsafe { *place = whole.to_ne_bytes() };
    Some(0)
}
