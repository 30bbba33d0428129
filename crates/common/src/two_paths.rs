//! The two-path phase: which path a segment of the local end takes, what each
//! path may hear acknowledged, and what the local end may hear of the far end
//! before the old path has drained.
//!
//! Pure: the programs hand in the words of the session entry and apply the
//! answer. All sequence numbers are in the end's own spaces, modulo 2^32.
//!
//! "The local end" is the end of the session that the anchor acts for: a socket
//! of this host at a near anchor; at a far one, the remote end, whose packets
//! come in where a near anchor's go out. An entry's words are always those of
//! this host's side, and read the other way round there ([`Anchor`]).

use crate::flow::Path;
use crate::seq::{after, before, max, min};
use crate::session::{Session, State};
use crate::tcp::{ACK, Edit, FIN, PSH, RST, SYN, Segment};

/// Whose end the anchor acts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// This host's.
    Near,
    /// The remote one, one hop away.
    Far,
}

impl Anchor {
    /// End of the highest segment that the end sent.
    #[inline(always)]
    pub const fn snd_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.snd_max,
            Anchor::Far => s.rcv_max,
        }
    }

    /// End of the highest segment that the old path sent it.
    #[inline(always)]
    const fn rcv_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.rcv_max,
            Anchor::Far => s.snd_max,
        }
    }

    /// Highest ack that the old path sent it.
    #[inline(always)]
    const fn rcv_ack(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.rcv_ack,
            Anchor::Far => s.snd_ack,
        }
    }

    /// Highest ack that the end sent.
    #[inline(always)]
    const fn acked(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.snd_ack,
            Anchor::Far => s.rcv_ack,
        }
    }

    /// Last TSval that the end sent.
    #[inline(always)]
    pub const fn tsval(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.tsval_out,
            Anchor::Far => s.tsval_in,
        }
    }

    /// Last TSval that the old path sent it.
    #[inline(always)]
    pub const fn tsval_heard(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.tsval_in,
            Anchor::Far => s.tsval_out,
        }
    }

    /// Scale of the windows that the end is told.
    #[inline(always)]
    pub const fn wscale(self, s: &Session) -> u8 {
        match self {
            Anchor::Near => s.remote_wscale(),
            Anchor::Far => s.local_wscale(),
        }
    }

    /// Bound of the window that the old path may tell it, as it is sent; 0 for none.
    #[inline(always)]
    const fn clamp(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.clamp as u32,
            Anchor::Far => s.clamp_far as u32,
        }
    }
}

/// A header-only copy for the path that the segment itself does not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Its path.
    pub path: Path,
    /// The sequence number that path expects.
    pub seq: u32,
    /// What that path may hear acknowledged.
    pub ack: u32,
    /// Flags: ACK alone, or those of a reset.
    pub flags: u8,
    /// Its window, as sent.
    pub window: u16,
}

/// Where a segment of the local end goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The path of the segment itself.
    pub path: Path,
    /// The sequence number it goes with.
    pub seq: u32,
    /// The acknowledgement it goes with.
    pub ack: u32,
    /// The window it goes with, as sent.
    pub window: u16,
    /// What the other path gets.
    pub copy: Option<Copy>,
}

/// What a path may hear acknowledged.
struct Heard {
    ack: u32,
    window: u16,
}

/// Has the new path carried the highest number that the other end had sent
/// elsewhere? Then nothing may not be acknowledged on it. Always so where its
/// opening was not seen.
#[inline(always)]
pub const fn has_shown_all(s: &Session) -> bool {
    s.shown == 0 || s.two.cut_in_set != 0 && (has_all_old(s) || !before(s.shown, s.cut_in))
}

/// In `new_data`: the end has acknowledged data that came by the new path alone, and so
/// all that the old path carries. Kept, for the reason that [`PAST`] is: the cutoff may
/// be told long after.
const ALL_OLD: u8 = 2;

