//! Which of two paths a host keeps that a session passes by both: one that was in the chain
//! before a change and after it.
//!
//! Only the numbers of the paths decide, and what the host says of them that opened the
//! session ([`path_number`](crate::chain::path_number)). Nothing that is seen here tells which
//! is in use: of two paths that carry nothing at the moment either may be the one that carries
//! the session next.

/// What is known of the paths of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep<'a> {
    /// Those that are in use. It says nothing of the path with the number `until`, which is
    /// being laid, and of later ones.
    InUse {
        /// Their numbers.
        paths: &'a [u32],
        /// Number of the next one.
        until: u32,
    },
    /// Those that were given up, by their numbers.
    Without(&'a [u32]),
}

/// What becomes of the two paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// The one with the lower number.
    Earlier,
    /// The one with the higher number.
    Later,
    /// It is not known, or either.
    Both,
}

impl Keep<'_> {
    /// Which path stays of two with these numbers.
    pub fn of(&self, earlier: u32, later: u32) -> Stays {
        match *self {
            Keep::InUse { until, .. } if later >= until => Stays::Both,
            // The earlier one may be in use elsewhere, between other hosts of the chain.
            Keep::InUse { paths, .. } if paths.contains(&later) => Stays::Later,
            Keep::InUse { paths, .. } if paths.contains(&earlier) => Stays::Earlier,
            Keep::InUse { .. } => Stays::Both,
            Keep::Without(paths) => match (paths.contains(&earlier), paths.contains(&later)) {
                (true, false) => Stays::Later,
                (false, true) => Stays::Earlier,
                // Where both are given up the whole session is.
                (true, true) | (false, false) => Stays::Both,
            },
        }
    }
}
