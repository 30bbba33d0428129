//! Sessions whose bytes take a detour through a handler process. `common::detour` decides; the
//! handler's sockets are in a namespace behind a link of Ethernet, whose end on this host runs
//! [`comes`].

use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS};
use aya_ebpf::programs::TcContext;
use dysco_common::detour::{Detour, End, HANDLER_ADDRESS, Header, Way, cut, from_end, from_socket};
use dysco_common::seq::max;
use dysco_common::session::{Session, life};
use dysco_common::tcp::{ACK, Edit, FIN, MIN_HEADER, RST, Segment, edit};
use dysco_common::two_paths::Copy;
use dysco_common::{Counter, EventKind, Path, mark};

use crate::Verdict;
use crate::atomic::{self, compare_exchange};
use crate::egress;
use crate::maps::{self, Flow, Run, Scratch, count};
use crate::packet::{Direction, Found, Key, find, load};
use crate::paths::send_copy;
use crate::relay::set_mark;
use crate::write::{self, Change};

/// Result of [`dysco_detour`]: the packet is dropped.
const DROP: u32 = 0;
/// Apply the change; the packet continues.
const DIRECT: u32 = 1;
/// Apply the change; the packet goes to the handler.
const HANDLER: u32 = 2;
/// The packet continues unchanged.
const UNCHANGED: u32 = 3;

/// Judges a packet of the local end.
#[inline(always)]
pub fn leaves(ctx: &TcContext) -> Verdict {
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(ctx, Direction::Out, key) else {
        return Verdict::Drop;
    };
    let Some(Flow { s, slot, .. }) = maps::find(key) else {
        return Verdict::Drop;
    };
    if egress::mark_of(ctx) == mark::COPY {
        return copy_leaves(ctx, key, &found, slot);
    }
    if egress::take(ctx, Run::Egress, key, &found).is_none() {
        return Verdict::Drop;
    }
    if let Some((tsval, _)) = found.timestamps(ctx) {
        s.tsval_out = tsval;
    }
    let fate = judge(ctx, slot, Run::Egress);
    if fate != DROP && fate != UNCHANGED && !write::apply(ctx, Run::Egress as u32) {
        return dropped(Counter::DroppedError);
    }
    verdict(ctx, fate, slot, Verdict::Pass)
}

/// Judges a packet of the remote end.
#[inline(always)]
pub fn arrives(ctx: &TcContext) -> Verdict {
    let run = Run::Ingress as u32;
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(ctx, Direction::In, key) else {
        return Verdict::Drop;
    };
    let Some(Flow { s, slot, .. }) = maps::find(key) else {
        return Verdict::Drop;
    };
    let mark = egress::mark_of(ctx);
    if mark == mark::DELIVERED {
        set_mark(ctx, 0);
        return Verdict::Pass;
    }
    let Some(Scratch { packet: p, .. }) = maps::scratch(run) else {
        return Verdict::Drop;
    };
    if load(ctx, key, &found, p).is_none() {
        return Verdict::Drop;
    }
    let fate = if mark == mark::COPY_IN {
        // SAFETY: the program's own context.
        unsafe { dysco_detour_copy(ctx.skb.skb, run) }
    } else {
        if p.header.starts_with_timestamps() {
            s.tsval_in = p.header.timestamps().0;
        }
        judge(ctx, slot, Run::Ingress)
    };
    if fate != DROP && fate != UNCHANGED && !write::apply(ctx, run) {
        return dropped(Counter::DroppedError);
    }
    let direct = if fate == UNCHANGED {
        Verdict::Pass
    } else {
        Verdict::Changed
    };
    verdict(ctx, fate, slot, direct)
}

/// Sends a copy of a packet of the local end, on its second pass.
#[inline(always)]
fn copy_leaves(ctx: &TcContext, key: &Key, found: &Found, slot: u32) -> Verdict {
    if egress::take(ctx, Run::Copy, key, found).is_none() {
        return Verdict::Drop;
    }
    // SAFETY: the program's own context.
    let fate = unsafe { dysco_detour_copy(ctx.skb.skb, Run::Copy as u32) };
    if fate == DROP || !write::apply(ctx, Run::Copy as u32) {
        return Verdict::Drop;
    }
    verdict(ctx, fate, slot, Verdict::Pass)
}