/// Takes in what a segment of the end acknowledges of the new path's data.
#[inline(always)]
pub fn acknowledge(s: &mut Session, seg: &Segment) {
    let new = s.two.new_data != 0 && s.two.new_data & ALL_OLD == 0;
    if new && seg.has(ACK) && !before(seg.ack, s.new_low) {
        s.two.new_data |= ALL_OLD;
    }
}

/// Has the end acknowledged all that the old path carries, as far as the new one shows?
#[inline(always)]
const fn has_all_old(s: &Session) -> bool {
    s.two.new_data & ALL_OLD != 0
}

/// Has the end acknowledged all before this number, which the old path ends with?
#[inline(always)]
pub const fn has_old(at: Anchor, s: &Session, cutoff: u32) -> bool {
    has_all_old(s) || !before(at.acked(s), cutoff)
}

/// Takes in the lowest number of data on the new path.
#[inline(always)]
pub fn hear_data(s: &mut Session, seg: &Segment) {
    let lowest = s.two.new_data == 0 || !has_all_old(s) && before(seg.seq, s.new_low);
    if seg.span() > 0 && lowest {
        s.new_low = seg.seq;
        s.two.new_data = 1;
    }
}

/// Takes in up to where the other end has shown on the new path to have sent. True
/// if the session waited for nothing but that.
#[inline(always)]
pub fn show(s: &mut Session, to: u32) -> bool {
    let before = has_shown_all(s);
    if s.shown == 0 || after(to, s.shown) {
        s.shown = to;
    }
    !before && has_shown_all(s) && s.two.drained != 0
}

/// In `cut_set`: the far end has all up to the cutoff, so that nothing before it is sent
/// again. Kept, since numbers tell no more than 2 GiB apart, and this phase may take as
/// long as a daemon is not there, or an application reads nothing.
const PAST: u8 = 2;

/// Takes in how far the far end has announced to be, on the new path, by a segment that
/// acknowledges up to `ack`. What was never sent no end acknowledges: that is anybody's.
#[inline(always)]
pub fn hear_far(at: Anchor, s: &mut Session, ack: u32, judged: &NewIncoming) {
    if after(ack, at.snd_max(s)) {
        return;
    }
    s.edge = judged.edge;
    s.far_ack = judged.far_ack;
    s.two.edge_set = 1;
    if s.two.cut_set != 0 && !before(s.far_ack, s.cut_out) {
        s.two.cut_set |= PAST;
    }
}

/// Has the far end said that it has all up to the cutoff?
#[inline(always)]
pub const fn is_past(s: &Session) -> bool {
    s.two.cut_set & PAST != 0
}

/// Has the far end acknowledged what the local one sent on the new path? Then no old path
/// can carry the session any more.
#[inline(always)]
pub const fn has_carried(s: &Session) -> bool {
    is_past(s) && s.far_ack != s.cut_out
}

/// Has it been taken back? Everything takes the old path, and the new one is not heard.
#[inline(always)]
pub const fn is_taken_back(s: &Session) -> bool {
    s.deaf != 0 && s.two.cut_set == 0
}

/// Has the old path, taken again, sent all that the local end may have got by either? Until
/// then that end's acknowledgements are more than a middlebox may hear ([`outgoing`]).
#[inline(always)]
pub const fn has_caught_up(s: &Session) -> bool {
    let behind = after(s.snd_ack, s.rcv_max) || s.shown != 0 && after(s.shown, s.rcv_max);
    s.two.new_data == 0 || !behind
}

/// Is this a reset that the local end may believe, by its number in that end's own
/// space? It believes none but the next that it expects (RFC 5961, 3.2), which lies
/// between what it has acknowledged and what has come by either path. Anybody may send
/// another, and the bytes that the proxy still has to deliver would be given up for it.
#[inline(always)]
pub const fn may_reset(s: &Session, seq: u32) -> bool {
    if s.state != State::TwoPaths as u32 {
        return true;
    }
    let shown = s.shown != 0 && after(s.shown, s.rcv_max);
    let highest = if shown { s.shown } else { s.rcv_max };
    !before(seq, s.snd_ack) && !after(seq, highest)
}

