//! Applies an edit to the packet: addresses, TCP header and checksums.
//!
//! The TCP checksum may be complete, or only the sum of the pseudo-header, to be completed by
//! hardware. The program cannot always tell which. In that case the kernel's helper has to
//! change it. A helper also stores all bytes in one piece. If a program wrote to the packet
//! directly, the kernel would first make every arriving packet writable, including the many that
//! nobody changes.

pub(crate) mod change;
mod options;
mod payload;
mod short;

use aya_ebpf::bindings::{__sk_buff, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::generated::bpf_csum_update;
use aya_ebpf::programs::TcContext;
use dysco_common::checksum::{self, Diff, Field, NOTHING, differ};
use dysco_common::session::translation;
use dysco_common::tcp::MIN_HEADER;
use dysco_common::{Addr, Session};

use crate::maps::{self, Scratch};
use crate::packet::{AsPtr, Found, Packet, at, l4};
use change::Addresses;
use options::dysco_apply_options;
use short::{ABSENT_V4, Sums, short_in, unmerged};

pub(crate) use change::Change;
#[cfg(not(feature = "headerless"))]
pub(crate) use payload::trim_to;
pub(crate) use payload::{append, strip, trim};
pub(crate) use short::{is_short, short};

/// A multiple of 2^32-1 that keeps a difference of sums positive.
const BIAS: u64 = 0xffff_ffff * 64;
/// Congestion experienced (CE) in the ECN field.
const CE: u8 = 3;
/// Protocol number of TCP in the pseudo-header.
const IPPROTO_TCP: u32 = 6;
/// Offset of the checksum in the TCP header.
const CHECK: usize = 16;

/// Failure to change the whole packet, which must be dropped.
pub(crate) struct Failed;

/// Content of the packet's checksum field. In a super-packet it is the sum of the pseudo-header
/// (`tcp_gro_complete`, `__tcp_v4_send_check`), unless a driver has merged the segments.
/// `addresses` is the sum of the addresses.
#[inline(always)]
fn field(ctx: &TcContext, found: &Found, addresses: u64, check: u16) -> Field {
    // SAFETY: a readable field of the context.
    let of_many = unsafe { (*ctx.skb.skb).gso_size } != 0;
    let len = found.data_offset as u32 + found.seg.len;
    let pseudo_header = addresses + (len + IPPROTO_TCP).to_be() as u64;
    Field::of(check, pseudo_header, of_many)
}

/// Lets the kernel do what only it can: complete [`Field::Either`], and keep a device's sum of
/// the packet right, if there is one.
#[inline(always)]
fn complete(ctx: &TcContext, v6: bool, field: Field, diff: &Diff) -> Result<(), Failed> {
    if field == Field::Pseudo {
        return Ok(());
    }
    if field == Field::Either {
        ctx.l4_csum_replace(l4(v6) + CHECK, 0, diff.rest(), BPF_F_PSEUDO_HDR as u64)
            .map_err(|_| Failed)?;
    }
    let update = diff.of_packet(field, v6);
    if update != 0 && update != NOTHING as u32 {
        // SAFETY: the program's own context. An error says that there is none.
        unsafe { bpf_csum_update(ctx.skb.skb, update) };
    }
    Ok(())
}

/// Changes the packet's addresses and TCP header by the change in the scratch memory of the run.
/// Returns false on failure.
#[inline(always)]
pub(crate) fn apply(ctx: &TcContext, run: u32) -> bool {
    // SAFETY: the program's own context.
    match unsafe { dysco_apply(ctx.skb.skb, run) } {
        // SAFETY: the same.
        HAS_OPTIONS => unsafe { dysco_apply_options(ctx.skb.skb, run) == DONE },
        done => done == DONE,
    }
}

/// Result of [`dysco_apply`]: the packet could not be changed as a whole.
const FAILED: u32 = 0;
/// The packet is changed.
const DONE: u32 = 1;
/// The header has options that change: [`dysco_apply_options`] handles it.
const HAS_OPTIONS: u32 = 2;

fn said(done: Result<(), Failed>) -> u32 {
    match done {
        Ok(()) => DONE,
        Err(Failed) => FAILED,
    }
}

/// Exported, so that the verifier checks it once (see `learn::dysco_offer`), with a stack frame
/// of its own.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_apply(skb: *mut __sk_buff, run: u32) -> u32 {
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return FAILED;
    };
    let leaves_options = c.edit.leaves_options();
    if !leaves_options && !p.header.is_usual() {
        return HAS_OPTIONS;
    }
    let sums = Sums {
        pseudo: c.pseudo,
        payload: core::mem::take(&mut c.payload),
    };
    let found = Found {
        v6: p.key.is_v6(),
        data_offset: p.header.data_offset(),
        seg: p.seg,
    };
    let timestamps = !leaves_options && found.data_offset > MIN_HEADER;
    said(short_in(
        &TcContext::new(skb),
        &found,
        timestamps,
        &c.edit,
        (&c.src, &c.dst),
        c.clear_ect,
        sums,
        &mut c.headers,
    ))
}

/// Writes bytes of the packet. Pointers into the packet are invalid afterwards.
#[inline(always)]
fn store(ctx: &TcContext, off: usize, from: *const u8, len: usize) -> Result<(), Failed> {
    // SAFETY: `from` is valid for `len` bytes, by the callers.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_store_bytes(
            ctx.as_ptr_const().cast_mut().cast(),
            off as u32,
            from.cast(),
            len as u32,
            0,
        )
    };
    if r == 0 { Ok(()) } else { Err(Failed) }
}

