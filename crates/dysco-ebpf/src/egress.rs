//! Packets of the local end, on their way out.

mod both_paths;

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
#[cfg(not(feature = "headerless"))]
use dysco_common::detour::program;
use dysco_common::session::{Session, State, life};
use dysco_common::tcp::{FIN, RST, SYN, Segment};
use dysco_common::two_paths;
use dysco_common::{Counter, EventKind, Path, mark};

use crate::Verdict;
use crate::chain;
use crate::fast_path;
use crate::hold;
use crate::hop;
use crate::icmp;
use crate::ingress;
use crate::learn;
use crate::maps::{self, Flow, OWN, Run, Scratch, count};
use crate::packet::{Direction, Found, Key, find, load};
use crate::relay;
use crate::second_path;
use crate::steer;
use crate::transit;
use crate::write;
use both_paths::{header_copy, on_two_paths};

pub use both_paths::{new_path, old_path};

/// Judges an outgoing packet that needs a closer look.
#[inline(always)]
pub fn run(ctx: TcContext) -> Verdict {
    let mark = mark_of(&ctx);
    if mark == mark::RELAYED || mark == mark::RELAYED_TEACHES {
        cold_path();
        return relay::relayed(&ctx, mark);
    }
    if mark == mark::UNROUTED {
        cold_path();
        relay::set_mark(&ctx, mark::RELAYED);
        return Verdict::Redirect {
            // SAFETY: a readable field of the context.
            ifindex: unsafe { (*ctx.skb.skb).ifindex },
        };
    }
    let steered = mark == mark::STEERED;
    if steered {
        relay::set_mark(&ctx, 0);
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
            relay::to_end(&ctx, s, key, &found, slot)
        }
        Some(State::Tracked | State::Opening) => {
            track(&ctx, s, &found, slot);
            Verdict::Pass
        }
        Some(State::NewPath) => {
            cold_path();
            with_options(&ctx, s, key, &found, slot)
        }
        Some(State::Return) => {
            cold_path();
            send_dsr(&ctx, s, key, &found, slot)
        }
        Some(State::TwoPaths) => {
            cold_path();
            on_two_paths(&ctx, s, key, &found, slot)
        }
        Some(State::Tombstone) => {
            cold_path();
            count(Counter::DroppedTombstone);
            Verdict::Drop
        }
        Some(State::RelayTwoPaths) => {
            cold_path();
            relay::to_end(&ctx, s, key, &found, slot)
        }
        Some(State::Relay) if steered => {
            cold_path();
            steer::leaves(&ctx, s, &found)
        }
        Some(State::Relay) => {
            cold_path();
            // The stack has no part in the session any longer.
            count(Counter::DroppedLateOld);
            Verdict::Drop
        }
        Some(State::Held) => {
            cold_path();
            hold::judge(&ctx, Run::Egress, key, &found, slot)
        }
        #[cfg(not(feature = "headerless"))]
        Some(State::Detour) => {
            cold_path();
            maps::continue_in(&ctx, program::EGRESS);
            Verdict::Drop
        }
        #[cfg(feature = "headerless")]
        Some(State::Detour) => Verdict::Pass,
        Some(State::Adopted) => {
            cold_path();
            if learn::heard(s, &found.seg, Direction::Out, slot) {
                track(&ctx, s, &found, slot);
            }
            Verdict::Pass
        }
        Some(State::Switching) => {
            cold_path();
            second_path::leaves(&ctx, s, key, &found, slot)
        }
        Some(State::Passing) => {
            cold_path();
            transit::leaves(&ctx, mark, key, &found, slot)
        }
        // A sent packet takes the session's other entry.
        Some(State::Free | State::Closed | State::Joining) | None => Verdict::Pass,
    }
}