/// Is this the reset of a socket that may not send where it has sent already? The kernel
/// gives it the end of the window (`tcp_acceptable_seq`, net/ipv4/tcp_output.c), which
/// the old path takes back, and no other end would believe that number. The acknowledgement
/// tells it from the answer to a segment that met no socket.
#[inline(always)]
pub const fn is_shut_in(at: Anchor, s: &Session, seg: &Segment) -> bool {
    const FAR_BEHIND: u32 = 1 << 30;
    let beneath = at.snd_max(s).wrapping_sub(seg.seq);
    seg.has(RST) && seg.has(ACK) && beneath != 0 && beneath < FAR_BEHIND
}

/// SACK blocks that a path may hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sacks {
    /// Not all.
    pub limited: bool,
    /// Those up to here (the local end's own numbers).
    pub to: u32,
}

/// Blocks are of all that the end has got, by whichever path. A strict firewall drops
/// what has one beyond that which it has seen.
#[inline(always)]
pub fn sacks(s: &Session, path: Path) -> Sacks {
    match path {
        Path::Old => Sacks {
            limited: s.two.new_data != 0,
            to: s.rcv_max,
        },
        Path::New => Sacks {
            limited: !has_shown_all(s),
            to: s.shown,
        },
    }
}

/// What the old path may hear of a segment: it resets what acknowledges more than it
/// ever sent.
#[inline(always)]
fn on_old(at: Anchor, s: &Session, seg: &Segment) -> Heard {
    Heard {
        ack: min(seg.ack, at.rcv_max(s)),
        window: seg.window,
    }
}

/// What the new path may hear: a strict firewall drops what acknowledges more than
/// that has shown. The right edge of the window stays where it is.
#[inline(always)]
fn on_new(at: Anchor, s: &Session, seg: &Segment) -> Heard {
    if at == Anchor::Far || has_shown_all(s) || !after(seg.ack, s.shown) {
        return Heard {
            ack: seg.ack,
            window: seg.window,
        };
    }
    let wscale = s.local_wscale() & 15;
    let edge = seg.ack.wrapping_add((seg.window as u32) << wscale);
    Heard {
        ack: s.shown,
        window: scaled(edge.wrapping_sub(s.shown), wscale),
    }
}

/// The segment's own path: retransmissions and segments across the cutoff take
/// the old one whole (their tail then arrives twice, which TCP discards).
#[inline(always)]
pub fn data_path(s: &Session, seq: u32) -> Path {
    if s.two.cut_set != 0 && !is_early(s, seq) {
        Path::New
    } else {
        Path::Old
    }
}

/// After the cut: is this number of the old path?
#[inline(always)]
const fn is_early(s: &Session, seq: u32) -> bool {
    !is_past(s) && before(seq, s.cut_out)
}

