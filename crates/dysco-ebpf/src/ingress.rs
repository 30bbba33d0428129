//! Packets for the local end, on their way in.

use aya_ebpf::programs::TcContext;
use dysco_common::seq::{after, before};
use dysco_common::session::{Session, State, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment, edit};
use dysco_common::two_paths::{self, OldIncoming};
use dysco_common::{Counter, EventKind, FlowRef, Path};

use crate::Verdict;
use crate::learn;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::{Direction, Packet, parse};
use crate::write::{self, Change};

/// Judges an incoming packet.
#[inline(always)]
pub fn run(ctx: TcContext) -> Verdict {
    let run = Run::Ingress as u32;
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return Verdict::Pass;
    };
    if parse(&ctx, Direction::In, p).is_none() {
        return Verdict::Pass;
    }
    match decide(&ctx, p, c) {
        Decision::Leave(verdict) => verdict,
        Decision::Write {
            counter,
            failure,
            then,
        } => {
            if write::apply(&ctx, run) {
                counter.map(count);
                then
            } else {
                dropped(failure)
            }
        }
    }
}

/// What is to be done with a packet.
enum Decision {
    /// Nothing.
    Leave(Verdict),
    /// Put the change in, count it, or count the failure.
    Write {
        counter: Option<Counter>,
        failure: Counter,
        then: Verdict,
    },
}

#[inline(always)]
fn decide(ctx: &TcContext, p: &mut Packet, c: &mut Change) -> Decision {
    let flow = maps::flow(&p.key);
    let new = flow.is_some_and(|f| f.path == Path::New as u32);
    if p.seg.has(SYN) && !new {
        if learn::would_usurp(flow) {
            return Decision::Leave(dropped(Counter::DroppedSyn));
        }
        learn::syn(ctx, Run::Ingress, Direction::In);
        return Decision::Leave(Verdict::Pass);
    }
    let Some(flow) = flow else {
        return Decision::Leave(Verdict::Pass);
    };
    let Some(s) = maps::session(flow.slot) else {
        return Decision::Leave(Verdict::Pass);
    };
    let state = State::from_word(s.state);
    if new {
        return match state {
            Some(State::TwoPaths) if p.seg.has(SYN) => syn_on_new_path(s, p, c, &flow),
            Some(State::TwoPaths) => from_new_path(s, p, c, &flow, true),
            Some(State::NewPath) if !p.seg.has(SYN) => from_new_path(s, p, c, &flow, false),
            // No socket knows this five-tuple: its answer would be a reset.
            _ => Decision::Leave(dropped(Counter::DroppedStray)),
        };
    }
    match state {
        Some(State::Tracked | State::Opening) => {
            track(s, p, &flow);
            if s.clamp > 0 {
                from_old_path(s, p, c)
            } else {
                Decision::Leave(Verdict::Pass)
            }
        }
        Some(State::TwoPaths) => {
            if !two_paths::proxy_ends(s, &p.seg) {
                track(s, p, &flow);
            }
            from_old_path(s, p, c)
        }
        Some(State::NewPath) => Decision::Leave(dropped(Counter::DroppedLateOld)),
        Some(State::Tombstone) => Decision::Leave(dropped(Counter::DroppedTombstone)),
        Some(State::Free | State::Closed) | None => Decision::Leave(Verdict::Pass),
    }
}

#[inline(always)]
fn dropped(why: Counter) -> Verdict {
    count(why);
    Verdict::Drop
}

/// Takes in what a segment on the session's own five-tuple teaches.
#[inline(always)]
fn track(s: &mut Session, p: &Packet, flow: &FlowRef) {
    let end = p.seg.end();
    if after(end, s.rcv_max) {
        s.bytes_in += end.wrapping_sub(s.rcv_max) as u64;
        s.rcv_max = end;
    }
    // An ack of what was never sent is nobody's of this session.
    if p.seg.has(ACK) && after(p.seg.ack, s.rcv_ack) && !after(p.seg.ack, s.snd_max) {
        s.rcv_ack = p.seg.ack;
    }
    if p.header.starts_with_timestamps() {
        s.tsval_in = p.header.timestamps().0;
    }
    if p.seg.flags & (FIN | RST) != 0 {
        ends(s, p, flow);
    }
}

