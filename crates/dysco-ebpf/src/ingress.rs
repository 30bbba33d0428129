//! Packets for the local end, on their way in.

mod both_paths;
mod decision;

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
#[cfg(not(feature = "headerless"))]
use dysco_common::detour::program;
#[cfg(not(feature = "headerless"))]
use dysco_common::mark;
use dysco_common::session::{Session, State};
use dysco_common::tcp::{RST, SYN, Segment};
use dysco_common::two_paths::{self, Anchor, ends_path, opens_windows};
use dysco_common::{Counter, EventKind};

use crate::chain;
use crate::hold;
use crate::icmp;
use crate::incoming::track;
use crate::learn;
use crate::maps::{self, Flow, Run, Scratch, count};
#[cfg(not(feature = "headerless"))]
use crate::marks::mark_of;
use crate::packet::{Direction, Found, Key, Packet, find, load};
use crate::relay;
use crate::second_path;
use crate::steer;
use crate::transit;
use crate::verdict::{Verdict, dropped};
use crate::write::{self, Change};
use both_paths::{from_new_path, from_old_path, opening};
use decision::Decision;

/// Judges an incoming packet that needs a closer look.
#[inline(always)]
#[expect(
    clippy::too_many_lines,
    reason = "two functions take more stack than kernels before 6.9 have"
)]
pub(crate) fn run(ctx: TcContext) -> Verdict {
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(&ctx, Direction::In, key) else {
        return icmp::arrives(&ctx);
    };
    let opens = found.seg.has(SYN);
    let Some(Flow { slot, new, s }) = maps::find(key) else {
        return if opens {
            cold_path();
            syn(&ctx, key, &found, 0, false)
        } else {
            Verdict::Pass
        };
    };
    if ends_path(&found.seg) {
        cold_path();
        return Verdict::Drop;
    }
    if opens {
        cold_path();
        if new && s.two.chained != 0 {
            return syn(&ctx, key, &found, slot + 1, new);
        }
        // The other end judges a SYN on a relayed session (RFC 5961, 4).
        if !new && s.state != State::Relay as u32 {
            return if learn::would_usurp(s) {
                dropped(Counter::DroppedSyn)
            } else {
                syn(&ctx, key, &found, slot + 1, new)
            };
        }
    }
    let relays = s.state == State::Relay as u32 || s.state == State::RelayTwoPaths as u32;
    if (relays || s.is_beside_relay())
        && let Some(verdict) = icmp::answers(&ctx, s, slot, &found)
    {
        return verdict;
    }
    match State::from_word(s.state) {
        Some(State::Tracked) if s.two.new_received != 0 && opens_windows(&found.seg) => {
            cold_path();
            second_path::take_in_announced(s, &found.seg);
            Verdict::Drop
        }
        Some(State::Tracked | State::Opening) if !new && s.clamp == 0 => {
            track(&ctx, s, &found, slot);
            if s.clamp_remote != 0 {
                cold_path();
                relay::offers(s, slot, &found.seg);
            }
            Verdict::Pass
        }
        Some(State::Return) if !new => {
            cold_path();
            track(&ctx, s, &found, slot);
            Verdict::Pass
        }
        _ if write::is_unanswered(&ctx, s, found.v6) => {
            cold_path();
            dropped(Counter::DroppedMarked)
        }
        Some(State::Held) if !new => {
            cold_path();
            hold::judge(&ctx, Run::Ingress, key, &found, slot)
        }
        #[cfg(not(feature = "headerless"))]
        Some(State::Detour) if !new => {
            cold_path();
            maps::continue_in(&ctx, program::INGRESS);
            Verdict::Drop
        }
        Some(State::Relay) if opens && !learn::would_usurp(s) => {
            cold_path();
            syn(&ctx, key, &found, slot + 1, new)
        }
        Some(State::Relay) if write::is_short(&ctx, &found) => {
            cold_path();
            if relay::relay(&ctx, s, &found) {
                Verdict::Redirect { ifindex: s.ifindex }
            } else {
                Verdict::Drop
            }
        }
        _ => {
            cold_path();
            whole(&ctx, Flow { slot, new, s }, key, &found)
        }
    }
}

