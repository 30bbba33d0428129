//! Records of SYNs that came by a subsession, or that this host has sent, found for a SYN that leaves.

use aya_ebpf::bindings::__sk_buff;
use dysco_common::chain::Pending;
use dysco_common::mark;

use super::fate::OUT;
use super::remembered;
use crate::maps::{self, Scratch};
use crate::packet::Packet;

/// Copies the record of a SYN that this host has sent before, by the entry of `slot`. Returns 1
/// if there is one.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_chain_own_pending(slot: u32) -> u32 {
    let (Some(Scratch { pending: to, .. }), Some(s)) = (maps::scratch(OUT), maps::session(slot))
    else {
        return 0;
    };
    let remembered = match s.joined_to() {
        Some(left) => maps::session(left).and_then(|s| remembered::by_entry(left, s, s.remote.isn)),
        None => remembered::by_entry(slot, s, s.local.isn),
    };
    match remembered {
        Some(pending) => {
            to.set(pending);
            1
        }
        None => 0,
    }
}

/// Copies the record of a SYN that came by a subsession. The mark names the subsession. The
/// SYN's number names it too, if the SYN is the session's own or a NAT has changed only one end
/// of it. If the mark and the number disagree, the number counts, because it is less often
/// another session's. Returns 1 if there is a record.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_pending(skb: *mut __sk_buff) -> u32 {
    let Some(Scratch {
        packet: p,
        pending: to,
        ..
    }) = maps::scratch(OUT)
    else {
        return 0;
    };
    // SAFETY: a readable field of the context.
    let marked = by_mark(unsafe { (*skb).mark });
    let pending = if marked.is_some_and(|pending| is_its(pending, p)) {
        marked
    } else {
        let numbered = remembered::by_number(p.seg.seq).filter(|pending| is_its(pending, p));
        numbered.or(marked)
    };
    match pending {
        Some(pending) => {
            to.set(pending);
            1
        }
        None => 0,
    }
}

/// True if the SYN has the number, and one end of the five-tuple, of the remembered one.
#[inline(always)]
fn is_its(pending: &Pending, p: &Packet) -> bool {
    let (session, whole) = (&pending.session, &p.key.whole);
    let near = session.local == whole.local || session.remote == whole.remote;
    near && pending.isn == p.seg.seq
}

/// Returns the remembered SYN that came by the subsession which the mark names.
#[inline(always)]
fn by_mark(mark: u32) -> Option<&'static Pending> {
    let slot = mark::slot_of(mark)?;
    let left = maps::session(slot)?;
    let opening = left.two.chained == 1;
    let pending = remembered::by_entry(slot, left, left.remote.isn)?;
    (opening && pending.left != 0).then_some(pending)
}
