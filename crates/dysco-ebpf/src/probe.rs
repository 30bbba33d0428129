//! Effects of a path on the packets that open it: see `dysco_common::probe`. The program reports
//! the whole packet that has arrived, and user space judges it.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use aya_ebpf::programs::TcContext;
use dysco_common::EventKind;
use dysco_common::checksum::fold16;
use dysco_common::probe::{PROBE, PROBES, may_carry};
use dysco_common::tcp::MAX_HEADER;
use dysco_common::two_paths::Fins;

use crate::maps::{self, EVENTS, Run, Scratch};
use crate::packet::{AsPtr, bound_header, load_options};
use crate::write::store_bytes;

/// Offset in a probe of the header as it arrived, of the numbers of the answer, and of the FINs.
const HEARD: usize = 8 + MAX_HEADER;
const ANSWERED: usize = HEARD + MAX_HEADER;
const FINS: usize = ANSWERED + 8;

const RUN: u32 = Run::Ingress as u32;

/// Copies the packet in the scratch memory of ingress, and its data, into the report. Returns
/// not 0 if the data is a probe. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_take_down(skb: *mut __sk_buff, slot: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(Scratch {
        packet: p, arrival, ..
    }) = maps::scratch(RUN)
    else {
        return 0;
    };
    if load_options(&ctx, p).is_err() {
        return 0;
    }
    arrival.kind = EventKind::Arrived as u32;
    arrival.slot = slot;
    arrival.len = p.seg.len;
    arrival.reserved = 0;
    arrival.header = p.header;
    arrival.carried = [0; PROBE];
    if !may_carry(&p.seg) {
        return 0;
    }
    let from = p.l4() as u32 + bound_header(p.header.data_offset() as u64) as u32;
    let to = arrival.carried.as_mut_ptr().cast();
    // SAFETY: `to` has room for `PROBE` bytes.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_load_bytes(ctx.as_ptr_const(), from, to, PROBE as u32)
    };
    let [a, b, c, d, ..] = arrival.carried;
    (r == 0 && u32::from_ne_bytes([a, b, c, d]) == PROBES) as u32
}

/// True if the packet in the scratch memory of ingress carries a probe. Copies the packet for
/// the report.
#[inline(always)]
pub(crate) fn is_carried(ctx: &TcContext, slot: u32) -> bool {
    // SAFETY: the program's own context.
    unsafe { dysco_take_down(ctx.skb.skb, slot) != 0 }
}

/// Reports the packet in the scratch memory of ingress to user space. A full ring loses the
/// report, as any packet may be lost.
#[inline(always)]
pub(crate) fn tell(skb: *mut __sk_buff, slot: u32) {
    // SAFETY: the program's own context.
    unsafe { dysco_take_down(skb, slot) };
    if let Some(Scratch { arrival, .. }) = maps::scratch(RUN) {
        let _ =
            EVENTS.output::<dysco_common::probe::Arrival>(&*arrival, BPF_RB_FORCE_WAKEUP as u64);
    }
}

/// Writes into the copied probe the header with which its packet has arrived, the numbers of the
/// answer, which is the present change, and these FINs (`Fins::bits`). Returns not 0 if that succeeded. Exported, for a
/// stack frame of its own (see also `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_echo(skb: *mut __sk_buff, fins: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let before = dysco_probe_sum(RUN);
    let Some(Scratch {
        packet: p,
        change: c,
        arrival,
        ..
    }) = maps::scratch(RUN)
    else {
        return 0;
    };
    let carried = &mut arrival.carried;
    carried[HEARD..ANSWERED].copy_from_slice(&arrival.header.0[..MAX_HEADER]);
    carried[ANSWERED..ANSWERED + 4].copy_from_slice(&c.edit.seq.to_be_bytes());
    carried[ANSWERED + 4..FINS].copy_from_slice(&c.edit.ack.to_be_bytes());
    carried[FINS..FINS + 4].copy_from_slice(&fins.to_be_bytes());
    let at = p.l4() + bound_header(p.header.data_offset() as u64) as usize;
    if !store_bytes(&ctx, at, carried.as_ptr(), PROBE) {
        return 0;
    }
    let after = dysco_probe_sum(RUN);
    // As in `write::append` and `write::strip`; a header has whole words.
    c.payload = after as u64 + !(before as u16) as u64;
    1
}

/// Answers the copied packet by the present change, with the FINs that this anchor has seen.
/// Returns false on failure.
#[inline(always)]
pub(crate) fn echo(ctx: &TcContext, fins: Fins) -> bool {
    // SAFETY: the program's own context.
    unsafe { dysco_echo(ctx.skb.skb, fins.bits()) != 0 }
}

/// Returns the sum of the copied probe. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_probe_sum(run: u32) -> u32 {
    let Some(Scratch { arrival, .. }) = maps::scratch(run) else {
        return 0;
    };
    let words: *const u32 = arrival.carried.as_ptr().cast();
    let mut sum = 0;
    let mut i = 0;
    while i < PROBE / 4 {
        // SAFETY: within the probe, and aligned: the fields before it consist of whole words.
        sum += unsafe { *words.add(i) } as u64;
        i += 1;
    }
    fold16(sum) as u32
}
