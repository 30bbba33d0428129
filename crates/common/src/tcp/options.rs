//! The options of a TCP header: reading the offers, and rewriting in place.
//!
//! A walk takes one step for each option. In the kernel each step is a call of a global function,
//! which the verifier checks once. In a loop it would follow each way through each step.

use super::{ACK, AE, CWR, ECE, Edit, Header, MIN_HEADER, edit, opaque};
use crate::seq::after;
use crate::session::{Offer, offer};

const KIND_END: u8 = 0;
pub(super) const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WSCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
pub(super) const KIND_TIMESTAMPS: u8 = 8;
const KIND_MD5: u8 = 19;
const KIND_AO: u8 = 29;
const KIND_MPTCP: u8 = 30;
const KIND_FAST_OPEN: u8 = 34;

/// Largest scale that RFC 7323 allows.
const MAX_WSCALE: u8 = 14;

/// Maximum number of steps. Each step takes at least one of the 40 bytes, except for the heads of
/// options that are overwritten. There is room for four of these.
const MAX_STEPS: usize = 44;

/// Place of a walk's offset between two steps: after the end of every header.
const AT: usize = 60;
/// Place of the number of SACK words that a walk has still to change.
const SACK_WORDS: usize = 61;
/// Place of the number of bytes that a walk has still to overwrite.
const NOPS: usize = 62;

/// Options that do not parse: a length is below two, or exceeds the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The outcome of a step of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Step {
    /// There may be more options.
    Next,
    /// The walk is over.
    End,
    /// The walk is over, and the header is bad.
    Malformed,
}

/// Takes steps until the walk is over.
#[inline(always)]
pub fn walk(mut step: impl FnMut() -> Step) -> Result<(), Malformed> {
    let mut steps = 0;
    while steps < MAX_STEPS {
        steps = opaque(steps) + 1; // a loop that LLVM does not unroll
        match step() {
            Step::Next => {}
            Step::End => return Ok(()),
            Step::Malformed => return Err(Malformed),
        }
    }
    Ok(())
}

/// Returns the valid form of a window scale (RFC 7323, 2.3).
#[inline(always)]
fn valid_wscale(offered: u8) -> u8 {
    if offered > MAX_WSCALE {
        MAX_WSCALE
    } else {
        offered
    }
}

/// An option that a walk finds.
enum Found {
    /// No option is left.
    End,
    /// One byte without meaning.
    Nop,
    /// An option with a length.
    Known { kind: u8, len: usize },
    /// An option that does not parse.
    Malformed,
}

impl Step {
    /// Converts the word that a step in the kernel has returned.
    #[inline(always)]
    pub const fn from_word(word: u32) -> Step {
        const NEXT: u32 = Step::Next as u32;
        const END: u32 = Step::End as u32;
        match word {
            NEXT => Step::Next,
            END => Step::End,
            _ => Step::Malformed,
        }
    }
}

impl Header {
    #[inline(always)]
    fn recall(&self, what: usize) -> usize {
        self.0[what] as usize
    }

    #[inline(always)]
    fn remember(&mut self, what: usize, v: usize) {
        self.0[what] = v as u8;
    }

    /// Returns the option at an offset.
    #[inline(always)]
    fn option(&self, i: usize) -> Found {
        let end = self.data_offset();
        if i >= end {
            return Found::End;
        }
        let kind = self.byte(i);
        if kind == KIND_END {
            return Found::End;
        }
        if kind == KIND_NOP {
            return Found::Nop;
        }
        let len = self.byte(i + 1) as usize;
        if len < 2 || i + len > end {
            return Found::Malformed;
        }
        Found::Known { kind, len }
    }

    /// Rewrites any header, but not its checksum: use [`Header::sum`] before and after. On `Err`
    /// the options up to the fault are rewritten, and the packet must be dropped.
    pub fn rewrite(&mut self, e: &Edit) -> Result<(), Malformed> {
        self.begin_rewrite(e);
        walk(|| self.rewrite_step(e))
    }

