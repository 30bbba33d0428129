//! Sessions that this host relays: a proxy here had them, and both ends are elsewhere. Each of
//! the two entries acts for its remote end. A packet of that end arrives here and leaves by the
//! joined entry. The old path is this host's stack, until the proxy's sockets are closed.

use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS};
use aya_ebpf::programs::TcContext;
use dysco_common::seq::{after, before, max};
use dysco_common::session::{Session, State, life, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment, edit};
use dysco_common::two_paths::{self, ASKED, Anchor, NO_EDGE, OldIncoming};
use dysco_common::{Counter, EventKind, Path, mark};

use crate::Verdict;
use crate::atomic;
use crate::egress;
use crate::hop;
use crate::ingress::{self, dropped, received};
use crate::maps::{self, Flow, Run, Scratch, count, count_usual};
use crate::packet::{Direction, ETH_P_IP, ETH_P_IPV6, Found, Key, Packet, protocol, usual};
use crate::paths::{self, remember_ack, send_copy};
use crate::steady;
use crate::write::{self, Change};

/// Greatest distance of a reset from the highest number known, where the window is unknown.
const NEAR: u32 = 1 << 16;

const FAR: Anchor = Anchor::Far;

/// Lets a relayed packet leave unchanged.
#[inline(always)]
pub fn relayed(ctx: &TcContext, mark: u32) -> Verdict {
    set_mark(ctx, 0);
    if mark == mark::RELAYED_TEACHES {
        // SAFETY: the program's own context.
        unsafe { dysco_teach(ctx.skb.skb) };
    }
    Verdict::Pass
}

/// Stores the neighbour that the kernel has chosen for a relayed packet. Exported: see
/// [`dysco_far`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_teach(skb: *mut __sk_buff) -> u32 {
    let ctx = &TcContext::new(skb);
    let taught = match protocol(ctx) {
        Some(ETH_P_IP) => teach::<false>(ctx),
        Some(ETH_P_IPV6) => teach::<true>(ctx),
        _ => None,
    };
    taught.is_some() as u32
}

#[inline(always)]
fn teach<const V6: bool>(ctx: &TcContext) -> Option<()> {
    let p = usual::<V6>(ctx, Direction::Out)?;
    // The packet has the five-tuple of the end that it goes to.
    let Flow { s: o, .. } = maps::hinted::<V6>(ctx, Direction::Out, &p.short)?;
    let (s, _) = other(o)?;
    if s.state == State::Relay as u32 {
        hop::teach(ctx, s);
    }
    Some(())
}

#[inline(always)]
pub fn set_mark(ctx: &TcContext, mark: u32) {
    // SAFETY: a field of the context that the verifier lets a classifier write.
    unsafe { (*ctx.skb.skb).mark = mark };
}

/// Returns the session that this one is joined to, and this one's slot.
#[inline(always)]
pub fn other(s: &Session) -> Option<(&'static mut Session, u32)> {
    let other = maps::session(s.joined_to()?)?;
    let slot = other.joined_to()?;
    // The joined entry may belong to another session.
    let own = maps::session(slot)?;
    core::ptr::eq(own, s).then_some((other, slot))
}

/// Relays a packet of an end that has only one path. Returns false if the packet goes nowhere.
#[inline(always)]
pub fn relay(ctx: &TcContext, s: &mut Session, found: &Found) -> bool {
    let seg = &found.seg;
    let numbers = (seg.seq as u64) << 32 | seg.ack as u64;
    let v6 = found.v6 as u64;
    let rest = (seg.window as u64) << 16 | (seg.flags as u64) << 8 | v6;
    relay_short(
        ctx,
        s,
        numbers,
        (seg.len as u64) << 32 | rest,
        found.data_offset,
    )
}

