//! The choice between two paths of a session that pass the same host, because it was in the chain
//! before a change and after it.
//!
//! Only the numbers of the paths decide, together with the reports of the host that opened the
//! session ([`path_number`](crate::chain::path_number)). The traffic on this host does not show
//! which path is in use: either of two silent paths may be the one that carries the session next.

/// Knowledge about the paths of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep<'a> {
    /// Paths that are in use. Nothing is known of the path with the number `until`, which is being
    /// laid, and of later ones.
    InUse {
        /// Numbers of these paths.
        paths: &'a [u32],
        /// Number of the next path.
        until: u32,
    },
    /// Numbers of paths that were given up.
    Without(&'a [u32]),
}

/// Path that stays, of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// The path with the lower number.
    Earlier,
    /// The path with the higher number.
    Later,
    /// Unknown, or both.
    Both,
}

impl Keep<'_> {
    /// Returns the path that stays, of two with these numbers.
    pub fn of(&self, earlier: u32, later: u32) -> Stays {
        match *self {
            Keep::InUse { until, .. } if later >= until => Stays::Both,
            // The earlier path may be in use elsewhere, between other hosts of the chain.
            Keep::InUse { paths, .. } if paths.contains(&later) => Stays::Later,
            Keep::InUse { paths, .. } if paths.contains(&earlier) => Stays::Earlier,
            Keep::InUse { .. } => Stays::Both,
            Keep::Without(paths) => match (paths.contains(&earlier), paths.contains(&later)) {
                (true, false) => Stays::Later,
                (false, true) => Stays::Earlier,
                // If both are given up, the whole session is.
                (true, true) | (false, false) => Stays::Both,
            },
        }
    }
}
