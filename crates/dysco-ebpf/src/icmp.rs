//! Errors of ICMP and ICMPv6 about sessions whose wire has another five-tuple than the
//! end that sent the segment. What an error is about is decided by `dysco_common::icmp`.
//!
//! ```text
//! an anchor, a chain's host:  wire ─▶ ingress ─ inner: path > session ─▶ stack
//! a chain's host:             stack ─▶ egress ─ inner: session > path ─▶ neighbour
//! a relaying host:            wire ─▶ ingress ─ inner: session B > A ──▶ the end of A
//! ```
//!
//! An error that a host sends on has that host's own address as its source: routers drop
//! what comes back to them with their own, and reverse-path filters what comes by another
//! way than its source is reached.

use core::hint::cold_path;

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{
    bpf_check_mtu, bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use dysco_common::icmp::{
    Fate, Message, QUOTED, Quoted, READ, about_received, about_relayed, about_sent,
};
use dysco_common::{Counter, Session, State, mark};

use crate::Verdict;
use crate::far;
use crate::maps::{self, Flow, Run, Scratch, count};
use crate::packet::{ETH_P_IP, ETH_P_IPV6, Found, Packet, at};

/// Protocol numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// A packet of no more bytes passes every link: what IPv4 calls the least that all take
/// (RFC 1122, section 3.3.3). In IPv6 it is more.
const PASSES_ALL: u32 = 576;

/// What the functions of this file say: the packet goes on as it is.
const PASS: u64 = 0;
/// It is dropped, and counted.
const DROP: u64 = u64::MAX;
/// It goes to the stack, changed.
const CHANGED: u64 = 1 << 32;
// Anything else is the interface by which it leaves.

fn verdict(said: u64) -> Verdict {
    match said {
        PASS => Verdict::Pass,
        DROP => Verdict::Drop,
        CHANGED => Verdict::Changed,
        ifindex => Verdict::Redirect {
            ifindex: ifindex as u32,
        },
    }
}

/// Is it ICMP, without options before?
#[inline(always)]
fn is_icmp(ctx: &TcContext) -> bool {
    match at::<u16>(ctx, 12).map(u16::from_be) {
        Some(ETH_P_IP) => at::<u8>(ctx, Packet::L3 + 9) == Some(ICMP),
        Some(ETH_P_IPV6) => at::<u8>(ctx, Packet::L3 + 6) == Some(ICMPV6),
        _ => false,
    }
}

/// Judges a packet without TCP, on its way in.
#[inline(always)]
pub fn arrives(ctx: &TcContext) -> Verdict {
    if !is_icmp(ctx) {
        return Verdict::Pass;
    }
    cold_path();
    // SAFETY: the program's own context.
    verdict(unsafe { dysco_icmp_in(ctx.skb.skb) })
}

/// The same on its way out.
#[inline(always)]
pub fn leaves(ctx: &TcContext) -> Verdict {
    if !is_icmp(ctx) {
        return Verdict::Pass;
    }
    cold_path();
    // SAFETY: the program's own context.
    verdict(unsafe { dysco_icmp_out(ctx.skb.skb) })
}

/// Exported, so that the verifier goes through it once (see `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_icmp_in(skb: *mut __sk_buff) -> u64 {
    let ctx = &TcContext::new(skb);
    let said = match at::<u16>(ctx, 12).map(u16::from_be) {
        Some(ETH_P_IP) => comes::<false>(ctx),
        Some(ETH_P_IPV6) => comes::<true>(ctx),
        _ => None,
    };
    said.unwrap_or(PASS)
}

/// Exported: see [`dysco_icmp_in`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_icmp_out(skb: *mut __sk_buff) -> u64 {
    let ctx = &TcContext::new(skb);
    let said = match at::<u16>(ctx, 12).map(u16::from_be) {
        Some(ETH_P_IP) => goes::<false>(ctx),
        Some(ETH_P_IPV6) => goes::<true>(ctx),
        _ => None,
    };
    said.unwrap_or(PASS)
}

