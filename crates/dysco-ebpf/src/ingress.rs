//! Packets for the local end, on their way in.

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
use dysco_common::seq::after;
use dysco_common::session::{Session, State, life, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment, edit};
use dysco_common::two_paths::{self, ASKED, Anchor, Fins, OldIncoming, ends_path, opens_windows};
use dysco_common::{Counter, EventKind};

use crate::atomic;
use crate::chain;
use crate::far;
use crate::icmp;
use crate::kept;
use crate::learn;
use crate::maps::{self, Flow, Run, Scratch, count};
use crate::packet::{Direction, Found, Key, Packet, find, load};
use crate::paths;
use crate::probe;
use crate::second;
use crate::steady;
use crate::steer;
use crate::write::{self, Change};
use crate::{Verdict, is_short};

/// Judges an incoming packet that needs a closer look.
#[inline(always)]
pub fn run(ctx: TcContext) -> Verdict {
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
    let relays = s.state == State::Relay as u32 || s.state == State::FarTwoPaths as u32;
    if (relays || s.is_beside_relay())
        && let Some(verdict) = icmp::answers(&ctx, s, slot, &found)
    {
        return verdict;
    }
    match State::from_word(s.state) {
        Some(State::Tracked) if s.two.new_heard != 0 && opens_windows(&found.seg) => {
            cold_path();
            second::shown(s, &found.seg);
            Verdict::Drop
        }
        Some(State::Tracked | State::Opening) if !new && s.clamp == 0 => {
            track(&ctx, s, &found, slot);
            if s.clamp_far != 0 {
                cold_path();
                far::offers(s, slot, &found.seg);
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
        Some(State::Relay) if opens && !learn::would_usurp(s) => {
            cold_path();
            syn(&ctx, key, &found, slot + 1, new)
        }
        Some(State::Relay) if is_short(&ctx, &found) => {
            cold_path();
            if far::relay(&ctx, s, &found) {
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
    match decide(ctx, flow, p, c, found) {
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
    }
}

/// Treatment of a packet.
enum Decision {
    /// Leave the packet unchanged.
    Leave(Verdict),
    /// Apply the change and count it, or count the failure.
    Write {
        counter: Option<Counter>,
        failure: Counter,
        then: Verdict,
    },
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
    let state = State::from_word(s.state);
    if new {
        return match state {
            // The path may be given up, and must be silent for that.
            Some(State::TwoPaths) if s.deaf != 0 => Decision::Leave(dropped(Counter::DroppedStray)),
            Some(State::TwoPaths) if p.seg.has(SYN) || opens_windows(&p.seg) => {
                opening(ctx, s, p, c, slot)
            }
            Some(State::TwoPaths) if !two_paths::is_live(s, &p.seg) => unheard(&p.seg, slot),
            Some(State::TwoPaths) => from_new_path(s, p, c, slot, true),
            // A late packet, or one that shows firewalls the way back: no stack may receive it.
            // A host inside a chain passes it on, the ends do not.
            Some(State::NewPath) if opens_windows(&p.seg) => {
                second::shown(s, &p.seg);
                if s.two.chained != 0 && s.joined != 0 {
                    from_new_path(s, p, c, slot, false)
                } else {
                    Decision::Leave(Verdict::Drop)
                }
            }
            Some(State::NewPath) if !p.seg.has(SYN) => from_new_path(s, p, c, slot, false),
            Some(State::Joining | State::Switching) if second::takes(ctx, s, &p.seg, slot) => {
                Decision::Leave(Verdict::Drop)
            }
            Some(State::Joining | State::Switching) if !two_paths::is_live_beside(s, &p.seg) => {
                unheard(&p.seg, slot)
            }
            Some(State::Joining) => {
                second::dysco_follow(slot);
                from_new_path(s, p, c, slot, false)
            }
            Some(State::Switching) => from_new_path(s, p, c, slot, false),
            // The firewall here has one connection for both paths.
            Some(State::Passing) if p.seg.has(RST) && kept::has_carried_nothing(s) => {
                Decision::Leave(dropped(Counter::DroppedStray))
            }
            Some(State::Passing) => {
                kept::comes(ctx, s, &p.seg, slot);
                from_new_path(s, p, c, slot, false)
            }
            // No socket knows this five-tuple: the stack would answer with a reset.
            _ => Decision::Leave(dropped(Counter::DroppedStray)),
        };
    }
    match state {
        Some(State::Tracked | State::Opening | State::Return) => {
            track(ctx, s, found, slot);
            from_old_path(s, p, c, slot)
        }
        Some(State::TwoPaths) => {
            if let Some(seg) = two_paths::taught(Anchor::Near, s, &p.seg) {
                track(ctx, s, &Found { seg, ..*found }, slot);
            }
            from_old_path(s, p, c, slot)
        }
        // A late packet on the path before. If a middlebox has left, that path does not count.
        Some(State::NewPath | State::Switching) if s.other_path != 0 && s.alias.is_none() => {
            Decision::Leave(second::late(s, &p.seg, slot))
        }
        Some(State::NewPath | State::Joining | State::Switching | State::Passing) => {
            Decision::Leave(dropped(Counter::DroppedLateOld))
        }
        Some(State::Tombstone) => Decision::Leave(dropped(Counter::DroppedTombstone)),
        Some(State::FarTwoPaths | State::Relay) => match far::decide(ctx) {
            far::PASS => Decision::Leave(Verdict::Pass),
            far::TO_STACK => Decision::Write {
                counter: None,
                failure: Counter::DroppedError,
                then: Verdict::Changed,
            },
            far::TO_OTHER => Decision::Write {
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
        Some(State::Free | State::Closed) | None => Decision::Leave(Verdict::Pass),
    }
}

#[inline(always)]
pub fn dropped(why: Counter) -> Verdict {
    count(why);
    Verdict::Drop
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

/// Takes in a segment on the session's own five-tuple.
#[inline(always)]
fn track(ctx: &TcContext, s: &mut Session, found: &Found, slot: u32) {
    let seg = &found.seg;
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        let told = two_paths::old_number(Anchor::Near, s, seg);
        if !ends(s, seg, told, slot) {
            return;
        }
    }
    // Anybody may have chosen the numbers of a reset.
    if seg.has(RST) {
        return;
    }
    if seg.has(FIN) {
        s.life.fin_in |= life::OLD_PATH;
    }
    steady::arrived(s, seg);
    if let Some((tsval, _)) = found.timestamps(ctx) {
        s.tsval_in = tsval;
    }
}

#[inline(always)]
pub fn received(s: &mut Session, end: u32) {
    if after(end, s.rcv_max) {
        s.bytes_in += end.wrapping_sub(s.rcv_max) as u64;
        s.rcv_max = end;
    }
}

/// Raises the number received, where another processor may do so at the same time. The
/// acknowledgements on a path are compared with this number, which must not decrease.
#[inline(always)]
pub fn received_exactly(s: &mut Session, end: u32) {
    if let Some(before) = atomic::raise(&mut s.rcv_max, end) {
        s.bytes_in += end.wrapping_sub(before) as u64;
    }
}

/// True if the acknowledged number has been sent. An acknowledgement of any other number does
/// not belong to this session. Another CPU writes `snd_max`, so this function reads it only when
/// needed.
#[inline(always)]
pub fn was_sent(s: &mut Session, ack: u32) -> bool {
    if after(ack, s.snd_seen) {
        s.snd_seen = s.snd_max;
    }
    !after(ack, s.snd_seen)
}

/// Takes in a segment on the new path.
#[inline(always)]
pub fn heard(s: &mut Session, seg: &Segment, e: &Edit, slot: u32) {
    s.new_in = s.new_in.wrapping_add(1);
    if s.state == State::Switching as u32 {
        two_paths::hear_live(s, seg);
    }
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        if !ends(s, seg, e.seq, slot) {
            return;
        }
    }
    if !seg.has(RST) {
        received_exactly(s, e.seq.wrapping_add(seg.span()));
    }
}

/// Records a reset that passes and that an end may believe. Reported once.
#[inline(always)]
pub fn was_reset(s: &mut Session, slot: u32) {
    if s.life.reset == 0 {
        s.life.reset = 1;
        maps::tell(EventKind::Reset, slot);
    }
}

/// Records that the middlebox has ended the session. Reported once.
#[inline(always)]
pub fn was_broken(s: &mut Session, slot: u32) {
    if !two_paths::is_broken(s) {
        s.life.reset |= life::SEEN | life::BY_MIDDLEBOX;
        maps::tell(EventKind::Broken, slot);
    }
}

/// Takes in a FIN or reset. `seq` is in the local end's own numbers, as that end receives it.
/// Returns false if the end cannot believe it.
#[inline(always)]
pub fn ends(s: &mut Session, seg: &Segment, seq: u32, slot: u32) -> bool {
    if seg.has(RST) {
        // On other hosts the relay's entry judges it.
        let believed = s.relay == 0 && two_paths::may_reset(s, seq);
        if believed {
            was_reset(s, slot);
        }
        return believed;
    }
    let believed = two_paths::may_close(s, seg, seq);
    if believed {
        s.life.fin_in |= life::SEEN;
    }
    believed
}

/// Delivers a segment of the old path with the window that the path may announce.
#[inline(always)]
fn from_old_path(s: &mut Session, p: &Packet, c: &mut Change, slot: u32) -> Decision {
    if two_paths::asks(Anchor::Near, s, &p.seg) {
        s.two.old_ack_set |= ASKED;
    }
    let told = match two_paths::old_incoming(Anchor::Near, s, &p.seg, Anchor::Near.wscale(s)) {
        OldIncoming::Deliver(told) => told,
        OldIncoming::Drop => return Decision::Leave(dropped(Counter::DroppedLateOld)),
        OldIncoming::Withhold => return Decision::Leave(dropped(Counter::AckWithheld)),
    };
    if two_paths::breaks(Anchor::Near, s, &told) {
        was_broken(s, slot);
    }
    if told == p.seg {
        return Decision::Leave(Verdict::Pass);
    }
    c.edit = Edit {
        sport: p.key.whole.remote_port,
        dport: p.key.whole.local_port,
        seq: told.seq,
        ack: told.ack,
        window: told.window,
        flags: told.flags,
        strip: if told.ack == p.seg.ack { 0 } else { edit::SACK },
        ..Edit::default()
    };
    c.src = p.key.whole.remote;
    c.dst = p.key.whole.local;
    c.clear_ect = 0;
    c.pseudo = 0;
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Changed,
    }
}

/// Handles a packet that opens the new path. The two data planes exchange such packets, and no
/// socket receives them. The right anchor answers.
#[inline(always)]
fn opening(ctx: &TcContext, s: &mut Session, p: &Packet, c: &mut Change, slot: u32) -> Decision {
    if s.life.opened_here != 0 {
        answered(ctx, s, &p.seg, slot);
        return Decision::Leave(Verdict::Drop);
    }
    // The long packet has to come first: the path may be too narrow for it.
    let asks = p.seg.has(SYN) && p.seg.len > 0;
    let nobodys = p.seg.flags & (SYN | ACK) == SYN | ACK || s.shown == 0 && p.seg.len == 0;
    if nobodys || asks && !probe::is_carried(ctx, slot) {
        return Decision::Leave(dropped(Counter::DroppedStray));
    }
    if two_paths::hear_opening(s, &p.seg) {
        maps::tell(EventKind::Drained, slot);
    }
    c.edit = two_paths::answer_opening(s, &p.seg);
    c.src = s.path.local;
    c.dst = s.path.remote;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
    // The path may be taken from now on, and FINs are held back.
    if asks && !probe::echo(ctx, Fins::of(Anchor::Near, s)) {
        return Decision::Leave(dropped(Counter::DroppedError));
    }
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Redirect { ifindex: s.ifindex },
    }
}

/// Takes in the answer of the right anchor: a SYN-ACK, followed by the packet that lets the path
/// be used.
#[inline(always)]
fn answered(ctx: &TcContext, s: &mut Session, seg: &Segment, slot: u32) {
    if seg.has(SYN) && !seg.has(ACK) {
        return count(Counter::DroppedSyn);
    }
    let syn = seg.has(SYN);
    if syn && s.two.cut_set == 0 {
        probe::tell(ctx.skb.skb, slot);
    }
    // This counter shows that the path carries packets.
    s.answers = s.answers.wrapping_add(1);
    if s.shown == 0 && !syn {
        return count(Counter::DroppedStray);
    }
    let all = two_paths::show(s, s.received_off_wire(seg.seq.wrapping_add(syn as u32)));
    if all {
        maps::tell(EventKind::Drained, slot);
    }
    if !syn && s.two.cut_set == 0 {
        maps::tell(EventKind::PathOpen, slot);
    }
}

/// Translates a segment of the new path for the local end.
#[inline(always)]
fn from_new_path(
    s: &mut Session,
    p: &Packet,
    c: &mut Change,
    slot: u32,
    two_paths: bool,
) -> Decision {
    let mut e = s.translation.incoming(&p.seg, &s.key);
    if two_paths {
        s.new_in = s.new_in.wrapping_add(1);
        if p.seg.flags & (FIN | RST) != 0 {
            ends(s, &p.seg, e.seq, slot);
        }
        let seg = Segment {
            seq: e.seq,
            ack: e.ack,
            window: e.window,
            ..p.seg
        };
        if !seg.has(RST) && two_paths::show(s, seg.end()) {
            maps::tell(EventKind::Drained, slot);
        }
        if !paths::hear(s, Anchor::Near, p, &seg, &mut e) {
            return Decision::Leave(dropped(Counter::AckWithheld));
        }
    } else {
        heard(s, &p.seg, &e, slot);
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