#[inline(always)]
fn ends(s: &mut Session, p: &Packet, flow: &FlowRef) {
    if p.seg.has(RST) {
        s.life.reset = 1;
        maps::tell(EventKind::Reset, flow.slot);
    } else {
        s.life.fin_in = 1;
    }
}

/// Delivers a segment of the old path with the window it may announce.
#[inline(always)]
fn from_old_path(s: &Session, p: &Packet, c: &mut Change) -> Decision {
    let (ack, window, flags) = match two_paths::old_incoming(s, &p.seg, s.remote_wscale()) {
        OldIncoming::Deliver { ack, window, flags } => (ack, window, flags),
        OldIncoming::Drop => return Decision::Leave(dropped(Counter::DroppedLateOld)),
        OldIncoming::Withhold => return Decision::Leave(dropped(Counter::AckWithheld)),
    };
    if ack == p.seg.ack && window == p.seg.window && flags == p.seg.flags {
        return Decision::Leave(Verdict::Pass);
    }
    c.edit = Edit {
        sport: p.key.remote_port,
        dport: p.key.local_port,
        seq: p.seg.seq,
        ack,
        window,
        flags,
        strip: if ack == p.seg.ack { 0 } else { edit::SACK },
        ..Edit::default()
    };
    c.src = p.key.remote;
    c.dst = p.key.local;
    c.clear_ect = 0;
    c.pseudo = 0;
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Changed,
    }
}

/// The new path opens with SYN and SYN-ACK between the two data planes; no
/// socket hears of them.
#[inline(always)]
fn syn_on_new_path(s: &mut Session, p: &Packet, c: &mut Change, flow: &FlowRef) -> Decision {
    if p.seg.has(ACK) {
        maps::tell(EventKind::PathOpen, flow.slot);
        return Decision::Leave(Verdict::Drop);
    }
    c.edit = two_paths::answer_syn(s, &p.seg);
    c.src = s.path.local;
    c.dst = s.path.remote;
    c.clear_ect = 0;
    c.pseudo = 0;
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Redirect { ifindex: s.ifindex },
    }
}

/// Translates a segment of the new path for the local end.
#[inline(always)]
fn from_new_path(
    s: &mut Session,
    p: &Packet,
    c: &mut Change,
    flow: &FlowRef,
    two_paths: bool,
) -> Decision {
    let mut e = s.translation.incoming(&p.seg, &s.key);
    if p.seg.flags & (FIN | RST) != 0 {
        ends(s, p, flow);
    }
    s.new_packets = s.new_packets.wrapping_add(1);
    if two_paths {
        let seg = Segment {
            seq: e.seq,
            ack: e.ack,
            window: e.window,
            ..p.seg
        };
        let judged = two_paths::new_incoming(s, &seg, s.remote_wscale());
        s.two.new_heard = 1;
        if seg.span() > 0 && (s.two.new_data == 0 || before(seg.seq, s.new_low)) {
            s.new_low = seg.seq;
            s.two.new_data = 1;
        }
        if seg.has(ACK) && !seg.has(RST) {
            s.edge = judged.edge;
            s.far_ack = judged.far_ack;
            s.two.edge_set = 1;
        }
        if !judged.deliver {
            return Decision::Leave(dropped(Counter::AckWithheld));
        }
        e.ack = judged.ack;
        e.window = judged.window;
        // The far end echoes the proxy's clock until it has all of the old
        // path. Turned into this end's it lags by the lead of the new path's,
        // and this end would take each of its time-outs for a spurious one
        // (RFC 3522) and forget what it has to repeat.
        if s.two.cut_set != 0 && !after(e.ack, s.cut_out) && p.header.starts_with_timestamps() {
            e.tsecr_add = s.tsval_out.wrapping_sub(p.header.timestamps().1);
        }
        if judged.strip_sack {
            e.strip |= edit::SACK;
        }
    }
    c.edit = e;
    c.src = s.key.remote;
    c.dst = s.key.local;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
    Decision::Write {
        counter: Some(Counter::Translated),
        failure: Counter::DroppedUnparsed,
        then: Verdict::Changed,
    }
}