#[inline(always)]
fn syn(ctx: &TcContext, key: &Key, found: &Found, slot: u32, new: bool) -> Verdict {
    maps::know(Run::Ingress, slot, new);
    let loaded = maps::scratch(Run::Ingress as u32)
        .and_then(|scratch| load(ctx, key, found, &mut scratch.packet));
    if loaded.is_none() || !learn::read(ctx, Run::Ingress) {
        return Verdict::Pass;
    }
    match chain::arrives(ctx) {
        chain::PASS => {
            learn::syn(Run::Ingress, Direction::In);
            if !hold::answers(ctx, Run::Ingress, found) {
                return dropped(Counter::DroppedError);
            }
            Verdict::Pass
        }
        chain::DROP => Verdict::Drop,
        chain::PAST => Verdict::Past,
        _ => Verdict::Changed,
    }
}

/// Judges a packet that must be examined as a whole.
#[inline(always)]
fn whole(ctx: &TcContext, flow: Flow, key: &Key, found: &Found) -> Verdict {
    let run = Run::Ingress as u32;
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return Verdict::Pass;
    };
    if load(ctx, key, found, p).is_none() {
        return Verdict::Pass;
    }
    let verdict = match decide(ctx, flow, p, c, found) {
        Decision::Leave(verdict) => verdict,
        Decision::Write {
            counter,
            failure,
            then,
        } => {
            if write::apply(ctx, run) {
                if let Some(counter) = counter {
                    count(counter);
                }
                then
            } else {
                dropped(failure)
            }
        }
    };
    #[cfg(not(feature = "headerless"))]
    if matches!(verdict, Verdict::Detour) {
        maps::continue_in(ctx, program::INGRESS);
    }
    verdict
}

#[inline(always)]
fn decide(
    ctx: &TcContext,
    Flow { slot, new, s }: Flow,
    p: &mut Packet,
    c: &mut Change,
    found: &Found,
) -> Decision {
    if s.is_beside_relay() {
        return match steer::comes(ctx) {
            steer::DROP => Decision::Leave(Verdict::Drop),
            ifindex => Decision::Write {
                counter: Some(Counter::Relayed),
                failure: Counter::DroppedUnparsed,
                then: Verdict::Redirect {
                    ifindex: ifindex as u32,
                },
            },
        };
    }
    if new {
        by_new_path(ctx, s, p, c, slot)
    } else {
        by_own_path(ctx, s, p, c, found, slot)
    }
}

/// Decides the treatment of a packet on the session's new path.
#[inline(always)]
fn by_new_path(
    ctx: &TcContext,
    s: &mut Session,
    p: &mut Packet,
    c: &mut Change,
    slot: u32,
) -> Decision {
    match State::from_word(s.state) {
        // The path may be given up, and must be silent for that.
        Some(State::TwoPaths) if s.muted != 0 => Decision::Leave(dropped(Counter::DroppedStray)),
        Some(State::TwoPaths) if p.seg.has(SYN) || opens_windows(&p.seg) => {
            opening(ctx, s, p, c, slot)
        }
        Some(State::TwoPaths) if !two_paths::is_live(s, &p.seg) => unheard(&p.seg, slot),
        Some(State::TwoPaths) => from_new_path(s, p, c, slot, true),
        // A late packet, or one that shows firewalls the way back: no stack may receive it.
        // A host inside a chain passes it on, the ends do not.
        Some(State::NewPath) if opens_windows(&p.seg) => {
            second_path::take_in_announced(s, &p.seg);
            if s.two.chained != 0 && s.joined != 0 {
                from_new_path(s, p, c, slot, false)
            } else {
                Decision::Leave(Verdict::Drop)
            }
        }
        Some(State::NewPath) if !p.seg.has(SYN) => from_new_path(s, p, c, slot, false),
        Some(State::Joining | State::Switching) if second_path::takes(ctx, s, &p.seg, slot) => {
            Decision::Leave(Verdict::Drop)
        }
        Some(State::Joining | State::Switching) if !two_paths::is_live_beside(s, &p.seg) => {
            unheard(&p.seg, slot)
        }
        Some(State::Joining) => {
            second_path::dysco_follow(slot);
            from_new_path(s, p, c, slot, false)
        }
        Some(State::Switching) => from_new_path(s, p, c, slot, false),
        // The firewall here has one connection for both paths.
        Some(State::Passing) if p.seg.has(RST) && transit::has_carried_nothing(s) => {
            Decision::Leave(dropped(Counter::DroppedStray))
        }
        Some(State::Passing) => {
            transit::comes(ctx, s, &p.seg, slot);
            from_new_path(s, p, c, slot, false)
        }
        // No socket knows this five-tuple: the stack would answer with a reset.
        _ => Decision::Leave(dropped(Counter::DroppedStray)),
    }
}

