//! Packets of the local end, on their way out.

use aya_ebpf::programs::TcContext;
use dysco_common::seq::{after, max};
use dysco_common::session::{Session, State, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment};
use dysco_common::two_paths::{self, Copy};
use dysco_common::{Counter, EventKind, FlowRef, Path};

use crate::Verdict;
use crate::learn;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::{Direction, Packet, parse};
use crate::write::{self, Change};

/// Mark of a header-only copy on its second way through this program.
const COPY_MARK: u32 = 0xd75c_0c09;

/// Judges an outgoing packet.
#[inline(always)]
pub fn run(mut ctx: TcContext) -> Verdict {
    // SAFETY: a readable field of the context.
    let copy = unsafe { (*ctx.skb.skb).mark } == COPY_MARK;
    let run = if copy { Run::Copy } else { Run::Egress } as u32;
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return Verdict::Pass;
    };
    if parse(&ctx, Direction::Out, p).is_none() {
        return Verdict::Pass;
    }
    let decision = if copy {
        header_copy(&ctx, p, c)
    } else {
        decide(&mut ctx, p, c)
    };
    let verdict = match decision {
        Decision::Leave(verdict) => return verdict,
        Decision::OldPath => Verdict::Pass,
        Decision::NewPath { ifindex } => Verdict::Redirect { ifindex },
    };
    if !write::apply(&ctx, run) {
        count(Counter::DroppedError);
        return Verdict::Drop;
    }
    count(Counter::Translated);
    verdict
}

/// What is to be done with a packet.
enum Decision {
    /// Nothing.
    Leave(Verdict),
    /// Put the change in; it goes on as the stack routed it.
    OldPath,
    /// Put the change in; it leaves by this interface.
    NewPath { ifindex: u32 },
}

#[inline(always)]
fn decide(ctx: &mut TcContext, p: &mut Packet, c: &mut Change) -> Decision {
    let flow = maps::flow(&p.key);
    if flow.is_some_and(|f| f.path == Path::New as u32) {
        // Translated already, on its way to the interface.
        return Decision::Leave(Verdict::Pass);
    }
    if p.seg.has(SYN) {
        if learn::would_usurp(flow) {
            count(Counter::DroppedSyn);
            return Decision::Leave(Verdict::Drop);
        }
        learn::syn(ctx, Run::Egress, Direction::Out);
        return Decision::Leave(Verdict::Pass);
    }
    let Some(flow) = flow else {
        return Decision::Leave(Verdict::Pass);
    };
    let Some(s) = maps::session(flow.slot) else {
        return Decision::Leave(Verdict::Pass);
    };
    match State::from_word(s.state) {
        Some(State::Tracked | State::Opening) => {
            track(s, p, &flow);
            Decision::Leave(Verdict::Pass)
        }
        Some(State::TwoPaths) => two_paths(ctx, s, p, c, &flow),
        Some(State::NewPath) => {
            track(s, p, &flow);
            new_path(s, &p.seg, c)
        }
        Some(State::Tombstone) => {
            count(Counter::DroppedTombstone);
            Decision::Leave(Verdict::Drop)
        }
        Some(State::Free | State::Closed) | None => Decision::Leave(Verdict::Pass),
    }
}

/// Takes in what the segment teaches.
#[inline(always)]
fn track(s: &mut Session, p: &Packet, flow: &FlowRef) {
    let end = p.seg.end();
    if after(end, s.snd_max) {
        s.bytes_out += end.wrapping_sub(s.snd_max) as u64;
        s.snd_max = end;
    }
    if p.seg.has(ACK) && after(p.seg.ack, s.snd_ack) {
        s.snd_ack = p.seg.ack;
    }
    if p.header.starts_with_timestamps() {
        s.tsval_out = p.header.timestamps().0;
    }
    if p.seg.has(RST) {
        s.life.reset = 1;
        maps::tell(EventKind::Reset, flow.slot);
    } else if p.seg.has(FIN) {
        s.life.fin_out = 1;
    }
    if s.life.fin_out & s.life.fin_in != 0 && s.life.told == 0 {
        s.life.told = 1;
        maps::tell(EventKind::Closed, flow.slot);
    }
}

/// Makes the change that translates the segment onto the new path.
#[inline(always)]
fn new_path(s: &mut Session, seg: &Segment, c: &mut Change) -> Decision {
    c.edit = s.translation.outgoing(seg, &s.path);
    c.src = s.path.local;
    c.dst = s.path.remote;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
    s.new_packets = s.new_packets.wrapping_add(1);
    Decision::NewPath { ifindex: s.ifindex }
}

