//! Bytes that follow from their offset in a stream, so that each can be checked on arrival, at
//! memory speed, without storing any.

use std::sync::OnceLock;

const WORDS: usize = 4096;
const BLOCK: u64 = WORDS as u64 * 8;

/// An endless stream of bytes that its seed determines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Pattern {
        Pattern { seed }
    }

    /// Writes the bytes of the stream at `offset`.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let (table, key) = self.block(offset + done as u64);
            let n = table.len().min(out.len() - done);
            for (o, t) in out[done..done + n].chunks_mut(8).zip(table[..n].chunks(8)) {
                xor_into(o, t, key);
            }
            done += n;
        }
    }

    /// Returns the offset of the first byte that differs from the stream.
    pub fn first_wrong(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < bytes.len() {
            let (table, key) = self.block(offset + done as u64);
            let n = table.len().min(bytes.len() - done);
            if differ(&bytes[done..done + n], &table[..n], key) {
                return self.search(offset + done as u64, &bytes[done..done + n]);
            }
            done += n;
        }
        None
    }

    fn search(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut expected = vec![0; bytes.len()];
        self.fill(offset, &mut expected);
        let at = bytes.iter().zip(&expected).position(|(a, b)| a != b)?;
        Some(offset + at as u64)
    }

    /// Returns the rest of the table from `offset` on, and the key that is mixed with it, rotated
    /// so that it begins at the same byte.
    fn block(self, offset: u64) -> (&'static [u8], u64) {
        let key = mix(self.seed.wrapping_mul(0x9e37_79b9) ^ mix(offset / BLOCK));
        let turn = (offset % 8) as u32 * 8;
        (
            &table()[(offset % BLOCK) as usize..],
            key.rotate_right(turn),
        )
    }
}

fn xor_into(out: &mut [u8], table: &[u8], key: u64) {
    if let (Ok(word), 8) = (<[u8; 8]>::try_from(table), out.len()) {
        out.copy_from_slice(&(u64::from_le_bytes(word) ^ key).to_le_bytes());
        return;
    }
    for ((o, t), k) in out.iter_mut().zip(table).zip(key.to_le_bytes()) {
        *o = t ^ k;
    }
}

fn differ(bytes: &[u8], table: &[u8], key: u64) -> bool {
    let (words, tail) = bytes.as_chunks::<8>();
    let (expected, rest) = table.as_chunks::<8>();
    let mut difference = 0;
    for (word, expected) in words.iter().zip(expected) {
        difference |= u64::from_le_bytes(*word) ^ u64::from_le_bytes(*expected) ^ key;
    }
    for ((b, t), k) in tail.iter().zip(rest).zip(key.to_le_bytes()) {
        difference |= u64::from(b ^ t ^ k);
    }
    difference != 0
}

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        (0..WORDS as u64)
            .flat_map(|i| mix(i + 1).to_le_bytes())
            .collect()
    })
}

/// The finaliser of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_the_stream_is_the_stream() {
        let whole = {
            let mut all = vec![0; 100_000];
            Pattern::new(7).fill(0, &mut all);
            all
        };
        for (offset, len) in [(0, 100_000), (1, 5), (32_760, 16), (32_763, 40_000), (7, 3)] {
            let mut cut = vec![0; len.min(whole.len() - offset)];
            Pattern::new(7).fill(offset as u64, &mut cut);
            assert_eq!(cut, whole[offset..offset + cut.len()], "at {offset}");
            assert_eq!(Pattern::new(7).first_wrong(offset as u64, &cut), None);
        }
    }

    #[test]
    fn a_changed_lost_or_repeated_byte_is_found() {
        let mut bytes = vec![0; 70_000];
        Pattern::new(3).fill(11, &mut bytes);
        bytes[40_001] ^= 1;
        assert_eq!(Pattern::new(3).first_wrong(11, &bytes), Some(40_012));
        bytes[40_001] ^= 1;
        bytes.remove(9);
        assert!(
            Pattern::new(3)
                .first_wrong(11, &bytes)
                .is_some_and(|at| at < 40)
        );
        assert!(Pattern::new(4).first_wrong(11, &bytes[..8]).is_some());
    }

    #[test]
    fn blocks_do_not_repeat() {
        let at = |offset| {
            let mut bytes = [0; 64];
            Pattern::new(1).fill(offset, &mut bytes);
            bytes
        };
        assert_ne!(at(0), at(BLOCK));
        assert_ne!(at(BLOCK), at(BLOCK * 2));
    }
}
