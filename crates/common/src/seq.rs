//! Sequence-number arithmetic, modulo 2^32 (RFC 9293, section 3.4).

/// Returns true if `a` is before `b`. Correct while they are less than 2^31 apart.
#[inline(always)]
pub const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns true if `a` is after `b`.
#[inline(always)]
pub const fn after(a: u32, b: u32) -> bool {
    before(b, a)
}

/// Returns the later of two numbers.
#[inline(always)]
pub const fn max(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// Returns the earlier of two numbers.
#[inline(always)]
pub const fn min(a: u32, b: u32) -> u32 {
    if before(b, a) { b } else { a }
}