/// Makes the change that sends the segment the old way with other numbers.
#[inline(always)]
fn old_path(p: &Packet, seg: &Segment, c: &mut Change) -> Decision {
    c.edit = Edit {
        sport: p.key.local_port,
        dport: p.key.remote_port,
        seq: seg.seq,
        ack: seg.ack,
        window: seg.window,
        flags: seg.flags,
        ..Edit::default()
    };
    c.src = p.key.local;
    c.dst = p.key.remote;
    c.clear_ect = 0;
    c.pseudo = 0;
    Decision::OldPath
}

/// The two-path phase.
#[inline(always)]
fn two_paths(
    ctx: &mut TcContext,
    s: &mut Session,
    p: &mut Packet,
    c: &mut Change,
    flow: &FlowRef,
) -> Decision {
    if s.two.cut_armed | s.two.new_heard != 0 && s.two.cut_set == 0 {
        // The cutoff is the data plane's: here nothing after snd_max was sent.
        s.cut_out = s.snd_max;
        s.two.cut_set = 1;
    }
    track(s, p, flow);
    if two_paths::drains(s, &p.seg) {
        s.two.drained = 1;
        maps::tell(EventKind::Drained, flow.slot);
    }
    let out = two_paths::outgoing(s, &p.seg);
    if let Some(copy) = out.copy {
        send_copy(ctx, s, &copy);
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
        Path::New => new_path(s, &seg, c),
        Path::Old => {
            count(Counter::OldPath);
            if seg == p.seg {
                return Decision::Leave(Verdict::Pass);
            }
            old_path(p, &seg, c)
        }
    }
}

/// Each path's highest ack, so that a copy goes only where it says something.
#[inline(always)]
fn remember_ack(s: &mut Session, path: Path, ack: u32) {
    match path {
        Path::Old => {
            s.old_ack = if s.two.old_ack_set != 0 {
                max(s.old_ack, ack)
            } else {
                ack
            };
            s.two.old_ack_set = 1;
        }
        Path::New => {
            s.new_ack = if s.two.new_ack_set != 0 {
                max(s.new_ack, ack)
            } else {
                ack
            };
            s.two.new_ack_set = 1;
        }
    }
}

/// Sends a clone round through this program, which makes a header of it. The
/// mark of the original is as before when it returns.
#[inline(always)]
fn send_copy(ctx: &mut TcContext, s: &mut Session, copy: &Copy) {
    // SAFETY: fields of the context that the verifier lets a classifier write.
    let skb = unsafe { &mut *ctx.skb.skb };
    let mark = skb.mark;
    skb.mark = COPY_MARK;
    skb.cb[0] = copy.seq;
    skb.cb[1] = copy.ack;
    skb.cb[2] = copy.path as u32;
    skb.cb[3] = copy.flags as u32;
    let ifindex = skb.ifindex;
    let sent = ctx.clone_redirect(ifindex, 0);
    skb.mark = mark;
    if sent.is_ok() {
        count(Counter::Split);
        if copy.flags & ACK != 0 {
            remember_ack(s, copy.path, copy.ack);
        }
    }
}

/// The second way of a copy: trim it to a header, and send that.
#[inline(always)]
fn header_copy(ctx: &TcContext, p: &mut Packet, c: &mut Change) -> Decision {
    // SAFETY: fields of the context that the verifier lets a classifier use.
    let skb = unsafe { &mut *ctx.skb.skb };
    let (seq, ack, path, flags) = (skb.cb[0], skb.cb[1], skb.cb[2], skb.cb[3] as u8);
    let Some(flow) = maps::flow(&p.key) else {
        return Decision::Leave(Verdict::Drop);
    };
    if flow.path == Path::New as u32 {
        // A copy for the new path, on its third way: translated already. The
        // mark kept it from the scratch memory of the run that made it.
        skb.mark = 0;
        return Decision::Leave(Verdict::Pass);
    }
    if path == Path::Old as u32 {
        skb.mark = 0;
    }
    let Some(s) = maps::session(flow.slot) else {
        return Decision::Leave(Verdict::Drop);
    };
    let Some(length_diff) = write::trim(ctx, p) else {
        count(Counter::DroppedError);
        return Decision::Leave(Verdict::Drop);
    };
    let seg = Segment {
        seq,
        ack,
        flags,
        ..p.seg
    };
    let decision = if path == Path::Old as u32 {
        old_path(p, &seg, c)
    } else {
        new_path(s, &seg, c)
    };
    c.pseudo = length_diff;
    decision
}
