//! Atomic operations on words that several processors change at the same time. `core` has none
//! for this target; the kernel supports them since Linux 5.12.

use dysco_common::seq::after;

/// Number of attempts of [`raise`]. An attempt fails only if another processor has raised the
/// word meanwhile, which happens less often than segments of one session arrive.
const TRIES: u32 = 16;

/// Raises a sequence number (modulo 2^32), which never decreases. Returns the previous value if
/// that was lower.
#[inline(always)]
pub(crate) fn raise(highest: &mut u32, to: u32) -> Option<u32> {
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

/// Stores `new` if the word contains `old`. Returns the previous value. Orders all accesses before
/// it and after it.
#[inline(always)]
pub(crate) fn compare_exchange(word: &mut u32, old: u32, new: u32) -> u32 {
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

/// Adds to a word, modulo 2^32. Returns the previous value.
#[inline(always)]
pub(crate) fn add(word: &mut u32, n: u32) -> u32 {
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