    /// Rewrites the fixed fields, and begins a walk of [`Header::rewrite_step`]. A step in the kernel
    /// is a call. The options with which Linux and others begin therefore need none.
    #[inline(always)]
    pub fn begin_rewrite(&mut self, e: &Edit) {
        self.edit_fixed(e);
        self.remember(AT, MIN_HEADER);
        self.remember(SACK_WORDS, 0);
        self.remember(NOPS, 0);
        if self.starts_with_timestamps() {
            self.begin_at::<22>(KIND_TIMESTAMPS, 10, e);
            if e.strip & edit::TIMESTAMPS == 0 && self.sack_follows() {
                self.begin_at::<34>(KIND_SACK, self.0[35] as usize, e);
            }
        }
    }

    /// Begins with the option at a fixed offset.
    #[inline(always)]
    fn begin_at<const OFFSET: usize>(&mut self, kind: u8, len: usize, e: &Edit) {
        self.remember(AT, OFFSET);
        self.rewrite_option(OFFSET, kind, len, e);
    }

    /// Returns true if `NOP, NOP`, SACK blocks and no further option follow the first timestamps.
    #[inline(always)]
    fn sack_follows(&self) -> bool {
        let len = self.0[35] as usize;
        let blocks = len == 10 || len == 18 || len == 26;
        let is_last = self.data_offset() == 34 + len;
        let [a, b, kind] = [self.0[32], self.0[33], self.0[34]];
        is_last && blocks && a == KIND_NOP && b == KIND_NOP && kind == KIND_SACK
    }

    /// Rewrites the next option, or the next edge of a SACK block, or the next byte of an option
    /// that is overwritten.
    #[inline(always)]
    pub fn rewrite_step(&mut self, e: &Edit) -> Step {
        let i = self.recall(AT);
        let (sack_words, nops) = (self.recall(SACK_WORDS), self.recall(NOPS));
        if sack_words > 0 {
            self.rewrite_edge(i, e);
            self.remember(AT, i + 4);
            self.remember(SACK_WORDS, sack_words - 1);
            return Step::Next;
        }
        if nops > 0 {
            self.set_byte(i, KIND_NOP);
            self.remember(AT, i + 1);
            self.remember(NOPS, nops - 1);
            return Step::Next;
        }
        match self.option(i) {
            Found::End => Step::End,
            Found::Malformed => Step::Malformed,
            Found::Nop => {
                self.remember(AT, i + 1);
                Step::Next
            }
            Found::Known { kind, len } => {
                self.rewrite_option(i, kind, len, e);
                Step::Next
            }
        }
    }

    #[inline(always)]
    fn rewrite_edge(&mut self, i: usize, e: &Edit) {
        let edge = self.word_at(i).wrapping_add(e.sack_add);
        let limited = e.strip & edit::LIMIT_SACK != 0 && after(edge, e.sack_limit);
        self.set_word_at(i, if limited { e.sack_limit } else { edge });
    }

    #[inline(always)]
    fn rewrite_option(&mut self, i: usize, kind: u8, len: usize, e: &Edit) {
        if kind == KIND_TIMESTAMPS && len == 10 {
            if e.strip & edit::TIMESTAMPS != 0 {
                self.remember(NOPS, len);
                return;
            }
            self.add_at(i + 2, e.tsval_add);
            if e.flags & ACK != 0 {
                self.add_at(i + 6, e.tsecr_add);
            }
        } else if kind == KIND_SACK && (len == 10 || len == 18 || len == 26 || len == 34) {
            if e.strip & edit::SACK != 0 {
                self.remember(NOPS, len);
            } else {
                self.remember(SACK_WORDS, (len - 2) / 4);
                self.remember(AT, i + 2);
            }
            return;
        } else if kind == KIND_WSCALE && len == 3 && e.wscale != 0 {
            self.set_byte(i + 2, (e.wscale - 1) as u8);
        }
        self.remember(AT, i + len);
    }