#[inline(always)]
pub fn mark_of(ctx: &TcContext) -> u32 {
    // SAFETY: a readable field of the context.
    unsafe { (*ctx.skb.skb).mark }
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

/// True if the packet has a mark of the programs, and so passes the program a second time.
#[inline(always)]
pub fn is_marked(ctx: &TcContext) -> bool {
    matches!(
        mark_of(ctx),
        mark::COPY | mark::RELAYED | mark::RELAYED_TEACHES | mark::UNROUTED
    )
}

/// Translates a packet with SACK blocks or other options onto the new path.
#[inline(always)]
fn with_options(ctx: &TcContext, s: &mut Session, key: &Key, found: &Found, slot: u32) -> Verdict {
    let Some(Scratch { change: c, .. }) = take(ctx, Run::Egress, key, found) else {
        return Verdict::Pass;
    };
    track(ctx, s, found, slot);
    new_path(s, &found.seg, c);
    write(ctx, Run::Egress, Path::New, s)
}

/// Sends a reply directly to the client, unless it has FIN or RST.
#[inline(always)]
fn send_dsr(ctx: &TcContext, s: &mut Session, key: &Key, found: &Found, slot: u32) -> Verdict {
    if found.seg.flags & (FIN | RST) != 0 {
        track(ctx, s, found, slot);
        return Verdict::Pass;
    }
    with_options(ctx, s, key, found, slot)
}

/// Copies a packet into the scratch memory of a run.
#[inline(always)]
pub fn take(ctx: &TcContext, run: Run, key: &Key, found: &Found) -> Option<&'static mut Scratch> {
    let scratch = maps::scratch(run as u32)?;
    load(ctx, key, found, &mut scratch.packet)?;
    Some(scratch)
}

/// Applies the change and sends the packet on its path.
#[inline(always)]
pub fn write(ctx: &TcContext, run: Run, path: Path, s: &Session) -> Verdict {
    if !write::apply(ctx, run as u32) {
        count(Counter::DroppedError);
        return Verdict::Drop;
    }
    count(Counter::Translated);
    match path {
        Path::Old => Verdict::Pass,
        Path::New => hop::send(ctx, s),
    }
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
    if !hold::chosen(ctx, found) {
        return Verdict::Drop;
    }
    learn::syn(Run::Egress, Direction::Out);
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

/// Takes in the numbers of a segment that the local end sends.
#[inline(always)]
pub fn track(ctx: &TcContext, s: &mut Session, found: &Found, slot: u32) {
    let seg = &found.seg;
    let mut believed = true;
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        believed = ends(s, seg, slot);
    }
    // Anybody may have chosen the numbers of a reset.
    if believed && !seg.has(RST) {
        fast_path::sent(s, seg);
    }
    if let Some((tsval, _)) = found.timestamps(ctx) {
        s.tsval_out = tsval;
    }
    if s.life.fin_out & s.life.fin_in != 0 && s.life.notified == 0 {
        cold_path();
        s.life.notified = 1;
        if s.state == State::Tracked as u32 || s.state == State::NewPath as u32 {
            maps::tell_later(EventKind::Closed, slot);
        } else {
            maps::tell(EventKind::Closed, slot);
        }
    }
}

/// Takes in a FIN or reset. Returns false if the other end cannot believe it.
#[inline(always)]
fn ends(s: &mut Session, seg: &Segment, slot: u32) -> bool {
    let near = s.joined_to().and_then(maps::session);
    // The joined entry may belong to another session.
    let near = near.filter(|near| near.joined_to() == Some(slot));
    let near = near.as_deref();
    if seg.has(RST) {
        // The relay's entry judges it.
        let believed = s.relay == 0 && two_paths::may_be_reset(s, near, seg.seq);
        if believed {
            ingress::was_reset(s, slot);
            s.life.reset |= life::BY_END;
        }
        return believed;
    }
    let believed = two_paths::may_be_closed(s, near, seg);
    if believed {
        s.life.fin_out |= life::SEEN;
        if s.state != State::NewPath as u32 {
            s.life.fin_out |= life::OLD_PATH;
        }
    }
    believed
}
