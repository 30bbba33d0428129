//! Packets of the local end, on their way out.

pub(crate) mod both_paths;

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
#[cfg(not(feature = "headerless"))]
use dysco_common::detour::program;
use dysco_common::session::{Session, State};
use dysco_common::tcp::{FIN, RST, SYN};
use dysco_common::{Counter, Path, mark};

use crate::chain;
use crate::hold;
use crate::hop;
use crate::icmp;
use crate::learn;
use crate::maps::{self, Flow, OWN, Run, Scratch, count};
use crate::marks::{mark_of, set_mark};
use crate::outgoing::{take, track, write};
use crate::packet::{Direction, Found, Key, find};
use crate::relay;
use crate::second_path;
use crate::steer;
use crate::transit;
use crate::verdict::Verdict;
use both_paths::{header_copy, new_path, on_two_paths};

/// Judges an outgoing packet that needs a closer look.
#[inline(always)]
#[expect(
    clippy::too_many_lines,
    reason = "two functions take more stack than kernels before 6.9 have"
)]
pub(crate) fn run(ctx: TcContext) -> Verdict {
    let mark = mark_of(&ctx);
    if mark == mark::RELAYED || mark == mark::RELAYED_TEACHES {
        cold_path();
        return relay::relayed(&ctx, mark);
    }
    if mark == mark::UNROUTED {
        cold_path();
        set_mark(&ctx, mark::RELAYED);
        return Verdict::Redirect {
            // SAFETY: a readable field of the context.
            ifindex: unsafe { (*ctx.skb.skb).ifindex },
        };
    }
    let steered = mark == mark::STEERED;
    let detoured = mark == mark::DETOURED;
    if steered || detoured {
        set_mark(&ctx, 0);
    }
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(&ctx, Direction::Out, key) else {
        return icmp::leaves(&ctx);
    };
    // Each case repeats the lookup: the verifier cannot follow an `Option` through three
    // branches.
    if mark == mark::COPY {
        cold_path();
        return header_copy(&ctx, key, &found);
    }
    if found.seg.has(SYN) {
        cold_path();
        return syn(&ctx, key, &found, steered);
    }
    let Some(Flow { slot, new, s }) = maps::find(key) else {
        return Verdict::Pass;
    };
    if new {
        // Translated already, on its way to the interface.
        hop::learn(&ctx, s);
        return Verdict::Pass;
    }
    #[cfg(not(feature = "headerless"))]
    if s.detours_before_path() && !detoured {
        cold_path();
        maps::continue_in(&ctx, program::EGRESS);
        return Verdict::Drop;
    }
    if s.relay != 0 && !steered {
        cold_path();
        // The stack has no part in the session any longer.
        count(Counter::DroppedLateOld);
        return Verdict::Drop;
    }
    if found.seg.has(RST) && s.two.chained != 0 && s.joined != 0 && is_stacks_own(&ctx, s) {
        cold_path();
        count(Counter::DroppedStray);
        return Verdict::Drop;
    }
    match State::from_word(s.state) {
        Some(State::Tracked) if s.clamp_remote != 0 => {
            cold_path();
            relay::to_end(&ctx, key, &found, slot)
        }
        Some(State::Tracked | State::Opening) => {
            track(&ctx, s, &found, slot);
            Verdict::Pass
        }
        Some(State::NewPath) if detoured => {
            cold_path();
            // It may run inside of the run that made a copy, whose scratch memory is that of egress.
            with_options(&ctx, Run::Copy, s, key, &found, slot)
        }
        _ => {
            cold_path();
            in_rare_state(&ctx, s, mark, key, &found, slot)
        }
    }
}

/// Judges a packet of a session that is neither tracked nor opening.
#[inline(always)]
fn in_rare_state(
    ctx: &TcContext,
    s: &mut Session,
    mark: u32,
    key: &Key,
    found: &Found,
    slot: u32,
) -> Verdict {
    match State::from_word(s.state) {
        Some(State::NewPath) => with_options(ctx, Run::Egress, s, key, found, slot),
        Some(State::Return) => send_dsr(ctx, s, key, found, slot),
        Some(State::TwoPaths) => on_two_paths(ctx, s, key, found, slot),
        Some(State::Tombstone) => {
            count(Counter::DroppedTombstone);
            Verdict::Drop
        }
        Some(State::RelayTwoPaths) => relay::to_end(ctx, key, found, slot),
        Some(State::Relay) if mark == mark::STEERED => steer::leaves(ctx, s, found),
        Some(State::Relay) => {
            // The stack has no part in the session any longer.
            count(Counter::DroppedLateOld);
            Verdict::Drop
        }
        Some(State::Held) => hold::judge(ctx, Run::Egress, key, found, slot),
        #[cfg(not(feature = "headerless"))]
        Some(State::Detour) => {
            maps::continue_in(ctx, program::EGRESS);
            Verdict::Drop
        }
        #[cfg(feature = "headerless")]
        Some(State::Detour) => Verdict::Pass,
        Some(State::Adopted) => {
            if learn::heard(s, &found.seg, Direction::Out, slot) {
                track(ctx, s, found, slot);
            }
            Verdict::Pass
        }
        Some(State::Switching) => second_path::leaves(ctx, s, key, found, slot),
        Some(State::Passing) => transit::leaves(ctx, mark, key, found, slot),
        // A sent packet takes the session's other entry.
        Some(State::Free | State::Closed | State::Joining) | None => Verdict::Pass,
        // Judged above.
        Some(State::Tracked | State::Opening) => Verdict::Pass,
    }
}