/// Relays a packet, in a kernel function with a stack frame of its own, which counts in addition
/// to the caller's. Therefore no argument is a reference to the stack, and the change is
/// prepared in map memory.
#[inline(never)]
fn relay_short(
    ctx: &TcContext,
    s: &mut Session,
    numbers: u64,
    rest: u64,
    data_offset: usize,
) -> bool {
    let found = &Found {
        v6: rest & 1 != 0,
        data_offset,
        seg: Segment {
            seq: (numbers >> 32) as u32,
            ack: numbers as u32,
            len: (rest >> 32) as u32,
            window: (rest >> 16) as u16,
            flags: (rest >> 8) as u8,
        },
    };
    let Some(Scratch { change: c, .. }) = maps::scratch(Run::Ingress as u32) else {
        return false;
    };
    take_in(s, &found.seg);
    onto_new_path(s, s.translation.outgoing(&found.seg, &s.path), c);
    if !leave(ctx, s, found.v6) {
        return false;
    }
    let addresses = (&c.src, &c.dst);
    if write::short(ctx, found, &c.edit, addresses, c.clear_ect, 0).is_err() {
        count(Counter::DroppedError);
        return false;
    }
    count_usual(Counter::Relayed);
    true
}

/// Prepares the departure of a packet whose headers are still to be changed.
#[inline(always)]
fn leave(ctx: &TcContext, s: &mut Session, v6: bool) -> bool {
    if !write::hop_limit(ctx, v6) {
        count(Counter::DroppedHopLimit);
        return false;
    }
    s.new_in = s.new_in.wrapping_add(1);
    let mark = if s.relay != 0 {
        mark::STEERED
    } else if maps::xdp() && hop::is_asked(ctx, s) {
        mark::RELAYED_TEACHES
    } else {
        mark::RELAYED
    };
    set_mark(ctx, mark);
    true
}

/// Result of [`dysco_far`]: nothing is to be done.
pub const PASS: u64 = 0;
/// The packet is dropped, and counted.
pub const DROP: u64 = 1;
/// Apply the change; the packet continues to the stack.
pub const TO_STACK: u64 = 2;
/// Apply the change; the packet leaves towards the other end.
pub const TO_OTHER: u64 = 3;

/// Judges a packet of an end that is in the scratch memory of ingress.
#[inline(always)]
pub fn decide(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    unsafe { dysco_far(ctx.skb.skb) }
}

/// Exported, so that the verifier checks it once (see `learn::dysco_offer`), with a stack frame
/// of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_far(skb: *mut __sk_buff) -> u64 {
    let mut ctx = TcContext::new(skb);
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(Run::Ingress as u32)
    else {
        return DROP;
    };
    let Some(Flow { s, slot: own, .. }) = maps::find(&p.key) else {
        return DROP;
    };
    if s.state == State::Relay as u32 {
        take_in(s, &p.seg);
        onto_new_path(s, s.translation.outgoing(&p.seg, &s.path), c);
        return to_leave(&ctx, s, p.key.is_v6());
    }
    let Some((o, slot)) = other(s) else {
        to_stack_alone(s, p, own);
        return PASS;
    };
    // SAFETY: a readable field of the context.
    if unsafe { (*skb).mark } == mark::COPY_IN {
        return header_copy(&ctx, s, o, p, c);
    }
    from_end(&mut ctx, s, o, p, c, slot)
}

/// Takes in the window that the end offers this host's stack.
#[inline(always)]
pub fn offers(s: &Session, slot: u32, seg: &Segment) {
    let (Some(to), Some(edge)) = (two_paths::offered(s, seg), maps::edge(slot)) else {
        return;
    };
    if *edge == NO_EDGE {
        *edge = to;
    } else {
        atomic::raise(edge, to);
    }
}

/// Takes in a segment of the end as if the session were tracked: the joined entry has been taken
/// back. This one follows in a moment, or when a daemon starts again. A later cut would take
/// bytes that are not counted here for bytes of the new path, and would not wait until the proxy
/// has passed them on.
#[inline(always)]
fn to_stack_alone(s: &mut Session, p: &Packet, slot: u32) {
    let seg = &p.seg;
    if seg.flags & (FIN | RST) != 0 {
        ingress::ends(s, seg, seg.seq, slot);
    }
    if !seg.has(RST) {
        steady::arrived(s, seg);
    }
}

