//! Packets of the two ends: their routes, and their changes.

use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS};
use aya_ebpf::programs::TcContext;
use dysco_common::detour::{
    Detour, End, Header, choose_route, hear, highest, keep_in_window, phase, write_headers,
};
use dysco_common::session::{Session, life};
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths::Copy;
use dysco_common::{Counter, EventKind, Path, mark};

use super::change::{
    DIRECT, DROP, HANDLER, UNCHANGED, closes, cut_if_due, parts, prepare, scale_of,
};
use crate::atomic;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::Packet;
use crate::paths::send_copy;
use crate::write::{self, Change};

/// Returns the end that sent the packet of a run.
#[inline(always)]
fn sender(run: u32) -> End {
    if run == Run::Ingress as u32 {
        End::Remote
    } else {
        End::Local
    }
}

/// Takes the acknowledgement of a packet of an end in the scratch memory of a run. Returns 0 if the
/// packet must be dropped. Exported for a stack frame of its own (see also `learn::dysco_offer`), and
/// so that the verifier does not follow each of its results on ([`hear`]).
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_hear(slot: u32, run: u32) -> u32 {
    let Some((scratch, s, d)) = parts(run, slot) else {
        return 0;
    };
    let Scratch {
        packet: p, weighed, ..
    } = scratch;
    let from = sender(run);
    let highest = highest(s, d, from);
    let elsewhere = d.paired != 0 && from == End::Remote;
    let (way, _) = d.ways(from);
    let was_cut = way.cut_set;
    if !cut_if_due(way, highest, elsewhere) {
        return 0;
    }
    let leaves = way.phase == phase::LEAVING;
    if way.cut_set != was_cut && (leaves || d.paired != 0) {
        // The other host of a pair waits for it. A socket that gets nothing more owes an
        // acknowledgement.
        maps::tell(EventKind::Rerouted, slot);
    }
    let was_done = d.out.is_done() as u32 + d.back.is_done() as u32;
    hear(d, from, &p.seg, scale_of(s, from), weighed);
    if d.out.is_done() as u32 + d.back.is_done() as u32 != was_done {
        maps::tell(EventKind::Rerouted, slot);
    }
    1
}

/// Decides the route of a packet of an end whose acknowledgement was taken, and leaves it in the
/// scratch memory of the run. Returns 0 if the packet must be dropped. Exported: see [`dysco_hear`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_route(slot: u32, run: u32) -> u32 {
    let Some((scratch, s, d)) = parts(run, slot) else {
        return 0;
    };
    let Scratch {
        packet: p,
        route,
        weighed,
        ..
    } = scratch;
    let from = sender(run);
    choose_route(d, from, &p.seg, weighed, route);
    take_in(s, d, from, &p.seg, slot);
    1
}

/// Prepares the headers of a packet of an end, whose route is decided. Exported: see
/// [`dysco_hear`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_headers(slot: u32, run: u32) -> u32 {
    let (
        Some(Scratch {
            packet: p,
            route,
            weighed,
            ..
        }),
        Some(d),
    ) = (maps::scratch(run), maps::detour(slot))
    else {
        return 0;
    };
    write_headers(d, sender(run), &p.seg, weighed, route);
    1
}

/// Limits a packet of an end, whose route is decided, to its receiver's window. Exported: see
/// [`dysco_hear`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_window(slot: u32, run: u32) -> u32 {
    let (
        Some(Scratch {
            packet: p, route, ..
        }),
        Some(s),
        Some(d),
    ) = (maps::scratch(run), maps::session(slot), maps::detour(slot))
    else {
        return 0;
    };
    let from = sender(run);
    keep_in_window(d, from, &p.seg, scale_of(s, from), route);
    1
}

