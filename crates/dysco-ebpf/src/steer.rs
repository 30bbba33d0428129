//! A session that this host relays, with a chain on one side. A packet relayed to that side
//! takes the paths of the session like a packet of a stack: it is marked and passes the egress
//! program, which finds the entries (`second_path`). An entry of these paths names the relay's
//! entry, which relays the packets that arrive by them. The numbers of these paths are those of the
//! session on that side. The relay translates as without a chain.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::session::{Session, State};
use dysco_common::tcp::{Edit, RST, SYN, Segment};
use dysco_common::two_paths::{self, opens_windows};
use dysco_common::{Counter, EventKind};

use crate::maps::{self, Flow, Run, Scratch, count};
use crate::packet::Found;
use crate::relay;
use crate::second_path;
use crate::verdict::Verdict;
use crate::{incoming, outgoing};

/// Lets a relayed packet leave unchanged: no other path is taken. Takes in its numbers, at which
/// another path would begin.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext, s: &mut Session, found: &Found) -> Verdict {
    let seg = &found.seg;
    // The numbers of a SYN or a reset may be anything.
    if seg.flags & (SYN | RST) == 0 {
        outgoing::sent(s, seg);
        if let Some((tsval, _)) = found.timestamps(ctx) {
            s.tsval_out = tsval;
        }
    }
    Verdict::Pass
}

/// Result of [`comes`]: the packet is dropped, and counted.
pub(crate) const DROP: u64 = u64::MAX;

/// Judges a packet of a path that is in the scratch memory of ingress. Returns the interface by
/// which the packet continues, after the change has been applied.
#[inline(always)]
pub(crate) fn comes(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    unsafe { dysco_steered(ctx.skb.skb) }
}

#[inline(always)]
fn not(why: Counter) -> u64 {
    count(why);
    DROP
}

/// Exported, so that the verifier checks it once (see `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_steered(skb: *mut __sk_buff) -> u64 {
    let run = Run::Ingress as u32;
    let Some(Scratch { packet: p, .. }) = maps::scratch(run) else {
        return DROP;
    };
    let Some(Flow { slot, new, s }) = maps::find(&p.key) else {
        return DROP;
    };
    let Some(relay) = s.relay.checked_sub(1).and_then(maps::session) else {
        return DROP;
    };
    let taken = s.state == State::Switching as u32 || s.state == State::NewPath as u32;
    let opening = s.state == State::Joining as u32;
    if relay.state != State::Relay as u32 || p.seg.has(SYN) {
        return not(Counter::DroppedStray);
    }
    let mut first = Edit::default();
    let mut seg = p.seg;
    if new {
        if !taken && !opening {
            // No socket knows this five-tuple: the stack would answer with a reset.
            return not(Counter::DroppedStray);
        }
        if s.state != State::NewPath as u32 {
            if second_path::takes(&TcContext::new(skb), s, &p.seg, slot) {
                return DROP;
            }
            if !two_paths::is_live_beside(s, &p.seg) {
                if p.seg.has(RST) {
                    maps::tell(EventKind::Rejected, slot);
                }
                return not(Counter::DroppedStray);
            }
        } else if opens_windows(&p.seg) {
            // A late packet, or one that shows firewalls the way back. It may acknowledge bytes
            // that no stack has received.
            second_path::take_in_announced(s, &p.seg);
            return DROP;
        }
        if opening {
            second_path::dysco_follow(slot);
        }
        first = s.translation.incoming(&p.seg, &s.key);
        incoming::heard(s, &p.seg, &first, slot);
        seg = Segment {
            seq: first.seq,
            ack: first.ack,
            window: first.window,
            flags: first.flags,
            ..p.seg
        };
    } else if !taken || s.other_path == 0 {
        // A late packet on the path before.
        return not(Counter::DroppedLateOld);
    }
    let ctx = TcContext::new(skb);
    if relay::onward(&ctx, relay, &seg, &first, run) == relay::TO_OTHER {
        relay.ifindex as u64
    } else {
        DROP
    }
}