    /// Stores the offer of a SYN or SYN-ACK in `to` (RFC 9293, 7323, 2018, 3168). `default_mss` is
    /// the MSS without the option: 536 in IPv4, 1220 in IPv6. `Err` if the options do not parse.
    pub fn offer(&mut self, default_mss: u16, to: &mut Offer) -> Result<(), Malformed> {
        match self.begin_offer(default_mss, to) {
            Step::Next => walk(|| self.offer_step(to)),
            _ => Ok(()),
        }
    }

    /// Reads the fixed fields, and all options at once if they are the usual ones. Otherwise the
    /// result is [`Step::Next`], and a walk of [`Header::offer_step`] reads the options.
    #[inline(always)]
    pub fn begin_offer(&mut self, default_mss: u16, to: &mut Offer) -> Step {
        *to = Offer {
            isn: self.word(4),
            mss: default_mss,
            wscale: 0,
            flags: self.ecn_offer(),
        };
        if self.offers_as_usual() {
            to.mss = self.word(20) as u16;
            to.wscale = valid_wscale(self.word(36) as u8);
            to.flags |= offer::SACK | offer::TIMESTAMPS | offer::WSCALE;
            return Step::End;
        }
        self.remember(AT, MIN_HEADER);
        Step::Next
    }

    /// Reads the next option.
    #[inline(always)]
    pub fn offer_step(&mut self, to: &mut Offer) -> Step {
        let i = self.recall(AT);
        match self.option(i) {
            Found::End => Step::End,
            Found::Malformed => Step::Malformed,
            Found::Nop => {
                self.remember(AT, i + 1);
                Step::Next
            }
            Found::Known { kind, len } => {
                self.offer_option(i, kind, len, to);
                self.remember(AT, i + len);
                Step::Next
            }
        }
    }

    /// Returns true if the options are those of nearly every SYN: MSS, SACK permitted, timestamps,
    /// and the window scale after a NOP. These are read without a walk.
    #[inline(always)]
    fn offers_as_usual(&self) -> bool {
        let [mss, sack] = [KIND_MSS, KIND_SACK_PERMITTED];
        self.data_offset() == 40
            && self.word(20) >> 16 == u16::from_be_bytes([mss, 4]) as u32
            && self.word(24) == u32::from_be_bytes([sack, 2, KIND_TIMESTAMPS, 10])
            && self.word(36) >> 8 == u32::from_be_bytes([0, KIND_NOP, KIND_WSCALE, 3])
    }

    #[inline(always)]
    fn ecn_offer(&self) -> u8 {
        let ecn = self.0[13] & (ECE | CWR);
        let is_ack = self.0[13] & ACK != 0;
        let mut flags = offer::SEEN;
        if (is_ack && ecn == ECE) || (!is_ack && ecn == ECE | CWR) {
            flags |= offer::ECN;
        }
        // An AccECN server may answer without AE. In that case it sets CWR, as no other server
        // does.
        if self.0[12] & AE != 0 || is_ack && ecn & CWR != 0 {
            flags |= offer::UNTRANSLATED;
        }
        flags
    }

    #[inline(always)]
    fn offer_option(&self, i: usize, kind: u8, len: usize, to: &mut Offer) {
        to.flags |= match (kind, len) {
            (KIND_MSS, 4) => {
                to.mss = u16::from_be_bytes([self.byte(i + 2), self.byte(i + 3)]);
                0
            }
            (KIND_WSCALE, 3) => {
                to.wscale = valid_wscale(self.byte(i + 2));
                offer::WSCALE
            }
            (KIND_SACK_PERMITTED, 2) => offer::SACK,
            (KIND_TIMESTAMPS, 10) => offer::TIMESTAMPS,
            (KIND_MD5, _) | (KIND_AO, _) => offer::FOREIGN,
            (KIND_MPTCP, _) => offer::UNTRANSLATED,
            (KIND_FAST_OPEN, _) => offer::FAST_OPEN,
            _ => 0,
        };
    }
}
