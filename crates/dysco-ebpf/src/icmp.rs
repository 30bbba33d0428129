//! Errors of ICMP and ICMPv6 about sessions that have another five-tuple on the wire than at the
//! end that sent the segment. `dysco_common::icmp` decides what an error is about.
//!
//! ```text
//! an anchor, a chain's host:  wire ─▶ ingress ─ inner: path > session ─▶ stack
//! a chain's host:             stack ─▶ egress ─ inner: session > path ─▶ neighbour
//! a relaying host:            wire ─▶ ingress ─ inner: session B > A ──▶ the end of A
//! ```
//!
//! A host that sends an error on uses its own address as the source. A router drops a returning
//! packet that has the router's address. A reverse-path filter drops a packet that comes by
//! another way than its source is reached.

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

use crate::maps::{self, Flow, Run, Scratch, count};
use crate::marks::set_mark;
use crate::packet::{ETH_P_IP, ETH_P_IPV6, Found, Packet, at, protocol};
use crate::relay;
use crate::verdict::Verdict;

/// Protocol numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Greatest length in bytes of a packet that passes every link, by RFC 1122, section 3.3.3, for
/// IPv4. In IPv6 it is greater.
const PASSES_ALL: u32 = 576;

/// Result of the functions of this file: the packet continues unchanged.
const PASS: u64 = 0;
/// The packet is dropped, and counted.
const DROP: u64 = u64::MAX;
/// The packet goes to the stack, changed.
const CHANGED: u64 = 1 << 32;
// Any other result is the index of the outgoing interface.

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

/// True if the packet is ICMP or ICMPv6, without IPv6 extension headers before it.
#[inline(always)]
fn is_icmp(ctx: &TcContext) -> bool {
    match protocol(ctx) {
        Some(ETH_P_IP) => at::<u8>(ctx, Packet::L3 + 9) == Some(ICMP),
        Some(ETH_P_IPV6) => at::<u8>(ctx, Packet::L3 + 6) == Some(ICMPV6),
        _ => false,
    }
}

/// Judges a packet without TCP, on its way in.
#[inline(always)]
pub(crate) fn arrives(ctx: &TcContext) -> Verdict {
    if !is_icmp(ctx) {
        return Verdict::Pass;
    }
    cold_path();
    // SAFETY: the program's own context.
    verdict(unsafe { dysco_icmp_in(ctx.skb.skb) })
}

/// Judges a packet without TCP, on its way out.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext) -> Verdict {
    if !is_icmp(ctx) {
        return Verdict::Pass;
    }
    cold_path();
    // SAFETY: the program's own context.
    verdict(unsafe { dysco_icmp_out(ctx.skb.skb) })
}

/// Exported, so that the verifier checks it once (see `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_icmp_in(skb: *mut __sk_buff) -> u64 {
    let ctx = &TcContext::new(skb);
    let said = match protocol(ctx) {
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
    let said = match protocol(ctx) {
        Some(ETH_P_IP) => goes::<false>(ctx),
        Some(ETH_P_IPV6) => goes::<true>(ctx),
        _ => None,
    };
    said.unwrap_or(PASS)
}

/// Reads the message and its quoted segment into scratch memory: on the stack LLVM would store
/// double words where it must not. Returns `None` for any other packet.
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

/// Stores the message, and updates a device's sum of the packet, if there is one.
#[inline(always)]
fn store(ctx: &TcContext, message: &Message, len: u32) -> Option<()> {
    // SAFETY: the program's own context; the message has `len` bytes, by the callers.
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

/// Returns the session of a segment that this host has sent or, if not `sent`, has received.
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

/// Counts an error that is not translated, and returns its verdict.
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
    // The router's address as the source: a stack may receive that.
    let router = message.source::<V6>();
    message.rewrite::<V6>(quoted, (&router, &s.key.local));
    store(ctx, message, const { READ[V6 as usize] as u32 })?;
    count(Counter::IcmpTranslated);
    Some(CHANGED)
}

/// Relays an error about a session of which this host knows both sides. `by` has the five-tuple
/// that the segment left by.
#[inline(always)]
fn about_relay<const V6: bool>(
    ctx: &TcContext,
    message: &mut Message,
    by: &Session,
    quoted: &mut Quoted,
) -> Option<u64> {
    let relays = by.state == State::Relay as u32 || by.state == State::RelayTwoPaths as u32;
    if !relays {
        return Some(PASS);
    }
    let Some((from, _)) = relay::other(by) else {
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

/// Answers a packet that this host would relay and that exceeds the MTU of the next link. No
/// stack of this host sees the packet, so none informs the sender. Returns `None` if it fits.
#[inline(always)]
pub(crate) fn answers(ctx: &TcContext, s: &Session, slot: u32, found: &Found) -> Option<Verdict> {
    // SAFETY: a readable field of the context.
    let one = match unsafe { (*ctx.skb.skb).gso_size } {
        0 => found.seg.len,
        size => size,
    };
    let len = (found.l4() - Packet::L3 + found.data_offset) as u32 + one;
    if len <= PASSES_ALL {
        return None;
    }
    // In the two-path phase all other packets are for this host's stack.
    if s.state == State::RelayTwoPaths as u32 && !relay::is_of_new_path(s, &found.seg) {
        return None;
    }
    // SAFETY: the program's own context.
    match unsafe { dysco_too_big(ctx.skb.skb, slot, len) } {
        PASS => None,
        said => Some(verdict(said)),
    }
}

/// Returns the interfaces by which a packet of `s` is relayed, and by which it is answered.
#[inline(always)]
fn interfaces(s: &Session) -> Option<(u32, u32)> {
    if let Some(relay) = s.relayed_by() {
        return Some((maps::session(relay)?.ifindex, s.ifindex));
    }
    let (other, _) = relay::other(s)?;
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
    // SAFETY: the program's own context, and a word of the stack. The helper judges the whole
    // packet, so only the MTU counts. The program compares the segments with it.
    unsafe { bpf_check_mtu(skb.cast(), next, &mut mtu, 0, 0) };
    if mtu == 0 || len <= mtu {
        return PASS;
    }
    cold_path();
    let ctx = &TcContext::new(skb);
    let made = match protocol(ctx) {
        Some(ETH_P_IP) => refuse::<false>(ctx, mtu),
        Some(ETH_P_IPV6) => refuse::<true>(ctx, mtu),
        _ => None,
    };
    if made.is_none() {
        count(Counter::DroppedError);
        return DROP;
    }
    count(Counter::IcmpTooBig);
    set_mark(ctx, mark::RELAYED);
    back as u64
}

/// Turns the packet into an error about itself: the quoted part stays in place, the rest is cut
/// off, and the headers are put in front.
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