/// Reads the message and what it quotes into scratch memory: on the stack LLVM would store
/// double words where it may not. `None` of all others.
#[inline(always)]
fn read<const V6: bool>(ctx: &TcContext, run: Run) -> Option<&'static mut Scratch> {
    let scratch = maps::scratch(run as u32)?;
    let Scratch { icmp, quoted, .. } = &mut *scratch;
    load(ctx, icmp.bytes_mut(), const { READ[V6 as usize] as u32 })?;
    icmp.read::<V6>(quoted).then_some(scratch)
}

#[inline(always)]
fn load(ctx: &TcContext, to: *mut u8, len: u32) -> Option<()> {
    // SAFETY: the program's own context; `to` is valid for `len` bytes, by the callers.
    let r = unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), Packet::L3 as u32, to.cast(), len) };
    (r == 0).then_some(())
}

/// Stores the message, and keeps a device's sum of the packet right, if there is one.
#[inline(always)]
fn store(ctx: &TcContext, message: &Message, len: u32) -> Option<()> {
    // SAFETY: the program's own context; a message has so many bytes.
    let r = unsafe {
        bpf_skb_store_bytes(
            ctx.skb.skb.cast(),
            Packet::L3 as u32,
            message.bytes().cast(),
            len,
            BPF_F_RECOMPUTE_CSUM as u64,
        )
    };
    (r == 0).then_some(())
}

/// The session of a segment that this host has sent, or of one that it has received.
#[inline(always)]
fn find(scratch: &mut Scratch, sent: bool) -> Option<Flow> {
    let Scratch {
        quoted,
        session: key,
        ..
    } = scratch;
    if sent {
        key.whole = quoted.key;
    } else {
        quoted.key.mirror_to(&mut key.whole);
    }
    key.complete();
    maps::find(key)
}

/// Counts an error that is not translated, and says what becomes of it.
#[inline(always)]
fn untranslated(fate: Fate) -> u64 {
    if fate == Fate::Pass {
        return PASS;
    }
    count(Counter::IcmpDisbelieved);
    DROP
}

#[inline(always)]
fn comes<const V6: bool>(ctx: &TcContext) -> Option<u64> {
    let scratch = read::<V6>(ctx, Run::Ingress)?;
    let Flow { new, s, .. } = find(scratch, true)?;
    let Scratch {
        icmp: message,
        quoted,
        ..
    } = scratch;
    if s.state == State::Tombstone as u32 {
        count(Counter::DroppedTombstone);
        return Some(DROP);
    }
    if !new {
        return about_relay::<V6>(ctx, message, s, quoted);
    }
    match about_sent(s, quoted) {
        Fate::Translate => {}
        fate => return Some(untranslated(fate)),
    }
    if let Some(relay) = s.relayed_by() {
        let relay = maps::session(relay)?;
        return about_relay::<V6>(ctx, message, relay, quoted);
    }
    // The router's address: a stack may hear that.
    let router = message.source::<V6>();
    message.rewrite::<V6>(quoted, (&router, &s.key.local));
    store(ctx, message, const { READ[V6 as usize] as u32 })?;
    count(Counter::IcmpTranslated);
    Some(CHANGED)
}

/// An error about a session of which this host knows both sides: `by` has the five-tuple
/// that the segment left by.
#[inline(always)]
fn about_relay<const V6: bool>(
    ctx: &TcContext,
    message: &mut Message,
    by: &Session,
    quoted: &mut Quoted,
) -> Option<u64> {
    let relays = by.state == State::Relay as u32 || by.state == State::FarTwoPaths as u32;
    if !relays {
        return Some(PASS);
    }
    let Some((from, _)) = far::other(by) else {
        return Some(PASS);
    };
    match about_relayed(from, by, quoted) {
        Fate::Translate => {}
        fate => return Some(untranslated(fate)),
    }
    if !message.hop::<V6>() {
        count(Counter::DroppedHopLimit);
        return Some(DROP);
    }
    message.rewrite::<V6>(quoted, (&from.key.local, &from.key.remote));
    if store(ctx, message, const { READ[V6 as usize] as u32 }).is_none() {
        count(Counter::DroppedError);
        return Some(DROP);
    }
    count(Counter::IcmpRelayed);
    // Without a mark: a chain on that side has its own five-tuples.
    Some(by.ifindex as u64)
}

