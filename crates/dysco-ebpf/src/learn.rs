//! Facts about a session from its SYN and SYN-ACK.

use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use aya_ebpf::programs::TcContext;
use dysco_common::adopt::has_its_numbers;
use dysco_common::rule::MAX_RULES;
use dysco_common::session::{Alias, Life, Offer, Session, State, Translation, Two};
use dysco_common::tcp::{ACK, Segment, Step, opaque, walk};
use dysco_common::{Counter, EventKind, FlowKey, ShortKey, policy};

use crate::maps::{self, Flow, RULES, Run, Scratch};
use crate::packet::{Direction, Key, Packet, load_options};

/// MSS where the option is absent (RFC 9293, 3.7.1).
const DEFAULT_MSS: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;

/// True if the five-tuple belongs to a changed session that is alive. The proxy's kernel may
/// reuse the port of a socket that it has lost. The far end's socket would answer such a SYN
/// with a reset, and the entry would be lost.
#[inline(always)]
pub(crate) fn would_usurp(s: &Session) -> bool {
    let changed = matches!(
        State::from_word(s.state),
        Some(
            State::TwoPaths
                | State::NewPath
                | State::RelayTwoPaths
                | State::Relay
                | State::Return
                | State::Joining
                | State::Switching
                | State::Passing
        )
    );
    changed && !s.has_ended()
}

/// Records a packet of an adopted session. Two CPUs may each miss the other's record; user space
/// therefore also checks by itself. Returns false if the packet does not have the numbers of the
/// session's socket.
#[inline(always)]
pub(crate) fn heard(s: &mut Session, seg: &Segment, dir: Direction, slot: u32) -> bool {
    if !has_its_numbers(s, seg, dir == Direction::Out) {
        return false;
    }
    let (this, other) = match dir {
        Direction::Out => (&mut s.life.seen_out, s.life.seen_in),
        Direction::In => (&mut s.life.seen_in, s.life.seen_out),
    };
    if *this == 0 {
        *this = 1;
        if other != 0 {
            maps::tell(EventKind::Heard, slot);
        }
    }
    true
}

/// True if the configuration asks for this session. The rules are matched against the end that
/// receives the SYN.
#[inline(always)]
fn wanted(run: u32, dir: Direction) -> bool {
    let len = RULES.get(0).map_or(0, |rules| rules.len);
    if len == 0 {
        return true;
    }
    let arrives = (dir == Direction::In) as u32;
    let mut i = 0;
    while i < MAX_RULES as u32 {
        // LLVM would only test for equality with the smaller bound, and verifiers before 6.9
        // find no end of such a loop.
        if i >= opaque(len as usize) as u32 {
            break;
        }
        if dysco_wants(run, arrives, i) != 0 {
            return true;
        }
        i += 1;
    }
    false
}

/// Returns 1 if this rule asks for the session. Exported, so that the verifier checks it once,
/// and not for each rule and each caller.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_wants(run: u32, arrives: u32, rule: u32) -> u32 {
    let (Some(Scratch { packet: p, .. }), Some(rules)) = (maps::scratch(run), RULES.get(0)) else {
        return 0;
    };
    let key = &p.key.whole;
    let (addr, port) = if arrives != 0 {
        (&key.local, key.local_port)
    } else {
        (&key.remote, key.remote_port)
    };
    let rule = rules.rules.get(rule as usize);
    rule.is_some_and(|r| r.matches(addr, u16::from_be(port))) as u32
}

/// Reads the offer of a segment with SYN into the scratch memory that holds the segment.
#[inline(always)]
pub(crate) fn read(ctx: &TcContext, run: Run) -> bool {
    let run = run as u32;
    let readable = maps::scratch(run).is_some_and(|s| {
        (s.held, s.optional) = (0, 0);
        load_options(ctx, &mut s.packet).is_ok()
    });
    if !readable || dysco_offer(run) == 0 {
        maps::count(Counter::Unreadable);
        return false;
    }
    true
}

/// Takes in a segment with SYN that has been read. Returns false if it must be dropped: its session
/// must have services, and has no entry that could lead to them. An arriving segment always passes.
#[inline(always)]
pub(crate) fn syn(run: Run, dir: Direction) -> bool {
    dysco_syn(run as u32, (dir == Direction::In) as u32) != 0
}