/// Splits a segment of the local end between the paths.
#[inline(always)]
pub fn outgoing(at: Anchor, s: &Session, seg: &Segment) -> Outgoing {
    let on_old = on_old(at, s, seg);
    let whole = |path, seq, heard: &Heard| Outgoing {
        path,
        seq,
        ack: heard.ack,
        window: heard.window,
        copy: None,
    };
    let copy = |path, seq, heard: &Heard, flags| Copy {
        path,
        seq,
        ack: heard.ack,
        flags,
        window: heard.window,
    };
    // Unless anybody may have sent it.
    let shut_in = s.life.reset != 0 && is_shut_in(at, s, seg);
    let number = if shut_in { at.snd_max(s) } else { seg.seq };
    if s.two.cut_set == 0 {
        return whole(Path::Old, number, &on_old);
    }
    let on_new = on_new(at, s, seg);
    if seg.has(RST) {
        let old_number = if shut_in {
            min(number, s.cut_out)
        } else {
            number
        };
        return Outgoing {
            copy: Some(copy(Path::New, number, &on_new, seg.flags)),
            ..whole(Path::Old, old_number, &on_old)
        };
    }
    let old_news = s.two.old_ack_set == 0 || after(on_old.ack, s.old_ack);
    let new_news = s.two.new_ack_set == 0 || after(on_new.ack, s.new_ack);
    // Probes carry a number before what they probe. On the new path it must not
    // be of the old one as long as the far end waits for that: it would take
    // over the new path's clock while the proxy's segments still come with
    // theirs (PAWS). Afterwards it must be, or nobody answers the probe.
    let early = is_early(s, seg.seq);
    let far_has_old = s.two.edge_set != 0 && !before(s.far_ack, s.cut_out);
    let old_seq = if early { seg.seq } else { s.cut_out };
    let new_seq = if early && !far_has_old {
        s.cut_out
    } else {
        seg.seq
    };
    if seg.span() > 0 {
        return match data_path(s, seg.seq) {
            Path::Old => {
                let also = copy(Path::New, at.snd_max(s), &on_new, ACK);
                let wanted = seg.has(ACK) && new_news && after(on_new.ack, at.rcv_max(s));
                Outgoing {
                    copy: wanted.then_some(also),
                    ..whole(Path::Old, seg.seq, &on_old)
                }
            }
            Path::New => {
                let also = copy(Path::Old, old_seq, &on_old, ACK);
                let wanted = seg.has(ACK) && old_news;
                Outgoing {
                    copy: wanted.then_some(also),
                    ..whole(Path::New, seg.seq, &on_new)
                }
            }
        };
    }
    // A pure ack: the new path always hears it, for the window in it; the old
    // one until its last byte is acknowledged, and probes of what it carried.
    let old_done = s.two.drained != 0 && !old_news && !early;
    let also = copy(Path::Old, old_seq, &on_old, ACK);
    Outgoing {
        copy: (!old_done).then_some(also),
        ..whole(Path::New, new_seq, &on_new)
    }
}

/// Has the local end, by this segment, acknowledged all of the old path?
#[inline(always)]
pub fn drains(s: &Session, seg: &Segment) -> bool {
    let waits = s.two.cut_in_set != 0 && s.two.drained == 0 && seg.has(ACK);
    waits && (has_all_old(s) || !before(seg.ack, s.cut_in))
}

/// What becomes of a segment that arrived on the old path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldIncoming {
    /// Deliver it so.
    Deliver {
        /// The acknowledgement.
        ack: u32,
        /// Window as sent.
        window: u16,
        /// Flags.
        flags: u8,
    },
    /// The proxy itself ends the session after all it had to relay is
    /// delivered: nobody may hear that.
    Drop,
    /// It only repeats what is acknowledged already.
    Withhold,
}

/// Is this FIN or RST the proxy's own, sent when it had nothing left to relay?
#[inline(always)]
pub fn proxy_ends(at: Anchor, s: &Session, seg: &Segment) -> bool {
    if is_taken_back(s) {
        return false;
    }
    if seg.has(RST) {
        // What the highest number seen says is not enough: there may be a hole.
        return s.two.cut_set & s.two.drained != 0 && !before(at.rcv_ack(s), s.cut_out);
    }
    let fin_at = seg.seq.wrapping_add(seg.len);
    let cut_in = if s.two.cut_in_set != 0 {
        s.cut_in
    } else if s.two.new_data != 0 {
        s.new_low
    } else {
        return false;
    };
    seg.has(FIN) && !before(fin_at, cut_in)
}

/// The window of `bytes` as sent under a scale.
#[inline(always)]
fn scaled(bytes: u32, wscale: u8) -> u16 {
    let w = bytes >> wscale;
    if w > 0xffff { 0xffff } else { w as u16 }
}

/// Bytes from an ack to the right edge that the far end announced.
#[inline(always)]
fn room(edge: u32, ack: u32) -> u32 {
    if after(edge, ack) {
        edge.wrapping_sub(ack)
    } else {
        0
    }
}