/// Relays a packet that has arrived for this entry by a path of its session. The path has
/// changed it to `seg` by `first`.
#[inline(always)]
pub fn onward(ctx: &TcContext, s: &mut Session, seg: &Segment, first: &Edit, run: u32) -> u64 {
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return DROP;
    };
    if write::is_unanswered(ctx, s, p.key.is_v6()) {
        return not(Counter::DroppedMarked);
    }
    take_in(s, seg);
    onto_new_path(s, s.translation.outgoing(seg, &s.path).after(first), c);
    to_leave(ctx, s, p.key.is_v6())
}

#[inline(always)]
fn to_leave(ctx: &TcContext, s: &mut Session, v6: bool) -> u64 {
    if leave(ctx, s, v6) { TO_OTHER } else { DROP }
}

#[inline(always)]
fn not(why: Counter) -> u64 {
    count(why);
    DROP
}

#[inline(always)]
fn onto_new_path(s: &Session, edit: Edit, c: &mut Change) {
    c.edit = edit;
    c.src = s.path.local;
    c.dst = s.path.remote;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
}

/// Takes in the numbers of a relayed segment.
#[inline(always)]
fn take_in(s: &mut Session, seg: &Segment) {
    let believed = seg.flags & (FIN | RST) == 0 || ends(s, seg);
    // The numbers of a FIN that is not believed, of a SYN and of a reset may be anything.
    if !believed || seg.flags & (SYN | RST) != 0 {
        return;
    }
    usual_taken_in(s, seg);
}

/// Takes in the numbers of a relayed segment that neither opens nor ends anything.
#[inline(always)]
pub fn usual_taken_in(s: &mut Session, seg: &Segment) {
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) {
        s.rcv_ack = seg.ack;
    }
}

/// Takes in the FIN or reset of an end. No socket of this host judges it. A segment that the
/// other end cannot believe ends nothing here either: otherwise anybody could end a silent
/// session (RFC 5961, section 3). The segment must not have been taken in yet. Returns false if
/// it cannot be believed.
#[inline(always)]
fn ends(s: &mut Session, seg: &Segment) -> bool {
    let Some((o, slot)) = other(s) else {
        return true;
    };
    let mut acked = o.rcv_ack.wrapping_sub(s.translation.seq_out);
    if s.two.returns | o.two.returns == 0 && after(acked, s.rcv_max) {
        // Nobody acknowledges bytes that have not been sent.
        acked = s.rcv_max.wrapping_sub(two_paths::widest_in(s));
    }
    // If a direction bypasses this host, only the client's part is known.
    let (low, high) = if o.two.returns != 0 {
        (acked, acked.wrapping_add(NEAR))
    } else if s.two.returns != 0 {
        (s.rcv_max.wrapping_sub(NEAR), s.rcv_max)
    } else {
        (acked, s.rcv_max)
    };
    if seg.has(RST) {
        let expected = !before(seg.seq, low) && !after(seg.seq, high);
        if !expected && !is_its_own(s, o, seg) {
            return false;
        }
        if s.life.reset == 0 {
            (s.life.reset, o.life.reset) = (life::SEEN | life::BY_END, life::SEEN);
            maps::tell(EventKind::Reset, slot);
        }
        return true;
    }
    if before(seg.end(), low) || after(seg.seq, high.wrapping_add(two_paths::widest_in(s))) {
        return false;
    }
    s.life.fin_in |= life::SEEN;
    o.life.fin_out |= life::SEEN;
    if two_paths::is_at_cutoff(s, seg) {
        o.life.fin_out |= life::AT_CUTOFF;
    }
    if s.life.fin_out != 0 && s.life.told == 0 {
        (s.life.told, o.life.told) = (1, 1);
        maps::tell(EventKind::Closed, slot);
    }
    true
}