#[inline(always)]
fn goes<const V6: bool>(ctx: &TcContext) -> Option<u64> {
    let scratch = read::<V6>(ctx, Run::Egress)?;
    let Flow { new: false, s, .. } = find(scratch, false)? else {
        return None;
    };
    let Scratch {
        icmp: message,
        quoted,
        ..
    } = scratch;
    if about_received(s, quoted) != Fate::Translate {
        return None;
    }
    message.rewrite::<V6>(quoted, (&s.path.local, &s.path.remote));
    if store(ctx, message, const { READ[V6 as usize] as u32 }).is_none() {
        count(Counter::DroppedError);
        return Some(DROP);
    }
    count(Counter::IcmpRelayed);
    Some(s.ifindex as u64)
}

/// Answers a packet that this host would relay, where it is longer than the next link
/// takes: no stack of this host sees it, so none tells its sender. `None` if it fits.
#[inline(always)]
pub fn answers(ctx: &TcContext, s: &Session, slot: u32, found: &Found) -> Option<Verdict> {
    // SAFETY: a readable field of the context.
    let one = match unsafe { (*ctx.skb.skb).gso_size } {
        0 => found.seg.len,
        size => size,
    };
    let len = (found.l4() - Packet::L3 + found.data_offset) as u32 + one;
    if len <= PASSES_ALL {
        return None;
    }
    // In the two-path phase the rest is for this host's stack.
    if s.state == State::FarTwoPaths as u32 && !far::is_of_new_path(s, &found.seg) {
        return None;
    }
    // SAFETY: the program's own context.
    match unsafe { dysco_too_big(ctx.skb.skb, slot, len) } {
        PASS => None,
        said => Some(verdict(said)),
    }
}

/// The interfaces by which a packet of `s` is relayed, and by which it is answered.
#[inline(always)]
fn interfaces(s: &Session) -> Option<(u32, u32)> {
    if let Some(relay) = s.relayed_by() {
        return Some((maps::session(relay)?.ifindex, s.ifindex));
    }
    let (other, _) = far::other(s)?;
    Some((s.ifindex, other.ifindex))
}

/// Exported: see [`dysco_icmp_in`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_too_big(skb: *mut __sk_buff, slot: u32, len: u32) -> u64 {
    let Some((next, back)) = maps::session(slot).and_then(|s| interfaces(s)) else {
        return PASS;
    };
    let mut mtu = 0;
    // SAFETY: the program's own context, and a word of the stack. The verdict is of the
    // whole packet, so only the MTU counts, with which its segments are compared.
    unsafe { bpf_check_mtu(skb.cast(), next, &mut mtu, 0, 0) };
    if mtu == 0 || len <= mtu {
        return PASS;
    }
    cold_path();
    let ctx = &TcContext::new(skb);
    let made = match at::<u16>(ctx, 12).map(u16::from_be) {
        Some(ETH_P_IP) => refuse::<false>(ctx, mtu),
        Some(ETH_P_IPV6) => refuse::<true>(ctx, mtu),
        _ => None,
    };
    if made.is_none() {
        count(Counter::DroppedError);
        return DROP;
    }
    count(Counter::IcmpTooBig);
    far::set_mark(ctx, mark::RELAYED);
    back as u64
}

/// Makes an error of the packet itself: what is quoted stays where it is, all behind it is
/// cut off, and the headers come before it.
#[inline(always)]
fn refuse<const V6: bool>(ctx: &TcContext, mtu: u32) -> Option<()> {
    let quoted = const { QUOTED[V6 as usize] as u32 };
    let added = const { (if V6 { 40 } else { 20 }) + 8 };
    let Scratch { icmp: message, .. } = maps::scratch(Run::Ingress as u32)?;
    load(ctx, message.quoted_mut(V6), quoted)?;
    message.too_big::<V6>(mtu);
    let skb = ctx.skb.skb;
    // SAFETY: the program's own context; the kernel checks the lengths.
    let cut = unsafe { bpf_skb_change_tail(skb.cast(), Packet::L3 as u32 + quoted, 0) };
    // SAFETY: the same.
    if cut != 0 || unsafe { bpf_skb_change_head(skb.cast(), added, 0) } != 0 {
        return None;
    }
    store(ctx, message, quoted + added)
}