/// Does the proxy ask whether there is room again, or whether the end is there at all? It
/// repeats a number that the end has acknowledged. The end answers, and takes in nothing
/// (RFC 9293, 3.10.7.4). It must: without an answer the proxy gives up what it holds.
#[inline(always)]
fn probes(at: Anchor, s: &Session, seg: &Segment) -> bool {
    before(seg.seq, at.acked(s))
}

/// Judges a segment from the old path. The proxy is not believed about bytes
/// from the cutoff on, which it may have got in a segment across it: it leaves
/// without waiting for them to be relayed. Its acks stand still while those of
/// the new path go on: they are raised to these, since Linux discards a whole
/// segment whose ack is older than a window. Its window is bounded by `clamp`
/// and, once the far end has announced its own, by that.
#[inline(always)]
pub fn old_incoming(at: Anchor, s: &Session, seg: &Segment, wscale: u8) -> OldIncoming {
    let wscale = wscale & 15;
    let mut flags = seg.flags;
    if proxy_ends(at, s, seg) {
        if seg.has(RST) || seg.len == 0 {
            return OldIncoming::Drop;
        }
        flags &= !FIN;
    }
    let mut ack = if s.two.cut_set != 0 {
        min(seg.ack, s.cut_out)
    } else {
        seg.ack
    };
    let clamp = at.clamp(s);
    let mut limit = if clamp > 0 { clamp << wscale } else { u32::MAX };
    if s.two.cut_set & s.two.edge_set != 0 && seg.has(ACK) && !seg.has(RST) {
        if is_past(s) || after(s.far_ack, ack) {
            if seg.span() == 0 && !probes(at, s, seg) {
                return OldIncoming::Withhold;
            }
            ack = s.far_ack;
            let window = scaled(room(s.edge, ack), wscale);
            return OldIncoming::Deliver { ack, window, flags };
        }
        let far = room(s.edge, ack);
        limit = if far < limit { far } else { limit };
    }
    let fits = ((seg.window as u32) << wscale) <= limit;
    let window = if fits {
        seg.window
    } else {
        scaled(limit, wscale)
    };
    OldIncoming::Deliver { ack, window, flags }
}

/// What becomes of a segment that arrived on the new path, already in the
/// local end's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewIncoming {
    /// Deliver it at all? A pure ack that says nothing new would count as a
    /// duplicate.
    pub deliver: bool,
    /// The number to deliver it under. If that is another, it belongs to the old path,
    /// whose clock it has to show.
    pub seq: u32,
    /// The acknowledgement to deliver.
    pub ack: u32,
    /// The window to deliver, as sent.
    pub window: u16,
    /// SACK blocks above a hole that the local end believes acknowledged look
    /// like reneging: strip them.
    pub strip_sack: bool,
    /// The far end's right window edge, highest so far.
    pub edge: u32,
    /// The far end's ack, highest so far.
    pub far_ack: u32,
}

/// The number of a segment from the new path. A pure ack has that of what comes next
/// there, which is beyond all that the proxy still holds for the local end: beyond its
/// window, if it does not read, and it would discard the ack. The old path sends
/// nothing beyond the window, so it goes under the highest number of that.
#[inline(always)]
fn within_window(at: Anchor, s: &Session, seg: &Segment) -> u32 {
    let waits = s.two.drained == 0 && (s.two.cut_in_set != 0 || s.two.new_data == 0);
    if waits && seg.span() == 0 && !seg.has(RST) && after(seg.seq, at.rcv_max(s)) {
        at.rcv_max(s)
    } else {
        seg.seq
    }
}