/// Judges a packet of an end in the two-path phase.
#[inline(always)]
fn from_end(
    ctx: &mut TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &Packet,
    c: &mut Change,
    slot: u32,
) -> u64 {
    paths::cut_if_due(s, FAR);
    hear_end(s, o, p);
    offers(s, slot, &p.seg);
    // Only the number taken in counts: anybody may have sent the rest.
    let heard = Segment {
        ack: s.rcv_ack,
        ..p.seg
    };
    two_paths::acknowledge(s, &heard);
    two_paths::hear_window(FAR, s, &heard);
    if two_paths::drains(s, &heard) {
        s.two.drained = 1;
        maps::tell(EventKind::Drained, slot);
    }
    let out = two_paths::outgoing(FAR, s, &p.seg);
    if let Some(copy) = out.copy {
        send_copy(ctx, s, &copy, mark::COPY_IN, BPF_F_INGRESS as u64);
    }
    if p.seg.has(ACK) {
        remember_ack(s, out.path, out.ack);
    }
    let seg = Segment {
        seq: out.seq,
        ack: out.ack,
        ..p.seg
    };
    match out.path {
        Path::New => to_other(ctx, s, o, p, c, &seg, 0),
        Path::Old => {
            count(Counter::OldPath);
            if seg == p.seg && (s.two.new_data == 0 || p.header.is_usual()) {
                return PASS;
            }
            to_stack(s, p, c, &seg, 0)
        }
    }
}

/// Highest number sent to an end by either path.
#[inline(always)]
fn sent_to(s: &Session, o: &Session) -> u32 {
    if s.two.new_data == 0 {
        return s.snd_max;
    }
    let relayed = o.rcv_max.wrapping_add(o.translation.seq_out);
    // Once the end has all old data, the relayed number may be more than 2 GiB ahead.
    if two_paths::has_all_old(s) {
        relayed
    } else {
        max(s.snd_max, relayed)
    }
}

/// True if a reset is this end's own although its number is old. The kernel numbers such a reset
/// by the end of the window, which the old path has taken back. Only the end itself knows the
/// number that it has acknowledged.
#[inline(always)]
fn is_its_own(s: &Session, o: &Session, seg: &Segment) -> bool {
    s.state == State::FarTwoPaths as u32
        && two_paths::is_shut_in(FAR, s, seg)
        && !before(seg.ack, s.rcv_ack)
        && !after(seg.ack, sent_to(s, o))
}

/// Takes in a segment of the end in the two-path phase. The bytes that it acknowledges were sent
/// by the stack, or relayed from the other end.
#[inline(always)]
fn hear_end(s: &mut Session, o: &mut Session, p: &Packet) {
    let seg = &p.seg;
    let believed = seg.flags & (FIN | RST) == 0 || ends(s, seg);
    if !believed || seg.has(RST) {
        return;
    }
    let sent = sent_to(s, o);
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) && !after(seg.ack, sent) {
        s.rcv_ack = seg.ack;
    }
    if p.header.starts_with_timestamps() {
        s.tsval_in = p.header.timestamps().0;
    }
}

/// True if a segment of the end takes the new path.
#[inline(always)]
pub fn is_of_new_path(s: &Session, seg: &Segment) -> bool {
    s.two.cut_set != 0 && !before(seg.seq, s.cut_out)
}

/// True if the other end has not opened its window for this data yet. The proxy still holds what
/// precedes it.
#[inline(always)]
fn is_beyond_window(s: &Session, o: &Session, seq: u32, len: u32) -> bool {
    let edge = s.joined_to().and_then(maps::edge);
    edge.is_some_and(|edge| two_paths::is_beyond(o, *edge, seq, len))
}

