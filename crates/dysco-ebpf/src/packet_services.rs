//! Services of the packet plane. Their programs run before the others, on packets as the local
//! stack has sent them, or as the wire has brought them. They are on the interfaces only while a
//! session has such services.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_skb_set_tstamp;
use aya_ebpf::programs::TcContext;
use dysco_common::packet_services::{Departure, Lane, PacketServices, Size};
use dysco_common::{Counter, mark};

use crate::maps::{self, count};
use crate::marks::{is_marked, mark_of};
use crate::packet::{Direction, Found, Key, Packet, find};
use crate::verdict::Verdict;

/// Clock of a departure time: CLOCK_MONOTONIC (`BPF_SKB_TSTAMP_DELIVERY_MONO`, linux/bpf.h).
const MONOTONIC: u32 = 1;

/// Serves a packet of the local end.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext) -> Verdict {
    // A copy that a program has made is not the end's.
    if is_marked(ctx) {
        return Verdict::Pass;
    }
    let mut key = Key::default();
    let Some(found) = find(ctx, Direction::Out, &mut key) else {
        return Verdict::Pass;
    };
    // A packet on another path has been served as a packet of the session's own five-tuple.
    let Some(record) = maps::packet_services(&key.short) else {
        return Verdict::Pass;
    };
    if record.key != key.whole {
        return Verdict::Pass;
    }
    let timed = record.timed != 0;
    match judge(ctx, &mut record.out, &found, timed) {
        Departure::Now => Verdict::Pass,
        Departure::Never => over_rate(),
        Departure::At(at) => {
            // SAFETY: the program's own context. On an error the packet leaves at once.
            unsafe { bpf_skb_set_tstamp(ctx.skb.skb, at, MONOTONIC) };
            Verdict::Pass
        }
    }
}

/// Serves a packet for the local end.
#[inline(always)]
pub(crate) fn arrives(ctx: &TcContext) -> Verdict {
    if mark_of(ctx) == mark::COPY_IN {
        return Verdict::Pass;
    }
    let mut key = Key::default();
    let Some(found) = find(ctx, Direction::In, &mut key) else {
        return Verdict::Pass;
    };
    let Some(record) = served(&key) else {
        return Verdict::Pass;
    };
    match judge(ctx, &mut record.back, &found, false) {
        Departure::Never => over_rate(),
        Departure::Now | Departure::At(_) => Verdict::Pass,
    }
}

/// Returns the record of a packet that arrives, on whichever path.
#[inline(always)]
fn served(key: &Key) -> Option<&'static mut PacketServices> {
    if let Some(record) = maps::packet_services(&key.short)
        && record.key == key.whole
    {
        return Some(record);
    }
    let flow = maps::look_up(key)?;
    if !flow.new {
        return None;
    }
    let own = &flow.s.key;
    let record = maps::packet_services(&own.short())?;
    (record.key == *own).then_some(record)
}

#[inline(always)]
fn judge(ctx: &TcContext, lane: &mut Lane, found: &Found, timed: bool) -> Departure {
    // SAFETY: a readable field of the context.
    let packets = unsafe { (*ctx.skb.skb).gso_segs };
    let headers = found.l4() - Packet::L3 + found.data_offset;
    let size = Size {
        packets: packets.max(1),
        headers: headers as u32,
        payload: found.seg.len,
    };
    // SAFETY: no pointer is passed.
    lane.judge(unsafe { bpf_ktime_get_ns() }, size, timed)
}

#[inline(always)]
fn over_rate() -> Verdict {
    count(Counter::DroppedOverRate);
    Verdict::Drop
}