/// Judges a segment from the new path. The far end has not got yet what the
/// proxy acknowledged for it: its ack is raised to the highest the old path
/// gave, its right window edge kept where it is.
#[inline(always)]
pub fn new_incoming(at: Anchor, s: &Session, seg: &Segment, wscale: u8) -> NewIncoming {
    let wscale = wscale & 15;
    let edge_now = seg.ack.wrapping_add((seg.window as u32) << wscale);
    let known = s.two.edge_set != 0;
    let edge = if known {
        max(s.edge, edge_now)
    } else {
        edge_now
    };
    let far_ack = if known {
        max(s.far_ack, seg.ack)
    } else {
        seg.ack
    };
    let floor = if s.two.cut_set != 0 {
        min(at.rcv_ack(s), s.cut_out)
    } else {
        at.rcv_ack(s)
    };
    let seq = within_window(at, s, seg);
    // Far beyond the cutoff nothing is compared with it: see `PAST`.
    let far = is_past(s) && s.far_ack.wrapping_sub(s.cut_out) >= 1 << 30;
    if !seg.has(ACK) || seg.has(RST) || far || !before(seg.ack, floor) {
        return NewIncoming {
            deliver: true,
            seq,
            ack: seg.ack,
            window: seg.window,
            strip_sack: false,
            edge,
            far_ack,
        };
    }
    let window = scaled(room(edge, floor), wscale);
    let news = !known || after(edge, s.edge);
    NewIncoming {
        deliver: seg.span() > 0 || (news && window > 0),
        seq,
        ack: floor,
        window,
        strip_sack: true,
        edge,
        far_ack,
    }
}

/// Takes in a SYN on a new path that this end, the right one, is prepared for, or a
/// later [`opens_windows`] of the left end.
#[inline(always)]
pub fn hear_opening(s: &mut Session, seg: &Segment) -> bool {
    if s.shown == 0 && s.two.cut_set == 0 {
        s.cut_out = s.snd_max;
    }
    // The payload of a SYN is nobody's.
    let next = seg.seq.wrapping_add((seg.has(SYN)) as u32);
    show(s, s.received_off_wire(next))
}

/// The answer to that: proof for the other anchor that packets pass both ways, and
/// for what lies between that a connection opens. Numbers are just before those
/// that follow. A SYN with a payload gets a SYN-ACK, with this end's window scale;
/// one without, which comes behind it, the acknowledgement behind that.
#[inline(always)]
pub fn answer_opening(s: &Session, seg: &Segment) -> Edit {
    let opens = seg.has(SYN);
    let mut first = s.sent_on_wire(s.cut_out);
    if !opens {
        // No further than firewalls let it go ahead. What is acknowledged next does.
        let widest = (u16::MAX as u32) << (s.remote_wscale() & 15);
        first = min(first, seg.ack.wrapping_add(widest));
    }
    let syn = opens && seg.len > 0;
    Edit {
        sport: s.path.local_port,
        dport: s.path.remote_port,
        seq: first.wrapping_sub(syn as u32),
        ack: seg.seq.wrapping_add(opens as u32),
        window: u16::MAX,
        flags: if syn { SYN | ACK } else { ACK | PSH },
        wscale: s.local_wscale() as u32 + 1,
        ..Edit::default()
    }
}

/// Is this one of the acknowledgements that open a path? Behind SYN and SYN-ACK
/// each end sends one with the widest window, and another when it takes the path,
/// with the highest number that it has sent: so firewalls on it let the numbers
/// go ahead by as much as was sent elsewhere meanwhile. They are not the stack's:
/// no stack may believe that window, or what they acknowledge. No stack pushes
/// nothing, which tells them from its own.
#[inline(always)]
pub const fn opens_windows(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len == 0 && seg.window == u16::MAX
}

/// Is it, perhaps, the one of them that is as long as the longest segment of its end?
/// Each end sends one behind its first: a path too narrow for that is not taken, since
/// no router's word about it would find its socket. What it carries is nobody's. It is
/// numbered before the SYN, for a firewall something that is repeated; and a stack
/// that heard it later, when the path before is given up, has acknowledged that.
#[inline(always)]
pub const fn may_show_length(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len > 0 && seg.window == u16::MAX
}

