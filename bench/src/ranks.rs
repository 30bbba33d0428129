//! The rank test: whether two sets of samples differ by more than chance.

use std::cmp::Ordering;

/// Distance of the ranks of two sets of samples from the ranks of equal sets, in standard
/// deviations (Mann and Whitney). The test assumes nothing about the distribution.
pub(crate) fn apart(a: &[f64], b: &[f64]) -> f64 {
    let [n, m] = [a, b].map(|lot| lot.len() as f64);
    let wins = |x: &f64| -> f64 {
        let won = b.iter().map(|y| match x.total_cmp(y) {
            Ordering::Greater => 1.0,
            Ordering::Equal => 0.5,
            Ordering::Less => 0.0,
        });
        won.sum()
    };
    let won: f64 = a.iter().map(wins).sum();
    // Equal samples make the true deviation smaller, so that the result is never too large.
    (won - n * m / 2.0).abs() / deviation(n, m)
}

/// Standard deviation of the number of wins between two equal sets of this many samples.
fn deviation(n: f64, m: f64) -> f64 {
    (n * m * (n + m + 1.0) / 12.0).sqrt()
}

/// Largest value of [`apart`] for this many samples: no sample of one set lies among those of the
/// other.
pub(crate) fn most(n: usize, m: usize) -> f64 {
    if n.min(m) == 0 {
        return 0.0;
    }
    let (n, m) = (n as f64, m as f64);
    n * m / 2.0 / deviation(n, m)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_equal_lots_agree() {
        let lot: Vec<_> = (0..50).map(f64::from).collect();
        assert!(apart(&lot, &lot) < 1e-9);
        let above: Vec<_> = lot.iter().map(|x| x + 100.0).collect();
        assert!(apart(&lot, &above) > 8.0);
    }
}
