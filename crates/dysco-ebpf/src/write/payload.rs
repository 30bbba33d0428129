//! Changes of the size of a packet: payloads are appended, stripped and cut.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_check_mtu;
use aya_ebpf::programs::TcContext;
use dysco_common::chain::PAYLOAD;
use dysco_common::checksum::{self, Field, differ, fold16, fold32};

use super::{BIAS, CHECK, IPPROTO_TCP, store};
use crate::maps::{self, Scratch};
use crate::packet::{Packet, at, bound_header, l4, load_options};

/// Cuts the payload off, so that a header remains, and sets the IP length accordingly. Returns
/// the difference of the pseudo-header's length.
#[inline(always)]
pub(crate) fn trim(ctx: &TcContext, p: &mut Packet) -> Option<u64> {
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

/// Cuts the payload to `keep` bytes, as [`trim`] does to none. Returns `None` for a packet whose
/// checksum includes the payload, and for one that is not long enough.
#[cfg(not(feature = "headerless"))]
#[inline(always)]
pub(crate) fn trim_to(ctx: &TcContext, p: &mut Packet, keep: u32) -> Option<u64> {
    let header = bound_header(p.header.data_offset() as u64) as u32;
    let (old_len, len) = (header + p.seg.len, header + keep);
    // SAFETY: a readable field of the context.
    let of_many = unsafe { (*ctx.skb.skb).gso_size } != 0;
    let check = u16::from_ne_bytes([p.header.0[CHECK], p.header.0[CHECK + 1]]);
    let whole = Field::of(check, pseudo_header(p, old_len), of_many) == Field::Whole;
    if keep >= p.seg.len || whole {
        return None;
    }
    resize(ctx, p.key.is_v6(), p.l4() as u32 + len)?;
    p.seg.len = keep;
    Some(fold32(BIAS + len.to_be() as u64 - old_len.to_be() as u64))
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
pub(super) fn pseudo_header(p: &Packet, len: u32) -> u64 {
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
pub(crate) fn append(ctx: &TcContext, run: u32, ifindex: u32) -> Option<bool> {
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
pub(crate) fn strip(ctx: &TcContext, run: u32) -> Option<()> {
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
