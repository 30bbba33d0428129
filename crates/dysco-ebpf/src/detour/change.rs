//! The change of a packet and of a direction, whichever way the packet goes.

use dysco_common::EventKind;
use dysco_common::detour::{Detour, End, Header, Way, cut};
use dysco_common::seq::max;
use dysco_common::session::Session;
use dysco_common::tcp::{Edit, edit};

use crate::atomic::compare_exchange;
use crate::maps::{self, Scratch};
use crate::packet::Key;
use crate::write::Change;

/// Result of a judgement: the packet is dropped.
pub(super) const DROP: u32 = 0;
/// Apply the change; the packet continues.
pub(super) const DIRECT: u32 = 1;
/// Apply the change; the packet goes to the handler.
pub(super) const HANDLER: u32 = 2;
/// The packet continues unchanged.
pub(super) const UNCHANGED: u32 = 3;

/// Returns what the judgement of a packet in the scratch memory of a run uses: that memory, the
/// session's entry, and its record.
#[inline(always)]
pub(super) fn parts(
    run: u32,
    slot: u32,
) -> Option<(
    &'static mut Scratch,
    &'static mut Session,
    &'static mut Detour,
)> {
    let (scratch, s) = (maps::scratch(run)?, maps::session(slot)?);
    Some((scratch, s, maps::detour(slot)?))
}

/// Sets the cutoff of a direction if it is due. `highest` is the highest number that its sender
/// has sent without a detour. Returns false while another program does so. User space sets the
/// cutoff of a direction from an end that has a detour on its own host (`elsewhere`).
#[inline(always)]
pub(super) fn cut_if_due(way: &mut Way, highest: u32, elsewhere: bool) -> bool {
    if elsewhere || !way.changes() {
        return true;
    }
    if way.cut_set == cut::UNSET
        && compare_exchange(&mut way.cut_set, cut::UNSET, cut::BUSY) == cut::UNSET
    {
        way.sent = max(way.sent, highest);
        way.set_cut();
        let _ = compare_exchange(&mut way.cut_set, cut::BUSY, cut::SET);
    }
    way.cut_set != cut::BUSY
}

/// Scale of the windows that an end sends.
#[inline(always)]
pub(super) fn scale_of(s: &Session, end: End) -> u8 {
    match end {
        End::Local => s.local_wscale(),
        End::Remote => s.remote_wscale(),
    }
}

/// Prepares the change of a packet that keeps its five-tuple.
#[inline(always)]
pub(super) fn prepare(flags: u8, key: &Key, from: End, header: &Header, c: &mut Change) {
    let k = &key.whole;
    let (src, dst, sport, dport) = match from {
        End::Local => (k.local, k.remote, k.local_port, k.remote_port),
        End::Remote => (k.remote, k.local, k.remote_port, k.local_port),
    };
    c.edit = Edit {
        sport,
        dport,
        seq: header.seq,
        ack: header.ack,
        window: header.window,
        flags,
        ..Edit::default()
    };
    if header.sacks {
        c.edit.sack_add = header.sack_add;
    } else {
        c.edit.strip |= edit::SACK;
    }
    c.src = src;
    c.dst = dst;
    c.clear_ect = 0;
    c.pseudo = 0;
}

/// Tells user space once that both ends have ended.
#[inline(always)]
pub(super) fn closes(s: &mut Session, slot: u32) {
    if s.life.fin_out & s.life.fin_in != 0 && s.life.notified == 0 {
        s.life.notified = 1;
        maps::tell(EventKind::Closed, slot);
    }
}