/// Exported: see [`dysco_offer`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_syn(run: u32, arrives: u32) -> u32 {
    let Some(Scratch {
        packet: p,
        offer,
        held,
        optional,
        ..
    }) = maps::scratch(run)
    else {
        return 1;
    };
    let dir = if arrives != 0 {
        Direction::In
    } else {
        Direction::Out
    };
    let recorded = if p.seg.has(ACK) {
        answer(p, offer, dir, *held)
    } else {
        open(run, p, offer, dir, *held)
    };
    let passes = recorded || *held == 0 || *optional != 0;
    if !passes {
        maps::count(Counter::DroppedHeld);
    }
    passes as u32
}

/// Reads the offer. Exported, and therefore a global function in the kernel: the verifier checks
/// it once and separately, and not for each caller.
#[unsafe(no_mangle)]
extern "C" fn dysco_offer(run: u32) -> u32 {
    let Some(Scratch {
        packet: p, offer, ..
    }) = maps::scratch(run)
    else {
        return 0;
    };
    let default_mss = if p.key.is_v6() {
        DEFAULT_MSS_V6
    } else {
        DEFAULT_MSS
    };
    if p.header.begin_offer(default_mss, offer) == Step::Next
        && walk(|| Step::from_word(dysco_offer_step(run))).is_err()
    {
        // The offer is unknown, so the session is never changed.
        offer.flags = 0;
    }
    1
}

/// Exported: a step that the verifier checks once (see `dysco_common::tcp::walk`).
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_offer_step(run: u32) -> u32 {
    match maps::scratch(run) {
        Some(Scratch {
            packet: p, offer, ..
        }) => p.header.offer_step(offer) as u32,
        None => Step::Malformed as u32,
    }
}

/// True if the SYN is a retransmission of the one that opened this session: the answer was lost,
/// and nothing followed the SYN. The stack answers as it did before.
#[inline(always)]
fn repeats(s: &Session, syn: &Segment, dir: Direction) -> bool {
    let (max, bytes) = match dir {
        Direction::Out => (s.snd_max, s.bytes_out),
        Direction::In => (s.rcv_max, s.bytes_in),
    };
    s.state == State::Tracked as u32 && bytes == 0 && max == syn.end()
}

/// True if neither end of the session has been seen to close or reset it.
#[inline(always)]
fn lives(s: &Session) -> bool {
    let known = s.state == State::Tracked as u32
        || s.state == State::Adopted as u32
        || s.state == State::Held as u32;
    known && !s.has_ended()
}

/// Takes in a SYN. Returns false if its session has found no room.
#[inline(always)]
fn open(run: u32, p: &Packet, offer: &Offer, dir: Direction, held: u32) -> bool {
    let mut known = maps::find(&p.key);
    if let Some(Flow { s, .. }) = &mut known
        && s.state == State::Opening as u32
    {
        // A retransmission, or the port used again before anything answered.
        begin(s, &p.key, &p.seg, offer, dir);
        s.laid_by = held;
        return true;
    }
    if known
        .as_ref()
        .is_some_and(|flow| repeats(flow.s, &p.seg, dir))
    {
        return true;
    }
    // Anybody may send a SYN. Its destination answers with a new session only if it no longer
    // has the old one (RFC 5961, 4): see `answer`.
    if dir == Direction::In && known.as_ref().is_some_and(|flow| lives(flow.s)) {
        return true;
    }
    // Services need the entry, whatever the configuration asks for.
    if held == 0 && !wanted(run, dir) {
        return true;
    }
    // A new SYN on a known five-tuple: the earlier session has ended. Its entry keeps the slot
    // until user space collects it.
    match maps::claim(&p.key, known.map(|flow| flow.s)) {
        Some((_, s)) => {
            begin(s, &p.key, &p.seg, offer, dir);
            s.laid_by = held;
            maps::count(Counter::Tracked);
            true
        }
        None => {
            maps::no_room();
            false
        }
    }
}

/// Initializes an entry from a segment with SYN.
#[inline(always)]
pub(crate) fn begin(s: &mut Session, key: &Key, seg: &Segment, offer: &Offer, dir: Direction) {
    // SAFETY: no arguments, no effects.
    s.created_ns = unsafe { bpf_ktime_get_boot_ns() };
    s.bytes_out = 0;
    s.bytes_in = 0;
    s.two = Two::default();
    (s.clamp, s.clamp_remote, s.joined) = (0, 0, 0);
    (s.new_out, s.new_in, s.hop, s.muted, s.renamed) = (0, 0, 0, 0, 0);
    s.tsval_in = 0;
    s.tsval_out = 0;
    s.key = key.whole;
    s.path = FlowKey::default();
    s.alias = Alias::default();
    s.short = key.short;
    s.short_path = ShortKey::default();
    s.translation = Translation::default();
    (s.ifindex, s.laid_by, s.other_path, s.relay) = (0, 0, 0, 0);
    s.local = Offer::default();
    s.remote = Offer::default();
    s.life = Life {
        v6: key.is_v6() as u8,
        ..Life::default()
    };
    (s.snd_max, s.rcv_max, s.snd_ack, s.rcv_ack) = (0, 0, 0, 0);
    s.life.opened_here = (dir == Direction::Out) as u8;
    opens(s, seg, offer, dir);
    s.state = State::Opening as u32;
}

