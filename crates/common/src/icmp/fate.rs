//! The session of an error, the numbers to use, and the receiver.

use crate::flow::FlowKey;
use crate::seq::{after, before};
use crate::session::{Session, State};

/// The segment that an error quotes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quoted {
    /// Five-tuple of the segment: `local` is the source, `remote` the destination.
    pub key: FlowKey,
    /// Sequence number of the segment.
    pub seq: u32,
}

/// Fate of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The error continues unchanged.
    Pass,
    /// The error continues, translated.
    Translate,
    /// The error is dropped. It concerns no segment that the stack has sent and that may be
    /// outstanding (RFC 5927, section 4.1).
    Disbelieve,
}

/// Largest window, in bytes (RFC 7323, section 2.3). No more data than this is outstanding.
const WIDEST: u32 = 1 << 30;

/// Judges an error about a segment that left by the new path of `s`, and sets `quoted` to the
/// segment as the stack sent it. The stack compares the number with the acknowledged ones. This
/// function refuses only numbers that were never sent, and errors about the packets that opened the
/// path. The present path is not narrower because the new one is too narrow for those packets.
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

/// Judges an error about a segment that this host has relayed. The segment came from the end of
/// `from` and left by the five-tuple of `by`. Sets `quoted` to the segment as that end sent it. In
/// the two-path phase errors about segments of this host's own stack go to the stack.
#[inline(always)]
pub fn about_relayed(from: &Session, by: &Session, quoted: &mut Quoted) -> Fate {
    let seq = from.acked_off_wire(quoted.seq);
    let two_paths = from.state == State::RelayTwoPaths as u32;
    if two_paths && (from.two.cut_set == 0 || before(seq, from.cut_out)) {
        return Fate::Pass;
    }
    let acked = from.acked_off_wire(by.rcv_ack);
    // If replies bypass this host, it has seen only the client's part.
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

/// Judges an error that this host sends about a received segment of `s`, and sets `quoted` to the
/// segment as the neighbour on the new path sent it.
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

/// Returns true if `seq` is in the range, modulo 2^32, including both bounds.
#[inline(always)]
fn is_within(seq: u32, low: u32, high: u32) -> bool {
    !before(seq, low) && !after(seq, high)
}