/// Decides the treatment of a packet on the session's own five-tuple.
#[inline(always)]
fn by_own_path(
    ctx: &TcContext,
    s: &mut Session,
    p: &mut Packet,
    c: &mut Change,
    found: &Found,
    slot: u32,
) -> Decision {
    match State::from_word(s.state) {
        Some(State::Tracked | State::Opening | State::Return) => {
            track(ctx, s, found, slot);
            from_old_path(s, p, c, slot)
        }
        Some(State::TwoPaths) => {
            if let Some(seg) = two_paths::taught(Anchor::Local, s, &p.seg) {
                track(ctx, s, &Found { seg, ..*found }, slot);
            }
            from_old_path(s, p, c, slot)
        }
        // Of its services.
        #[cfg(not(feature = "headerless"))]
        Some(State::NewPath)
            if s.detours_before_path()
                && matches!(mark_of(ctx), mark::COPY_IN | mark::DELIVERED) =>
        {
            Decision::Leave(Verdict::Detour)
        }
        // A late packet on the path before. If a middlebox has left, that path does not count.
        Some(State::NewPath | State::Switching) if s.other_path != 0 && s.alias.is_none() => {
            Decision::Leave(second_path::late(s, &p.seg, slot))
        }
        Some(State::NewPath | State::Joining | State::Switching | State::Passing) => {
            Decision::Leave(dropped(Counter::DroppedLateOld))
        }
        Some(State::Tombstone) => Decision::Leave(dropped(Counter::DroppedTombstone)),
        Some(State::RelayTwoPaths | State::Relay) => match relay::decide(ctx) {
            relay::PASS => Decision::Leave(Verdict::Pass),
            relay::TO_STACK => Decision::Write {
                counter: None,
                failure: Counter::DroppedError,
                then: Verdict::Changed,
            },
            relay::TO_OTHER => Decision::Write {
                counter: Some(Counter::Relayed),
                failure: Counter::DroppedUnparsed,
                then: Verdict::Redirect { ifindex: s.ifindex },
            },
            _ => Decision::Leave(Verdict::Drop),
        },
        Some(State::Adopted) => {
            if learn::heard(s, &found.seg, Direction::In, slot) {
                track(ctx, s, found, slot);
            }
            Decision::Leave(Verdict::Pass)
        }
        // A detour has programs of its own.
        Some(State::Detour | State::Held | State::Free | State::Closed) | None => {
            Decision::Leave(Verdict::Pass)
        }
    }
}

/// Drops a segment on a path that does not carry the session yet, or no longer. A reset
/// tells user space that the path cannot be used.
#[inline(always)]
fn unheard(seg: &Segment, slot: u32) -> Decision {
    if seg.has(RST) {
        maps::tell(EventKind::Rejected, slot);
    }
    Decision::Leave(dropped(Counter::DroppedStray))
}
