//! Sessions that this host relays: a proxy here had them, and both ends are
//! elsewhere. Each of its two entries acts for its remote end. What that end
//! sends comes in here and goes out by the entry that this one is joined to;
//! the old path is this host's stack, until the proxy's sockets are closed.

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
use crate::packet::{Direction, ETH_P_IP, ETH_P_IPV6, Found, Key, Packet, at, usual};
use crate::paths::{self, remember_ack, send_copy};
use crate::steady;
use crate::write::{self, Change};

/// How far a reset may be from the highest number known, where the window is not.
const NEAR: u32 = 1 << 16;

const FAR: Anchor = Anchor::Far;

/// A relayed packet leaves as it is.
#[inline(always)]
pub fn relayed(ctx: &TcContext, mark: u32) -> Verdict {
    set_mark(ctx, 0);
    if mark == mark::RELAYED_TEACHES {
        // SAFETY: the program's own context.
        unsafe { dysco_teach(ctx.skb.skb) };
    }
    Verdict::Pass
}

/// Keeps the neighbour that the kernel has chosen for a relayed packet. Exported:
/// see [`dysco_far`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_teach(skb: *mut __sk_buff) -> u32 {
    let ctx = &TcContext::new(skb);
    let taught = match at::<u16>(ctx, 12).map(u16::from_be) {
        Some(ETH_P_IP) => teach::<false>(ctx),
        Some(ETH_P_IPV6) => teach::<true>(ctx),
        _ => None,
    };
    taught.is_some() as u32
}

#[inline(always)]
fn teach<const V6: bool>(ctx: &TcContext) -> Option<()> {
    let p = usual::<V6>(ctx, Direction::Out)?;
    // It bears the five-tuple of the end that it goes to.
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

/// The session that this one is joined to, and this one's slot.
#[inline(always)]
pub fn other(s: &Session) -> Option<(&'static mut Session, u32)> {
    let other = maps::session(s.joined_to()?)?;
    let slot = other.joined_to()?;
    // It may be another's by now.
    let own = maps::session(slot)?;
    core::ptr::eq(own, s).then_some((other, slot))
}

/// Relays a packet of an end; there is no other path. False if it goes nowhere.
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

/// A function of its own in the kernel, for its stack frame, which is added to
/// the caller's: so nothing is handed over by reference that would have to lie
/// there for it, and the change is made in map memory.
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

/// Makes ready to leave a packet whose headers are still to be changed.
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

/// What [`dysco_far`] says: nothing is to be done.
pub const PASS: u64 = 0;
/// The packet is dropped, and counted.
pub const DROP: u64 = 1;
/// Put the change in; it goes on to the stack.
pub const TO_STACK: u64 = 2;
/// Put the change in; it leaves towards the other end.
pub const TO_OTHER: u64 = 3;

/// Judges a packet of an end, which lies in the scratch memory of ingress.
#[inline(always)]
pub fn decide(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    unsafe { dysco_far(ctx.skb.skb) }
}

/// Exported, so that the verifier goes through it once (see
/// `learn::dysco_offer`), and with a stack frame of its own.
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

/// Takes in which window the end offers this host's stack.
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

/// Takes in what a segment of the end teaches as if the session were tracked: the entry
/// that this one was joined to has been taken back, and this one is in a moment, or when
/// a daemon starts again. What is not counted here would be of the new path to a later
/// cut, which would not wait until the proxy has passed it on.
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

/// Relays a packet that has come for this entry by a path of its session, which has
/// made of it `seg` by `first`.
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

/// Takes in what a segment teaches that is relayed.
#[inline(always)]
fn take_in(s: &mut Session, seg: &Segment) {
    let believed = seg.flags & (FIN | RST) == 0 || ends(s, seg);
    // Their numbers may be anything.
    if !believed || seg.flags & (SYN | RST) != 0 {
        return;
    }
    usual_taken_in(s, seg);
}

/// The same of a segment that neither opens nor ends anything.
#[inline(always)]
pub fn usual_taken_in(s: &mut Session, seg: &Segment) {
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) {
        s.rcv_ack = seg.ack;
    }
}

/// An end closes its half, or resets. No socket of this host judges that: what the
/// other end cannot believe ends nothing here either, or anybody could end a silent
/// session (RFC 5961, section 3). The segment must not have been taken in yet. False of
/// what cannot be believed.
#[inline(always)]
fn ends(s: &mut Session, seg: &Segment) -> bool {
    let Some((o, slot)) = other(s) else {
        return true;
    };
    let mut acked = o.rcv_ack.wrapping_sub(s.translation.seq_out);
    if s.two.returns | o.two.returns == 0 && after(acked, s.rcv_max) {
        // Nobody acknowledges what has not been sent.
        acked = s.rcv_max.wrapping_sub(two_paths::widest_in(s));
    }
    // Of the direction that passes this host by only the client's part is
    // known.
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
    // What was taken in: anybody may have sent the rest.
    let heard = Segment {
        ack: s.rcv_ack,
        ..p.seg
    };
    two_paths::acknowledge(s, &heard);
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

/// How far an end was sent by either path.
#[inline(always)]
fn sent_to(s: &Session, o: &Session) -> u32 {
    if s.two.new_data == 0 {
        return s.snd_max;
    }
    let relayed = o.rcv_max.wrapping_add(o.translation.seq_out);
    // Then it may be more than 2 GiB ahead.
    if two_paths::has_all_old(s) {
        relayed
    } else {
        max(s.snd_max, relayed)
    }
}

/// Is a reset with a number from before the old path took its window back this end's own?
/// Nobody else knows what it has acknowledged.
#[inline(always)]
fn is_its_own(s: &Session, o: &Session, seg: &Segment) -> bool {
    s.state == State::FarTwoPaths as u32
        && two_paths::is_shut_in(FAR, s, seg)
        && !before(seg.ack, s.rcv_ack)
        && !after(seg.ack, sent_to(s, o))
}

/// Takes in what a segment of the end teaches in the two-path phase. What it
/// acknowledges was sent by the stack, or relayed from the other end.
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

/// Does a segment of the end take the new path?
#[inline(always)]
pub fn is_of_new_path(s: &Session, seg: &Segment) -> bool {
    s.two.cut_set != 0 && !before(seg.seq, s.cut_out)
}

/// Has the other end no window yet for data of this one? The proxy holds what comes before.
#[inline(always)]
fn is_beyond_window(s: &Session, o: &Session, seq: u32, len: u32) -> bool {
    let edge = s.joined_to().and_then(maps::edge);
    edge.is_some_and(|edge| two_paths::is_beyond(o, *edge, seq, len))
}

/// Sends a segment of this end to the other, if that may hear of it.
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

/// Hands a segment of the end to this host's stack, with other numbers, and without blocks
/// of what that has not sent: its connection tracking would take them for invalid.
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

/// The second way of a copy: trim it to a header, and send that.
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

/// Judges a packet of this host's stack for a remote end: the old path, as that
/// end would hear of it.
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
