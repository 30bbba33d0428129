//! The payload at the end of an arriving SYN's data, and whether it is authentic.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::Counter;
use dysco_common::chain::{MAGIC, PAYLOAD, Payload, Unfit};
use dysco_common::session::offer;

use super::fate::{IN, now};
use crate::maps::{self, HOPS, KEYS, OWN, Scratch, count};
use crate::packet::AsPtr;

/// Result: the SYN has only its own data, or none.
pub(super) const NOTHING: u32 = 0;
/// Result: the data ends with an authentic payload.
pub(super) const BELIEVED: u32 = 1;
/// Result: the data ends with a payload that is not authentic. It has been counted.
const UNFIT: u32 = 2;

/// Looks for a payload at the end of a SYN's data, and checks it.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_carried(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(Scratch {
        packet: p,
        offer,
        payload,
        hop,
        ..
    }) = maps::scratch(IN)
    else {
        return NOTHING;
    };
    if OWN.get_ptr(&p.key.whole.local).is_none() {
        // The packet is only forwarded here.
        return NOTHING;
    }
    let begin = p.l4() as u32 + p.header.data_offset() as u32;
    payload.magic = 0;
    if p.seg.len >= PAYLOAD as u32 {
        let from = begin + p.seg.len - PAYLOAD as u32;
        load_bytes(&ctx, from, (&raw mut *payload).cast(), PAYLOAD as u32);
    }
    if payload.magic != MAGIC {
        // A truncated payload begins at the first byte of the data.
        let first = (&raw mut payload.magic).cast();
        if load_bytes(&ctx, begin, first, 4) && payload.magic == MAGIC {
            count(Counter::ChainLayout);
            return UNFIT;
        }
        // A neighbour's stack sends data of its own only with the option of TCP Fast Open.
        let own = offer.flags & offer::FAST_OPEN != 0;
        if !own && HOPS.get_ptr(&p.key.whole.remote).is_some() {
            count(Counter::ChainLayout);
            return UNFIT;
        }
        return NOTHING;
    }
    if payload.check_layout().is_err() {
        count(Counter::ChainLayout);
        return UNFIT;
    }
    // SAFETY: copied at once (see `maps::look_up`).
    let Some(shared) = (unsafe { KEYS.get(&payload.key_id) }) else {
        count(Counter::ChainKey);
        return UNFIT;
    };
    hop.key = shared.key;
    dysco_chain_check(IN)
}

/// True if an authentic payload repeats one that arrived long ago, or one that this host has
/// sent. Both ends share one key.
#[inline(always)]
fn is_replayed(payload: &Payload) -> bool {
    if OWN.get_ptr(&payload.subsession.local).is_some() {
        return true;
    }
    let shared = KEYS.get_ptr_mut(&payload.key_id);
    // SAFETY: a value of the map, aligned. If two packets write it at once, each word is valid
    // for either.
    shared.is_some_and(|shared| unsafe { !(*shared).hears(payload, now()) })
}

/// Checks the payload in the scratch memory with the key there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_check(run: u32) -> u32 {
    let Some(Scratch { payload, hop, .. }) = maps::scratch(run) else {
        return UNFIT;
    };
    match payload.check(hop.key) {
        Ok(()) if is_replayed(payload) => {
            count(Counter::ChainReplayed);
            UNFIT
        }
        Ok(()) => BELIEVED,
        Err(Unfit::Proof) => {
            count(Counter::ChainProof);
            UNFIT
        }
        Err(Unfit::Layout | Unfit::Content) => {
            count(Counter::ChainLayout);
            UNFIT
        }
    }
}

#[inline(always)]
fn load_bytes(ctx: &TcContext, from: u32, to: *mut core::ffi::c_void, len: u32) -> bool {
    // SAFETY: `to` has room for `len` bytes, by the callers.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_load_bytes(ctx.as_ptr_const(), from, to, len)
    };
    r == 0
}
