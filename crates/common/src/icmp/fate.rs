//! Which session an error is about, in whose numbers, and who is to hear it.

use crate::flow::FlowKey;
use crate::seq::{after, before};
use crate::session::{Session, State};

/// The segment that an error quotes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quoted {
    /// Its five-tuple: `local` is the source, `remote` the destination.
    pub key: FlowKey,
    /// Its sequence number.
    pub seq: u32,
}

/// Fate of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes on as it is.
    Pass,
    /// It goes on, translated.
    Translate,
    /// It is about nothing that the stack has sent and that may be outstanding (RFC 5927,
    /// section 4.1): it is dropped.
    Disbelieve,
}

/// Largest window, in bytes (RFC 7323, section 2.3). No more than this is outstanding.
const WIDEST: u32 = 1 << 30;

/// Judges an error about a segment that left by the new path of `s`, and makes `quoted`
/// that segment as the stack sent it. The stack compares the number with what is
/// acknowledged; here only what was never sent is kept away, and what opened the path: the
/// present path is no narrower because the new one is too narrow for that.
#[inline(always)]
pub fn about_sent(s: &Session, quoted: &mut Quoted) -> Fate {
    match State::from_word(s.state) {
        Some(State::Joining) => return Fate::Disbelieve,
        Some(State::TwoPaths) if s.two.cut_set == 0 => return Fate::Disbelieve,
        Some(State::TwoPaths | State::NewPath | State::Switching | State::Passing) => {}
        _ => return Fate::Pass,
    }
    let seq = s.acked_off_wire(quoted.seq);
    if !is_within(seq, s.snd_max.wrapping_sub(WIDEST), s.snd_max) {
        return Fate::Disbelieve;
    }
    quoted.key = s.key;
    quoted.seq = seq;
    Fate::Translate
}

/// Judges an error about a segment that this host has relayed: it came from the end of
/// `from` and left by the five-tuple of `by`. Makes `quoted` the segment as that end sent
/// it. In the two-path phase what this host's own stack sent is the stack's to hear of.
#[inline(always)]
pub fn about_relayed(from: &Session, by: &Session, quoted: &mut Quoted) -> Fate {
    let seq = from.acked_off_wire(quoted.seq);
    let two_paths = from.state == State::FarTwoPaths as u32;
    if two_paths && (from.two.cut_set == 0 || before(seq, from.cut_out)) {
        return Fate::Pass;
    }
    let acked = from.acked_off_wire(by.rcv_ack);
    // Where replies pass this host by, it knows the client's part alone.
    let (low, high) = if by.two.returns != 0 {
        (acked, acked.wrapping_add(WIDEST))
    } else if from.two.returns != 0 || after(acked, from.rcv_max) {
        (from.rcv_max.wrapping_sub(WIDEST), from.rcv_max)
    } else {
        (acked, from.rcv_max)
    };
    if !is_within(seq, low, high) {
        return Fate::Disbelieve;
    }
    from.key.mirror_to(&mut quoted.key);
    quoted.seq = seq;
    Fate::Translate
}

/// Judges an error that this host sends about a segment of `s` which it has received, and
/// makes `quoted` the segment as the neighbour on the new path sent it.
#[inline(always)]
pub fn about_received(s: &Session, quoted: &mut Quoted) -> Fate {
    match State::from_word(s.state) {
        Some(State::NewPath | State::Switching | State::Passing) => {}
        _ => return Fate::Pass,
    }
    s.path.mirror_to(&mut quoted.key);
    quoted.seq = s.received_on_wire(quoted.seq);
    Fate::Translate
}

/// Modulo 2^32, both bounds included.
#[inline(always)]
fn is_within(seq: u32, low: u32, high: u32) -> bool {
    !before(seq, low) && !after(seq, high)
}