/// Sends a segment of this end to the other, unless that end must not receive it.
#[inline(always)]
fn to_other(
    ctx: &TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &Packet,
    c: &mut Change,
    seg: &Segment,
    pseudo: u64,
) -> u64 {
    // In map memory: the stack has no room for another edit.
    onto_new_path(s, s.translation.outgoing(seg, &s.path), c);
    c.pseudo = pseudo;
    if is_beyond_window(s, o, c.edit.seq, seg.len) {
        return not(Counter::BeyondWindow);
    }
    let arrives = Segment {
        seq: c.edit.seq,
        ack: c.edit.ack,
        window: c.edit.window,
        ..*seg
    };
    if !paths::hear(o, FAR, p, &arrives, &mut c.edit) {
        return not(Counter::AckWithheld);
    }
    to_leave(ctx, s, p.key.is_v6())
}

/// Delivers a segment of the end to this host's stack, with other numbers. Removes SACK blocks
/// of bytes that the stack has not sent: the host's connection tracking would call the segment
/// invalid.
#[inline(always)]
fn to_stack(s: &Session, p: &Packet, c: &mut Change, seg: &Segment, pseudo: u64) -> u64 {
    let key = &p.key.whole;
    c.edit = Edit {
        sport: key.remote_port,
        dport: key.local_port,
        seq: seg.seq,
        ack: seg.ack,
        window: seg.window,
        flags: seg.flags,
        ..Edit::default()
    };
    let sacks = two_paths::sacks(FAR, s, Path::Old);
    if sacks.limited {
        c.edit.strip |= edit::LIMIT_SACK;
        c.edit.sack_limit = sacks.to;
    }
    c.src = key.remote;
    c.dst = key.local;
    c.clear_ect = 0;
    c.pseudo = pseudo;
    TO_STACK
}

/// Handles a copy on its second pass: trims it to a header, and sends the header.
#[inline(always)]
fn header_copy(
    ctx: &TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &mut Packet,
    c: &mut Change,
) -> u64 {
    // SAFETY: fields of the context that the verifier lets a classifier use.
    let skb = unsafe { &mut *ctx.skb.skb };
    let (seq, ack, path, rest) = (skb.cb[0], skb.cb[1], skb.cb[2], skb.cb[3]);
    skb.mark = 0;
    let Some(length_diff) = write::trim(ctx, p) else {
        return not(Counter::DroppedError);
    };
    let seg = Segment {
        seq,
        ack,
        window: (rest >> 16) as u16,
        flags: rest as u8,
        ..p.seg
    };
    if path == Path::Old as u32 {
        to_stack(s, p, c, &seg, length_diff)
    } else {
        to_other(ctx, s, o, p, c, &seg, length_diff)
    }
}

/// Judges a packet that this host's stack sends to a remote end by the old path. The end
/// receives the packet as the old path may show it.
#[inline(always)]
pub fn to_end(ctx: &TcContext, s: &mut Session, key: &Key, found: &Found, slot: u32) -> Verdict {
    let seg = &found.seg;
    if let Some(seg) = two_paths::taught(FAR, s, seg) {
        egress::track(ctx, s, &Found { seg, ..*found }, slot);
    }
    if two_paths::asks(FAR, s, seg) {
        s.two.old_ack_set |= ASKED;
    }
    let told = match two_paths::old_incoming(FAR, s, seg, FAR.wscale(s)) {
        OldIncoming::Deliver(told) => told,
        OldIncoming::Drop => return dropped(Counter::DroppedLateOld),
        OldIncoming::Withhold => return dropped(Counter::AckWithheld),
    };
    if two_paths::breaks(FAR, s, &told) {
        ingress::was_broken(s, slot);
    }
    if told == *seg {
        return Verdict::Pass;
    }
    let Some(Scratch { change: c, .. }) = egress::take(ctx, Run::Egress, key, found) else {
        return Verdict::Drop;
    };
    egress::old_path(key, &told, c);
    if told.ack != seg.ack {
        c.edit.strip |= edit::SACK;
    }
    if !write::apply(ctx, Run::Egress as u32) {
        return dropped(Counter::DroppedError);
    }
    Verdict::Pass
}
