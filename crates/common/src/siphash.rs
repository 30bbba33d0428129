//! SipHash-2-4 (Aumasson and Bernstein, 2012) over whole words. It proves that a chain's SYN comes
//! from a neighbour. A short keyed hash, made for inputs of a few words. It is cheap, so that
//! forged SYNs cost their sender more than this host.

/// A key, as its two little-endian halves.
pub type Key = [u64; 2];

/// An unfinished hash.
#[derive(Clone, Copy)]
pub struct SipHash {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl SipHash {
    /// Returns the state before any input.
    #[inline(always)]
    pub const fn new([k0, k1]: Key) -> Self {
        SipHash {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
        }
    }

    #[inline(always)]
    const fn round(mut self) -> Self {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
        self
    }

    /// Adds eight bytes, as a little-endian word.
    #[inline(always)]
    pub const fn word(mut self, m: u64) -> Self {
        self.v3 ^= m;
        self = self.round().round();
        self.v0 ^= m;
        self
    }

    /// Returns the hash of all `words` that were added.
    #[inline(always)]
    pub const fn finish(self, words: u64) -> u64 {
        let mut s = self.word((words * 8) << 56);
        s.v2 ^= 0xff;
        s = s.round().round().round().round();
        s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    }
}

/// Returns the hash of bytes in whole words.
pub fn hash(key: Key, words: &[u64]) -> u64 {
    let taken = words.iter().fold(SipHash::new(key), |s, w| s.word(*w));
    taken.finish(words.len() as u64)
}
