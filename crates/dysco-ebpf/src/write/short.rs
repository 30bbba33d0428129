//! The usual packet: its headers are changed in place.

use aya_ebpf::programs::TcContext;
use dysco_common::Addr;
use dysco_common::checksum::{Diff, Field, fold32};
use dysco_common::short::ShortHeader;
use dysco_common::tcp::{Edit, MIN_HEADER};

use super::change::{Addresses, Headers};
use super::{Failed, Readdressed, addresses, complete, field, store_headers};
use crate::packet::{Found, at};

/// Bytes of [`Addresses`] that an IPv4 header does not have.
pub(super) const ABSENT_V4: usize = 22;

/// Returns `len`. LLVM does not merge the call that uses the result with another call. Otherwise
/// it would select offset, pointer and length by three tests of one spilled flag. Verifiers
/// before Linux 6.9 do not connect these tests, and reject combinations that cannot occur.
#[inline(always)]
pub(super) fn unmerged(len: usize) -> usize {
    let mut same = len;
    // SAFETY: moves a register onto itself.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) same, options(nomem, nostack, preserves_flags));
    }
    same
}

/// Changes a packet whose header is a [`ShortHeader`].
#[inline(always)]
pub(crate) fn short(
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
pub(super) struct Sums {
    /// Of the pseudo-header; not 0 if the length has changed already.
    pub(super) pseudo: u64,
    /// Of the payload.
    pub(super) payload: u64,
}

/// Changes a packet, in the given room for headers. Without `timestamps` the header may have any
/// options, which remain.
#[expect(clippy::too_many_arguments, reason = "all is in registers")]
#[inline(always)]
pub(super) fn short_in(
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

/// True if [`short`] accepts the header.
#[inline(always)]
pub(crate) fn is_short(ctx: &TcContext, found: &Found) -> bool {
    found.data_offset == MIN_HEADER || found.data_offset == 32 && found.timestamps(ctx).is_some()
}
