//! Applies an edit to the packet: addresses, TCP header and checksums.
//!
//! The TCP checksum may be complete, or only the sum of the pseudo-header, to be completed by
//! hardware. The program cannot always tell which. In that case the kernel's helper has to
//! change it. A helper also stores all bytes in one piece. If a program wrote to the packet
//! directly, the kernel would first make every arriving packet writable, including the many that
//! nobody changes.

use aya_ebpf::bindings::{__sk_buff, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::generated::{bpf_check_mtu, bpf_csum_update};
use aya_ebpf::programs::TcContext;
use dysco_common::chain::PAYLOAD;
use dysco_common::checksum::{self, Diff, Field, NOTHING, differ, fold16, fold32};
use dysco_common::session::translation;
use dysco_common::short::ShortHeader;
use dysco_common::tcp::{Edit, MIN_HEADER, Step, walk};
use dysco_common::{Addr, Session};

use crate::maps::{self, Scratch};
use crate::packet::{AsPtr, Found, Packet, at, bound_header, l4, load_options};

mod options;

use options::dysco_apply_options;

/// A multiple of 2^32-1 that keeps a difference of sums positive.
const BIAS: u64 = 0xffff_ffff * 64;
/// Congestion experienced (CE) in the ECN field.
const CE: u8 = 3;
/// Protocol number of TCP in the pseudo-header.
const IPPROTO_TCP: u32 = 6;
/// Offset of the checksum in the TCP header.
const CHECK: usize = 16;

/// Failure to change the whole packet, which must be dropped.
pub struct Failed;

/// Everything that is written into a packet.
#[repr(C)]
pub struct Change {
    /// The edit of the TCP header.
    pub edit: Edit,
    /// The source address.
    pub src: Addr,
    /// The destination address.
    pub dst: Addr,
    /// Not 0 to set the ECN field of the IP header to Not-ECT.
    pub clear_ect: u32,
    /// Difference of the pseudo-header from an earlier step (see [`trim`]).
    pub pseudo: u64,
    /// Difference of the payload, from [`append`] and [`strip`]: applied once.
    pub payload: u64,
    /// Room for headers, which the stack does not have.
    headers: Headers,
}

/// The end of an IP header in frame order: source and destination. For IPv4 these are the last
/// two words, and the header's checksum is in the two bytes before. Aligned, because LLVM stores
/// double words where the stack must be aligned.
#[repr(C, align(8))]
struct Addresses([u32; 8]);

/// The end of an IP header and a short TCP header.
#[repr(C)]
struct Headers {
    addresses: Addresses,
    tcp: ShortHeader,
}

/// Bytes of [`Addresses`] that an IPv4 header does not have.
const ABSENT_V4: usize = 22;

/// Returns `len`. LLVM does not merge the call that uses the result with another call. Otherwise
/// it would select offset, pointer and length by three tests of one spilled flag. Verifiers
/// before Linux 6.9 do not connect these tests, and reject combinations that cannot occur.
#[inline(always)]
fn unmerged(len: usize) -> usize {
    let mut same = len;
    // SAFETY: moves a register onto itself.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) same, options(nomem, nostack, preserves_flags));
    }
    same
}

/// Changes a packet whose header is a [`ShortHeader`].
#[inline(always)]
pub fn short(
    ctx: &TcContext,
    found: &Found,
    e: &Edit,
    (src, dst): (&Addr, &Addr),
    clear_ect: u32,
    pseudo: u64,
) -> Result<(), Failed> {
    let mut headers = Headers {
        addresses: Addresses([0; 8]),
        tcp: ShortHeader::default(),
    };
    let sums = Sums { pseudo, payload: 0 };
    let timestamps = found.data_offset > MIN_HEADER;
    short_in(
        ctx,
        found,
        timestamps,
        e,
        (src, dst),
        clear_ect,
        sums,
        &mut headers,
    )
}

/// Differences of the checksummed data, in addition to those of the change itself.
struct Sums {
    /// Of the pseudo-header; not 0 if the length has changed already.
    pseudo: u64,
    /// Of the payload.
    payload: u64,
}