/// Writes [`Addresses`] and the `tcp` bytes behind them to the packet, from the addresses on.
/// `from` is valid for both.
#[inline(always)]
fn store_headers(ctx: &TcContext, v6: bool, from: *const u8, tcp: usize) -> Result<(), Failed> {
    if v6 {
        return store(ctx, l4(true) - 32, from, 32 + tcp);
    }
    // SAFETY: within the addresses, of which 32 - ABSENT_V4 bytes remain.
    let from = unsafe { from.add(ABSENT_V4) };
    let at = l4(false) + ABSENT_V4 - 32;
    store(ctx, at, from, unmerged(32 - ABSENT_V4 + tcp))
}

/// Writes bytes of map memory into the packet, whose checksum must still be changed.
#[inline(always)]
pub(crate) fn store_bytes(ctx: &TcContext, off: usize, from: *const u8, len: usize) -> bool {
    store(ctx, off, from, len).is_ok()
}

/// The end of an IPv4 header.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Ipv4End {
    check: u16,
    src: u32,
    dst: u32,
}

/// Effect of new addresses on the sum of the pseudo-header. Not folded.
struct Readdressed {
    diff: u64,
    /// The sum of the old addresses.
    before: u64,
}

/// Writes the end of the new IP header to `to`, and clears the ECN field in the packet if
/// required.
#[inline(always)]
fn addresses(
    ctx: &TcContext,
    v6: bool,
    src: &Addr,
    dst: &Addr,
    clear_ect: u32,
    Addresses(to): &mut Addresses,
) -> Result<Readdressed, Failed> {
    let (src, dst) = (src.words(), dst.words());
    if v6 {
        let old = at::<[u32; 8]>(ctx, Packet::L3 + 8).ok_or(Failed)?;
        let (mut diff, mut before) = (0, 0);
        let mut i = 0;
        while i < 4 {
            (to[i], to[4 + i]) = (src[i], dst[i]);
            diff += differ(src[i], old[i]) + differ(dst[i], old[4 + i]);
            before += old[i] as u64 + old[4 + i] as u64;
            i += 1;
        }
        if clear_ect != 0 {
            clear_ecn(ctx, 0x30)?;
        }
        return Ok(Readdressed { diff, before });
    }
    let old = at::<Ipv4End>(ctx, Packet::L3 + 10).ok_or(Failed)?;
    let diff = differ(src[3], old.src) + differ(dst[3], old.dst);
    let mut ip_diff = diff;
    if clear_ect != 0 {
        ip_diff += clear_ecn(ctx, 3)?;
    }
    let [c0, c1] = checksum::changed(old.check, ip_diff).to_ne_bytes();
    to[5] = u32::from_ne_bytes([0, 0, c0, c1]);
    (to[6], to[7]) = (src[3], dst[3]);
    let before = old.src as u64 + old.dst as u64;
    Ok(Readdressed { diff, before })
}

/// Clears bits of the second byte of the IP header. Returns the change of the sum of its words.
#[inline(always)]
fn clear_ecn(ctx: &TcContext, bits: u8) -> Result<u64, Failed> {
    let [first, old] = at::<[u8; 2]>(ctx, Packet::L3).ok_or(Failed)?;
    let new = old & !bits;
    store(ctx, Packet::L3 + 1, &raw const new, 1)?;
    let word = |second| u16::from_ne_bytes([first, second]) as u32;
    Ok(differ(word(new), word(old)))
}

/// True if the packet reports congestion (CE) and its sender would never learn of it. If only
/// one side has agreed on ECN, the other echoes nothing. Such a packet is dropped instead, as by
/// RFC 6040, section 4.2, and its sender reacts to the loss.
#[inline(always)]
pub(crate) fn is_unanswered(ctx: &TcContext, s: &Session, v6: bool) -> bool {
    if s.translation.flags & translation::STRIP_ECN == 0 {
        return false;
    }
    let shift = if v6 { 4 } else { 0 };
    at::<u8>(ctx, Packet::L3 + 1).is_some_and(|second| second >> shift & CE == CE)
}

/// Decrements the TTL or hop limit, as any forwarder does. Returns false if the packet may go no
/// further. Such a packet is dropped: it is addressed to the stack, which has no socket for it
/// and would answer with a reset.
#[inline(always)]
pub(crate) fn hop_limit(ctx: &TcContext, v6: bool) -> bool {
    if v6 {
        let Some(limit) = at::<u8>(ctx, Packet::L3 + 7) else {
            return false;
        };
        return limit > 1 && ctx.store(Packet::L3 + 7, &(limit - 1), 0).is_ok();
    }
    let Some([ttl, protocol, c0, c1]) = at::<[u8; 4]>(ctx, Packet::L3 + 8) else {
        return false;
    };
    if ttl <= 1 {
        return false;
    }
    let word = |ttl: u8| u16::from_ne_bytes([ttl, protocol]) as u32;
    let diff = differ(word(ttl - 1), word(ttl));
    let [c0, c1] = checksum::changed(u16::from_ne_bytes([c0, c1]), diff).to_ne_bytes();
    ctx.store(Packet::L3 + 8, &[ttl - 1, protocol, c0, c1], 0)
        .is_ok()
}