/// True if this host itself has made a packet of a session that it only forwards: a forwarded
/// packet came in by an interface. Connection tracking does not translate a packet that it calls
/// invalid. Behind a NAT such a packet is for this host's own address, where no socket knows it.
#[inline(always)]
fn is_stacks_own(ctx: &TcContext, s: &Session) -> bool {
    // SAFETY: a readable field of the context.
    let came_by = unsafe { (*ctx.skb.skb).ingress_ifindex };
    came_by == 0 && OWN.get_ptr(&s.key.local).is_some()
}

/// Translates a packet with SACK blocks or other options onto the new path.
#[inline(always)]
fn with_options(
    ctx: &TcContext,
    run: Run,
    s: &mut Session,
    key: &Key,
    found: &Found,
    slot: u32,
) -> Verdict {
    let Some(Scratch { change: c, .. }) = take(ctx, run, key, found) else {
        return Verdict::Pass;
    };
    track(ctx, s, found, slot);
    new_path(s, &found.seg, c);
    write(ctx, run, Path::New, s)
}

/// Sends a reply directly to the client, unless it has FIN or RST.
#[inline(always)]
fn send_dsr(ctx: &TcContext, s: &mut Session, key: &Key, found: &Found, slot: u32) -> Verdict {
    if found.seg.flags & (FIN | RST) != 0 {
        track(ctx, s, found, slot);
        return Verdict::Pass;
    }
    with_options(ctx, Run::Egress, s, key, found, slot)
}

#[inline(always)]
fn syn(ctx: &TcContext, key: &Key, found: &Found, steered: bool) -> Verdict {
    maps::know(Run::Egress, 0, false);
    if let Some(Flow { slot, new, s }) = maps::find(key) {
        maps::know(Run::Egress, slot + 1, new);
        if new {
            // Translated already, on its way to the interface.
            hop::learn(ctx, s);
            return Verdict::Pass;
        }
        // The other end judges a SYN of a relayed session.
        if steered && s.state == State::Relay as u32 {
            return Verdict::Pass;
        }
        if learn::would_usurp(s) && s.two.chained == 0 {
            count(Counter::DroppedSyn);
            return Verdict::Drop;
        }
    }
    if take(ctx, Run::Egress, key, found).is_none() || !learn::read(ctx, Run::Egress) {
        return Verdict::Pass;
    }
    let past = transit::is_past_the_stack(mark_of(ctx));
    // SAFETY: the program's own context.
    unsafe { hold::dysco_find_run(ctx.skb.skb) };
    match chain::leaves(ctx) {
        chain::PASS if past => {
            count(Counter::DroppedSyn);
            Verdict::Drop
        }
        chain::PASS => passes(ctx, found),
        chain::DROP => Verdict::Drop,
        // The stack has not given this packet an Ethernet address of this host: the kernel must
        // do so.
        ifindex if past => Verdict::Redirect {
            ifindex: ifindex as u32,
        },
        ifindex => on_its_way(ctx, ifindex as u32),
    }
}

/// Lets a SYN, or the answer to one, pass on the session's own five-tuple.
#[inline(always)]
fn passes(ctx: &TcContext, found: &Found) -> Verdict {
    if !hold::chosen(found) || !learn::syn(Run::Egress, Direction::Out) {
        return Verdict::Drop;
    }
    if hold::answers(ctx, Run::Egress, found) {
        Verdict::Pass
    } else {
        count(Counter::DroppedError);
        Verdict::Drop
    }
}

/// Sends a SYN, or the answer to one, that has been put on its subsession.
#[inline(always)]
fn on_its_way(ctx: &TcContext, ifindex: u32) -> Verdict {
    match maps::scratch(Run::Egress as u32) {
        Some(Scratch { change: c, .. }) => hop::send_between(ctx, &c.src, &c.dst, ifindex),
        None => Verdict::Redirect { ifindex },
    }
}