/// The same on a path that has shown this number already: a stack says that seldom, and
/// does not begin by it.
#[inline(always)]
pub const fn is_of_opening(seg: &Segment, shown: u32) -> bool {
    opens_windows(seg) || may_show_length(seg) && !after(seg.end(), shown)
}

/// The window of what ends a path.
pub const LAST_WINDOW: u16 = u16::MAX - 1;

/// Is this one of the two packets that end a path for the firewalls on it: an
/// acknowledgement, and a reset behind it? The session goes on by another path, and who
/// hears this may not have left the one that it comes by. So no stack may hear it, nor the
/// connection tracking of a host that passes the session on. No stack pushes nothing.
#[inline(always)]
pub const fn ends_path(seg: &Segment) -> bool {
    seg.flags & !RST == ACK | PSH && seg.len == 0 && seg.window == LAST_WINDOW
}

/// Takes in a segment that shows the length, on a path that is being opened or was a
/// moment ago. False if it is none.
///
/// Before this end has heard one, nothing else has data there: the other end takes the
/// path after this one has answered, or after this one has. Later it is one that
/// ends where that did: a byte before where segments do, however long it is.
#[inline(always)]
pub fn hear_length(s: &mut Session, seg: &Segment) -> bool {
    if !may_show_length(seg) {
        return false;
    }
    let end = s.received_off_wire(seg.end());
    if has_length(s) {
        return end == s.new_low;
    }
    let opening = s.state == State::Joining as u32;
    if !opening || !before(end, s.rcv_max) {
        return false;
    }
    s.new_low = end;
    s.two.new_data = 1;
    true
}

/// Has the other end shown on this path, which is being opened, that it is wide enough
/// for its segments?
#[inline(always)]
pub const fn has_length(s: &Session) -> bool {
    s.two.new_data != 0
}

/// Has the path that a session was switched to carried the highest number that
/// the other end had sent elsewhere? Then nothing may not be acknowledged on it.
#[inline(always)]
pub const fn carries_all(s: &Session) -> bool {
    s.two.cut_in_set != 0 && !before(s.rcv_max, s.cut_in)
}

/// How far an acknowledgement may always be behind: a window without a scale.
const BEHIND: u32 = u16::MAX as u32;

/// What the path that a session was switched to counts as having carried at least, at
/// this acknowledgement of the local end: numbers tell no more than 2 GiB apart. So far
/// behind, nothing is acknowledged there any more ([`leaving`]).
#[inline(always)]
pub const fn least_carried(s: &Session, seg: &Segment) -> u32 {
    if seg.has(ACK) {
        seg.ack.wrapping_sub(1 << 30)
    } else {
        s.rcv_max
    }
}

/// Which path a segment of the local end takes while its path is being left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// The new one.
    New,
    /// The one before.
    Before,
    /// The new one, acknowledging there what that has carried, and the one before
    /// a copy of its header with the acknowledgement.
    Split,
}

/// Judges a segment of a session that has been switched. What the new path has not
/// carried may not be acknowledged there: a strict firewall drops the segment.
///
/// But where the other end goes on by the path before, since the new one takes longer
/// and it has not heard of the switch yet, or since it has taken that again and this
/// host's daemon is not there to hear of it, the older acknowledgement would fall more
/// than a window behind, and Linux discards the data with it (RFC 5961, 5.2). So some
/// data take the path before, from beyond the cutoff as well: what is acknowledged
/// there is asked of what the new path has carried alone.
#[inline(always)]
pub const fn leaving(s: &Session, seg: &Segment) -> Leaving {
    if !seg.has(ACK) || !after(seg.ack, s.rcv_max) {
        return Leaving::New;
    }
    let behind = seg.ack.wrapping_sub(s.rcv_max);
    let window = (seg.window as u32) << (s.local_wscale() & 15);
    if seg.span() == 0 || behind > BEHIND && behind > window {
        Leaving::Before
    } else {
        Leaving::Split
    }
}
