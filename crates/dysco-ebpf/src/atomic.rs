//! Words that several processors change at the same time. `core` has nothing for that on
//! this target, the kernel has since Linux 5.12.

use dysco_common::seq::after;

/// How often [`raise`] tries. It fails only where another has raised the word meanwhile:
/// more seldom than there are segments of one session on their way in.
const TRIES: u32 = 16;

/// Raises a sequence number (modulo 2^32), which never falls back. What it was, if it was
/// lower.
#[inline(always)]
pub fn raise(highest: &mut u32, to: u32) -> Option<u32> {
    let mut before = *highest;
    for _ in 0..TRIES {
        if !after(to, before) {
            return None;
        }
        let found = compare_exchange(highest, before, to);
        if found == before {
            return Some(before);
        }
        before = found;
    }
    None
}

/// Puts `new` in the place of `old`, if that is there; what was there.
#[inline(always)]
fn compare_exchange(word: &mut u32, old: u32, new: u32) -> u32 {
    let mut found = old;
    // SAFETY: reads and writes the one aligned word that is borrowed.
    unsafe {
        core::arch::asm!(
            "w0 = cmpxchg32_32({word} + 0, w0, {new})",
            inout("w0") found,
            word = in(reg) word,
            new = in(wreg) new,
            options(nostack, preserves_flags),
        );
    }
    found
}

/// Adds to a word, modulo 2^32. What it was.
#[inline(always)]
pub fn add(word: &mut u32, n: u32) -> u32 {
    let mut was = n;
    // SAFETY: reads and writes the one aligned word that is borrowed.
    unsafe {
        core::arch::asm!(
            "{n} = atomic_fetch_add((u32 *)({word} + 0), {n})",
            n = inout(wreg) was,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
    was
}