/// Changes a packet, in the given room for headers. Without `timestamps` the header may have any
/// options, which remain.
#[expect(clippy::too_many_arguments, reason = "all is in registers")]
#[inline(always)]
fn short_in(
    ctx: &TcContext,
    found: &Found,
    timestamps: bool,
    e: &Edit,
    (src, dst): (&Addr, &Addr),
    clear_ect: u32,
    sums: Sums,
    headers: &mut Headers,
) -> Result<(), Failed> {
    let l4 = found.l4();
    headers.tcp = if timestamps {
        at::<ShortHeader>(ctx, l4).ok_or(Failed)?
    } else {
        let [a, b, c, d, e] = at::<[u32; 5]>(ctx, l4).ok_or(Failed)?;
        ShortHeader([a, b, c, d, e, 0, 0, 0])
    };
    let segment = fold32(headers.tcp.rewrite(timestamps, e) + sums.payload);
    let Readdressed { diff, before } =
        addresses(ctx, found.v6, src, dst, clear_ect, &mut headers.addresses)?;
    let check = headers.tcp.check();
    let field = match sums.pseudo {
        0 => field(ctx, found, before, check),
        // The length has changed already.
        _ => Field::Either,
    };
    let diff = Diff {
        pseudo: fold32(fold32(diff) + sums.pseudo),
        segment,
    };
    headers.tcp.set_check(diff.put(field, check));
    let tcp = if timestamps { 32 } else { MIN_HEADER };
    store_headers(ctx, found.v6, (&raw const *headers).cast(), tcp)?;
    complete(ctx, found.v6, field, &diff)
}

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
pub fn apply(ctx: &TcContext, run: u32) -> bool {
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
pub fn store_bytes(ctx: &TcContext, off: usize, from: *const u8, len: usize) -> bool {
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
pub fn is_unanswered(ctx: &TcContext, s: &Session, v6: bool) -> bool {
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
pub fn hop_limit(ctx: &TcContext, v6: bool) -> bool {
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

/// Cuts the payload off, so that a header remains, and sets the IP length accordingly. Returns
/// the difference of the pseudo-header's length.
#[inline(always)]
pub fn trim(ctx: &TcContext, p: &mut Packet) -> Option<u64> {
    let header = bound_header(p.header.data_offset() as u64) as u32;
    if p.seg.len == 0 {
        return Some(0);
    }
    let end = p.l4() as u32 + header;
    resize(ctx, p.key.is_v6(), end)?;
    let old_len = header + p.seg.len;
    p.seg.len = 0;
    forget_payload(ctx, p, old_len, header)
}

/// Cuts or lengthens the frame to `end`, and sets the IP length accordingly.
#[inline(always)]
fn resize(ctx: &TcContext, v6: bool, end: u32) -> Option<()> {
    // SAFETY: the program's own context.
    let done = unsafe { dysco_resize(ctx.skb.skb, v6 as u32, end) };
    (done != 0).then_some(())
}

/// Exported: see [`dysco_apply`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_resize(skb: *mut __sk_buff, v6: u32, end: u32) -> u32 {
    // SAFETY: the context is valid; the kernel checks the length.
    let r = unsafe { aya_ebpf::helpers::generated::bpf_skb_change_tail(skb.cast(), end, 0) };
    if r != 0 {
        return 0;
    }
    let ctx = &TcContext::new(skb);
    if v6 != 0 {
        let length = (end as u16 - l4(true) as u16).to_be_bytes();
        return ctx.store(Packet::L3 + 4, &length, 0).is_ok() as u32;
    }
    let (Some(old), Some(check)) = (
        at::<u16>(ctx, Packet::L3 + 2),
        at::<u16>(ctx, Packet::L3 + 10),
    ) else {
        return 0;
    };
    let new = (end as u16 - Packet::L3 as u16).to_be();
    let check = checksum::changed(check, differ(new as u32, old as u32));
    let stored = ctx.store(Packet::L3 + 2, &new, 0).is_ok();
    (stored && ctx.store(Packet::L3 + 10, &check, 0).is_ok()) as u32
}

/// Returns the sum of the pseudo-header of a packet with `len` bytes of TCP. The length has 32
/// bits in IPv6 and 16 in IPv4, with the same sum. The zeros of a mapped address do not change
/// the sum.
#[inline(always)]
fn pseudo_header(p: &Packet, len: u32) -> u64 {
    let (a, b) = (p.key.whole.local.words(), p.key.whole.remote.words());
    let mut sum = (len + IPPROTO_TCP).to_be() as u64;
    // ::ffff:0:0/96 adds ffff twice, which is zero in one's complement.
    let mut i = 0;
    while i < 4 {
        sum += a[i] as u64 + b[i] as u64;
        i += 1;
    }
    sum
}

/// Removes the payload that was cut off from the checksum. A checksum of the pseudo-header alone
/// never included the payload; its value shows that. One packet of 65,536 is mistaken for the
/// other kind, and lost. Returns the difference of the pseudo-header that must still be added.
#[inline(always)]
fn forget_payload(ctx: &TcContext, p: &mut Packet, old_len: u32, len: u32) -> Option<u64> {
    load_options(ctx, p).ok()?;
    let check = u16::from_ne_bytes([p.header.0[CHECK], p.header.0[CHECK + 1]]);
    if Field::of(check, pseudo_header(p, old_len), false) != Field::Whole {
        return Some(fold32(BIAS + len.to_be() as u64 - old_len.to_be() as u64));
    }
    p.header.0[CHECK] = 0;
    p.header.0[CHECK + 1] = 0;
    let whole = !fold16(fold32(p.header.sum()) + fold32(pseudo_header(p, len)));
    [p.header.0[CHECK], p.header.0[CHECK + 1]] = whole.to_ne_bytes();
    ctx.store(p.l4() + CHECK, &whole, 0).ok()?;
    Some(0)
}

/// Returns the sum of the payload in the scratch memory, if the payload begins at this offset in
/// the segment. Exported: see [`dysco_apply`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_payload_sum(run: u32, offset: u32) -> u32 {
    let Some(Scratch { payload, .. }) = maps::scratch(run) else {
        return 0;
    };
    let words: *const u32 = (&raw const *payload).cast();
    let mut sum = 0;
    let mut i = 0;
    while i < PAYLOAD / 4 {
        // SAFETY: within the payload, and aligned.
        sum += unsafe { *words.add(i) } as u64;
        i += 1;
    }
    let sum = fold16(sum);
    let odd = offset & 1 != 0;
    (if odd { sum.swap_bytes() } else { sum }) as u32
}

/// True if a SYN with data and the payload behind it exceed the MTU of the interface. The kernel
/// would lengthen the packet, and lose it there.
#[inline(always)]
fn is_too_long(ctx: &TcContext, ifindex: u32) -> bool {
    let mut mtu = 0;
    // SAFETY: the program's own context, and a word of the stack.
    let fits = unsafe { bpf_check_mtu(ctx.skb.skb.cast(), ifindex, &mut mtu, PAYLOAD as i32, 0) };
    fits != 0
}

/// Appends the payload in the scratch memory to the SYN there, which leaves by this interface.
/// Leaves out the SYN's own data if there is no room for both, and returns true then: the
/// sender's socket will learn that the data did not arrive. Adds the differences to the change.
#[inline(always)]
pub fn append(ctx: &TcContext, run: u32, ifindex: u32) -> Option<bool> {
    let Scratch {
        packet: p,
        change: c,
        payload,
        ..
    } = maps::scratch(run)?;
    let header = bound_header(p.header.data_offset() as u64) as u32;
    let mut left_out = false;
    let mut old = header + p.seg.len;
    c.pseudo = 0;
    if p.seg.len > 0 && is_too_long(ctx, ifindex) {
        c.pseudo = trim(ctx, p)?;
        left_out = true;
        old = header;
    }
    resize(ctx, p.key.is_v6(), p.l4() as u32 + old + PAYLOAD as u32)?;
    let from = (&raw const *payload).cast();
    store(ctx, p.l4() + old as usize, from, PAYLOAD).ok()?;
    let new = old + PAYLOAD as u32;
    c.pseudo += differ(new.to_be(), old.to_be());
    c.payload = dysco_payload_sum(run, old) as u64;
    Some(left_out)
}

/// Removes the payload in the scratch memory from the end of the SYN there. Adds the differences
/// to the change.
#[inline(always)]
pub fn strip(ctx: &TcContext, run: u32) -> Option<()> {
    let Scratch {
        packet: p,
        change: c,
        ..
    } = maps::scratch(run)?;
    let header = bound_header(p.header.data_offset() as u64) as u32;
    let old = header + p.seg.len;
    let new = old.checked_sub(PAYLOAD as u32)?;
    resize(ctx, p.key.is_v6(), p.l4() as u32 + new)?;
    p.seg.len -= PAYLOAD as u32;
    c.pseudo = differ(new.to_be(), old.to_be());
    c.payload = !dysco_payload_sum(run, new) as u64;
    Some(())
}
