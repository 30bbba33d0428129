//! Headers whose options change: rewritten in a buffer, and stored as a whole.

use super::*;
use crate::packet::bound_header;
use crate::packet::load_options;
use crate::write::checksum::fold32;
use dysco_common::tcp::Step;
use dysco_common::tcp::walk;

/// Handles the headers that [`dysco_apply`] leaves to this function. [`dysco_apply`] does not
/// call it, because the kernel adds up the stack of all functions that call each other.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_apply_options(skb: *mut __sk_buff, run: u32) -> u32 {
    said(with_options(&TcContext::new(skb), run))
}

#[inline(always)]
fn with_options(ctx: &TcContext, run: u32) -> Result<(), Failed> {
    let segment = write_options(ctx, run)?;
    let Scratch {
        packet: p,
        change: c,
        ..
    } = maps::scratch(run).ok_or(Failed)?;
    let v6 = p.key.is_v6();
    let words = &mut c.headers.addresses;
    let Readdressed { diff, .. } = addresses(ctx, v6, &c.src, &c.dst, c.clear_ect, words)?;
    store_headers(ctx, v6, (&raw const *words).cast(), 0)?;
    let diff = Diff {
        pseudo: fold32(fold32(diff) + c.pseudo),
        segment,
    };
    complete(ctx, v6, Field::Either, &diff)
}

/// Rewrites the header in the buffer. Returns the change of its sum, or 0 if it cannot be
/// rewritten.
#[inline(always)]
fn rewrite(run: u32) -> u64 {
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return 0;
    };
    let before = p.header.sum();
    p.header.begin_rewrite(&c.edit);
    if walk(|| Step::from_word(dysco_rewrite_step(run))).is_err() {
        return 0;
    }
    // Never 0: it includes the bias.
    fold32(BIAS + p.header.sum() - before)
}

/// Exported: a step that the verifier checks once (see `dysco_common::tcp::walk`).
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_rewrite_step(run: u32) -> u32 {
    match maps::scratch(run) {
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }) => p.header.rewrite_step(&c.edit) as u32,
        None => Step::Malformed as u32,
    }
}

/// Returns the change of the segment's sum, by the header and by the payload.
#[inline(always)]
fn write_options(ctx: &TcContext, run: u32) -> Result<u64, Failed> {
    let Scratch { packet: p, .. } = maps::scratch(run).ok_or(Failed)?;
    load_options(ctx, p).map_err(|_| Failed)?;
    let segment = rewrite(run);
    if segment == 0 {
        return Err(Failed);
    }
    let Scratch {
        packet: p,
        change: c,
        ..
    } = maps::scratch(run).ok_or(Failed)?;
    let segment = fold32(segment + core::mem::take(&mut c.payload));
    let check = u16::from_ne_bytes([p.header.0[CHECK], p.header.0[CHECK + 1]]);
    let diff = Diff { pseudo: 0, segment };
    [p.header.0[CHECK], p.header.0[CHECK + 1]] = diff.put(Field::Either, check).to_ne_bytes();
    // At most 60 of the buffer's 64 bytes.
    let len = bound_header(p.header.data_offset() as u64) as usize;
    store(ctx, p.l4(), p.header.0.as_ptr(), len)?;
    Ok(segment)
}