#[inline(always)]
fn judge(ctx: &TcContext, slot: u32, run: Run) -> u32 {
    let run = run as u32;
    if dysco_route(slot, run) == 0 {
        return DROP;
    }
    // SAFETY: the program's own context.
    unsafe { dysco_detour(ctx.skb.skb, slot, run) }
}

#[inline(always)]
fn verdict(ctx: &TcContext, fate: u32, slot: u32, direct: Verdict) -> Verdict {
    if fate == DROP {
        return Verdict::Drop;
    }
    if fate != HANDLER {
        return direct;
    }
    let Some(d) = maps::detour(slot) else {
        return Verdict::Drop;
    };
    if ctx.store(0, &HANDLER_ADDRESS, 0).is_err() {
        return dropped(Counter::DroppedError);
    }
    count(Counter::ToHandler);
    Verdict::Handler { ifindex: d.handler }
}

/// Sets the cutoff of a direction if it is due. `highest` is the highest number that its sender
/// has sent without a detour. Returns false while another program does so. User space sets the
/// cutoff of a direction from an end that has a detour on its own host (`elsewhere`).
#[inline(always)]
fn cut_if_due(way: &mut Way, highest: u32, elsewhere: bool) -> bool {
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

/// Returns the end that sent the packet of a run.
#[inline(always)]
fn sender(run: u32) -> End {
    if run == Run::Ingress as u32 {
        End::Remote
    } else {
        End::Local
    }
}

/// Scale of the windows that an end sends.
#[inline(always)]
fn scale_of(s: &Session, end: End) -> u8 {
    match end {
        End::Local => s.local_wscale(),
        End::Remote => s.remote_wscale(),
    }
}

/// Decides the route of a packet of an end in the scratch memory of a run, and leaves it there.
/// Returns 0 if the packet must be dropped. Exported for a stack frame of its own (see also
/// `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_route(slot: u32, run: u32) -> u32 {
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
    let (way, highest) = match from {
        End::Local => (&mut d.out, s.snd_max),
        End::Remote => (&mut d.back, s.rcv_max),
    };
    let elsewhere = d.paired != 0 && from == End::Remote;
    let was_cut = way.cut_set;
    if !cut_if_due(way, highest, elsewhere) {
        return 0;
    }
    if d.paired != 0 && was_cut != d.out.cut_set && from == End::Local {
        // The other host waits for it.
        maps::tell(EventKind::Rerouted, slot);
    }
    let was_done = d.out.is_done() as u32 + d.back.is_done() as u32;
    from_end(d, from, &p.seg, scale_of(s, from), route);
    take_in(s, d, from, &p.seg, slot);
    if d.out.is_done() as u32 + d.back.is_done() as u32 != was_done {
        maps::tell(EventKind::Rerouted, slot);
    }
    1
}