/// Takes in the SYN of the end that opens the session, or of each end if both open it.
#[inline(always)]
pub(crate) fn opens(s: &mut Session, seg: &Segment, offer: &Offer, dir: Direction) {
    let end = seg.end();
    match dir {
        Direction::Out => {
            (s.snd_max, s.snd_seen) = (end, end);
            s.rcv_ack = seg.seq;
            s.local = *offer;
        }
        Direction::In => {
            s.rcv_max = end;
            s.snd_ack = seg.seq;
            s.remote = *offer;
        }
    }
}

/// Takes in the answer to a SYN. Returns false if the SYN was not recorded. The next one is.
#[inline(always)]
fn answer(p: &Packet, offer: &Offer, dir: Direction, held: u32) -> bool {
    let Some(Flow { slot, s, .. }) = maps::find(&p.key) else {
        return held == 0 || expect_syn(p, None);
    };
    if s.state != State::Opening as u32 {
        let anew = s.life.opened_here != 0 || s.local.isn != p.seg.seq;
        if dir == Direction::Out && anew {
            if held != 0 {
                return expect_syn(p, Some(s));
            }
            if lives(s) {
                opened_anew(p, offer, s);
            }
        }
        return true;
    }
    if held != 0 && s.remote.flags == 0 {
        return false;
    }
    // The program may have accepted data of the SYN (RFC 7413): it was not held.
    if dir == Direction::Out && p.seg.ack == s.remote.isn.wrapping_add(1) {
        s.laid_by = held;
    }
    answered(s, &p.seg, offer, dir);
    s.state = State::Tracked as u32;
    if s.laid_by != 0 && s.two.chained == 0 {
        if policy::holds(s.laid_by) {
            s.state = State::Held as u32;
        } else {
            maps::tell(EventKind::Unserved, slot);
        }
    }
    maps::tell_opened(slot);
    true
}

/// Makes an entry for a session whose SYN was not recorded when it arrived: nothing showed then that
/// a program with services would answer. The answer is dropped. The entry takes in the repeated SYN,
/// whose offer the services need, and the answer to that one passes. Returns false.
#[inline(always)]
fn expect_syn(p: &Packet, ended: Option<&mut Session>) -> bool {
    match maps::claim(&p.key, ended) {
        Some((_, s)) => {
            begin(s, &p.key, &p.seg, &Offer::default(), Direction::In);
            maps::count(Counter::Tracked);
        }
        None => maps::no_room(),
    }
    false
}

/// Makes an entry for another session of the same five-tuple: this host's end has lost the
/// earlier one without notice. The offer of the SYN has not been recorded, so the session is
/// never changed.
#[inline(always)]
fn opened_anew(p: &Packet, offer: &Offer, lost: &mut Session) {
    let Some((slot, s)) = maps::claim(&p.key, Some(lost)) else {
        return maps::no_room();
    };
    begin(s, &p.key, &p.seg, offer, Direction::Out);
    answered(s, &p.seg, offer, Direction::Out);
    s.life.opened_here = 0;
    s.rcv_max = p.seg.ack;
    (s.local.flags, s.remote.flags) = (0, 0);
    s.state = State::Tracked as u32;
    maps::count(Counter::Tracked);
    maps::tell_opened(slot);
}

/// Takes in the answer to a SYN.
#[inline(always)]
pub(crate) fn answered(s: &mut Session, seg: &Segment, offer: &Offer, dir: Direction) {
    let end = seg.end();
    match dir {
        Direction::Out => {
            (s.snd_max, s.snd_seen) = (end, end);
            s.snd_ack = seg.ack;
            s.rcv_ack = seg.seq;
            s.local = *offer;
        }
        Direction::In => {
            s.rcv_max = end;
            s.rcv_ack = seg.ack;
            s.snd_ack = seg.seq;
            s.remote = *offer;
        }
    }
    if offer.flags == 0 {
        s.local.flags = 0;
        s.remote.flags = 0;
    }
}
