//! Random numbers that a seed determines, on every machine and in every release.

/// A generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// Creates the generator of a seed.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = self.state;
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number that is at least `low` and less than `high`.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// Returns true with a probability of `percent` per cent.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.range(0, 100) < percent
    }

    /// Returns a random element, or `None` if there is none.
    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.range(0, all.len().max(1) as u64) as usize;
        all.get(at).cloned()
    }

    /// Returns a random element of an array, which must not be empty.
    pub(crate) fn one<T: Clone, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.range(0, N as u64) as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_all_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.range(3, 17)).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        assert!(draw(5).iter().all(|n| (3..17).contains(n)));
    }
}