/// Prepares the change of a packet of an end in the scratch memory of a run, whose route is
/// decided. Exported: see [`dysco_route`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_detour(skb: *mut __sk_buff, slot: u32, run: u32) -> u32 {
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
unsafe extern "C" fn dysco_detour_copy(skb: *mut __sk_buff, run: u32) -> u32 {
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

/// Prepares the change of a packet that keeps its five-tuple.
#[inline(always)]
fn prepare(flags: u8, key: &Key, from: End, header: &Header, c: &mut Change) {
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

/// Removes the echo of a clock that is not the socket's: the ends see each other's clocks, so that
/// no clock steps back when the handler leaves. A stack ignores an echo of 0 (`tcp_ack_update_rtt`
/// and `tcp_packet_delayed`, net/ipv4/tcp_input.c).
#[inline(always)]
fn without_echo(p: &crate::packet::Packet, c: &mut Change) {
    if p.header.starts_with_timestamps() {
        c.edit.tsecr_add = p.header.timestamps().1.wrapping_neg();
    }
}

/// Records what the entry knows of a session without a detour, in the numbers of the senders.
#[inline(always)]
fn take_in(s: &mut Session, d: &Detour, from: End, seg: &Segment, slot: u32) {
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

/// Tells user space once that both ends have ended.
#[inline(always)]
fn closes(s: &mut Session, slot: u32) {
    if s.life.fin_out & s.life.fin_in != 0 && s.life.notified == 0 {
        s.life.notified = 1;
        maps::tell(EventKind::Closed, slot);
    }
}

/// Judges a packet that a handler's socket sends to its end.
#[inline(always)]
pub fn comes(ctx: &TcContext) -> Verdict {
    let mut key = Key::default();
    let key = &mut key;
    // The near socket has the address of the remote end, and the far one that of the local end.
    let mut run = find(ctx, Direction::In, key).map(|found| (End::Local, found));
    let mut flow = maps::find(key);
    if flow.is_none() {
        run = find(ctx, Direction::Out, key).map(|found| (End::Remote, found));
        flow = maps::find(key);
    }
    let (Some((to, found)), Some(Flow { s, slot, .. })) = (run, flow) else {
        return Verdict::Drop;
    };
    let Some(Scratch { packet: p, .. }) = maps::scratch(Run::Ingress as u32) else {
        return Verdict::Drop;
    };
    if load(ctx, key, &found, p).is_none() {
        return Verdict::Drop;
    }
    let fate = dysco_from_handler(slot, (to == End::Remote) as u32);
    if fate == DROP {
        return dropped(Counter::DroppedHandler);
    }
    if found.seg.has(RST) && s.life.reset == 0 {
        s.life.reset = life::SEEN;
        maps::tell(EventKind::Reset, slot);
    }
    if !write::apply(ctx, Run::Ingress as u32) {
        return dropped(Counter::DroppedError);
    }
    count(Counter::FromHandler);
    let Some(d) = maps::detour(slot) else {
        return Verdict::Drop;
    };
    if to == End::Remote {
        set_mark(ctx, mark::RELAYED);
        return Verdict::Redirect {
            ifindex: d.interface,
        };
    }
    set_mark(ctx, mark::DELIVERED);
    let [a, b, e, f, g, h, ..] = d.address;
    if ctx.store(0, &[a, b, e, f, g, h], 0).is_err() {
        return dropped(Counter::DroppedError);
    }
    Verdict::Deliver {
        ifindex: d.interface,
    }
}

/// Prepares the change of a packet of a handler's socket in the scratch memory of ingress.
/// Exported: see [`dysco_detour`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_from_handler(slot: u32, remote: u32) -> u32 {
    let (
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }),
        Some(s),
        Some(d),
    ) = (
        maps::scratch(Run::Ingress as u32),
        maps::session(slot),
        maps::detour(slot),
    )
    else {
        return DROP;
    };
    let (to, highest, clock) = if remote != 0 {
        (End::Remote, s.snd_max, s.tsval_out)
    } else {
        (End::Local, s.rcv_max, s.tsval_in)
    };
    let elsewhere = d.paired != 0;
    let (_, way) = d.ways(to);
    if p.seg.span() > 0 && !cut_if_due(way, highest, elsewhere) {
        return DROP;
    }
    // The end applies the scale of the other end to the windows that it receives.
    let scale = scale_of(s, to.other());
    let was_done = d.out.is_done() as u32 + d.back.is_done() as u32;
    let Some(out) = from_socket(d, to, &p.seg, scale) else {
        return DROP;
    };
    if d.out.is_done() as u32 + d.back.is_done() as u32 != was_done {
        maps::tell(EventKind::Rerouted, slot);
    }
    if elsewhere {
        // What the other end sends comes by this socket alone.
        let _ = atomic::raise(&mut s.rcv_max, d.back.sent);
        if p.seg.has(FIN) {
            s.life.fin_in |= life::SEEN;
        }
        closes(s, slot);
    }
    // Packets to the local end have the remote end as their source.
    prepare(p.seg.flags, &p.key, to.other(), &out, c);
    if p.header.data_offset() > MIN_HEADER && p.header.starts_with_timestamps() {
        c.edit.tsval_add = clock.wrapping_sub(p.header.timestamps().0);
    }
    DIRECT
}

#[inline(always)]
fn dropped(why: Counter) -> Verdict {
    count(why);
    Verdict::Drop
}