/// Prepares the change of a packet of an end in the scratch memory of a run, whose route is
/// decided. Exported: see [`dysco_hear`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_detour(skb: *mut __sk_buff, slot: u32, run: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let (
        Some(Scratch {
            packet: p,
            change: c,
            route,
            ..
        }),
        Some(s),
    ) = (maps::scratch(run), maps::session(slot))
    else {
        return DROP;
    };
    let from = sender(run);
    if route.dropped {
        return DROP;
    }
    if route.copied {
        let header = &route.copy;
        let path = if route.to_socket {
            Path::Old
        } else {
            Path::New
        };
        let copy = Copy {
            path,
            seq: header.seq,
            ack: header.ack,
            flags: ACK,
            window: header.window,
        };
        let (mark, flags) = match from {
            End::Local => (mark::COPY, 0),
            End::Remote => (mark::COPY_IN, BPF_F_INGRESS as u64),
        };
        send_copy(ctx, s, &copy, mark, flags);
    }
    prepare(p.seg.flags, &p.key, from, &route.main, c);
    if route.to_socket {
        without_echo(p, c);
    }
    if let Some(keep) = route.keep {
        let Some(length_diff) = write::trim_to(ctx, p, keep) else {
            count(Counter::DroppedError);
            return DROP;
        };
        c.edit.flags &= !FIN;
        c.pseudo = length_diff;
        return if route.to_socket { HANDLER } else { DIRECT };
    }
    if route.to_socket {
        return HANDLER;
    }
    let same = c.edit.seq == p.seg.seq && c.edit.ack == p.seg.ack && c.edit.window == p.seg.window;
    if same && (c.edit.leaves_options() || p.header.is_usual()) {
        UNCHANGED
    } else {
        DIRECT
    }
}

/// Prepares the change of a copy on its second pass, and trims it to a header. Exported: see
/// [`dysco_detour`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_detour_copy(skb: *mut __sk_buff, run: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return DROP;
    };
    // SAFETY: fields of the context that the verifier lets a classifier use.
    let fields = unsafe { &mut *skb };
    let (seq, ack, path, rest) = (fields.cb[0], fields.cb[1], fields.cb[2], fields.cb[3]);
    fields.mark = 0;
    let Some(length_diff) = write::trim(ctx, p) else {
        count(Counter::DroppedError);
        return DROP;
    };
    let header = Header {
        seq,
        ack,
        window: (rest >> 16) as u16,
        sack_add: 0,
        sacks: false,
    };
    prepare(rest as u8, &p.key, sender(run), &header, c);
    c.pseudo = length_diff;
    if path == Path::New as u32 {
        without_echo(p, c);
        HANDLER
    } else {
        DIRECT
    }
}

/// Removes the echo of a clock that is not the socket's: the ends see each other's clocks, so that
/// no clock steps back when the handler leaves. A stack ignores an echo of 0 (`tcp_ack_update_rtt`
/// and `tcp_packet_delayed`, net/ipv4/tcp_input.c).
#[inline(always)]
fn without_echo(p: &Packet, c: &mut Change) {
    if p.header.starts_with_timestamps() {
        c.edit.tsecr_add = p.header.timestamps().1.wrapping_neg();
    }
}

/// Records what the entry knows of a session without a detour, in the numbers of the senders.
#[inline(always)]
fn take_in(s: &mut Session, d: &Detour, from: End, seg: &Segment, slot: u32) {
    if s.detours_before_path() {
        // The path's packets are the remote end's side.
        return;
    }
    let ended = match from {
        End::Local => {
            let _ = atomic::raise(&mut s.snd_max, d.out.sent);
            &mut s.life.fin_out
        }
        End::Remote => {
            let _ = atomic::raise(&mut s.rcv_max, d.back.sent);
            &mut s.life.fin_in
        }
    };
    if seg.has(FIN) {
        *ended |= life::SEEN;
    }
    closes(s, slot);
    let reset = seg.has(RST) && s.life.reset == 0 && from == End::Local;
    if reset {
        s.life.reset = life::SEEN | life::BY_END;
        maps::tell(EventKind::Reset, slot);
    }
}
