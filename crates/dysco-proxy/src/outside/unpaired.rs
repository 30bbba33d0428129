//! Reasons why a session is not paired, in words for an operator.

use dysco_explain::Cause;

use super::pairing::Rules;
use crate::error::{LESS_BUSY, slow_and_fast};

/// A reason why an accepted socket has no partner. Sockets are indices of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Unpaired {
    /// No bytes moved.
    Silent,
    /// The counts fit so far, and too little was seen.
    TooLittle {
        /// Likely partner.
        b: usize,
        /// Number of moments at which the counts agreed.
        moments: usize,
        /// Number of bytes that passed meanwhile.
        bytes: i64,
    },
    /// No other socket moved like this one.
    NoPartner {
        /// Bytes read from the socket.
        read: i64,
        /// Bytes written to the socket.
        written: i64,
        /// The most similar socket, with the bytes read from it and written to it.
        nearest: Option<(usize, i64, i64)>,
    },
    /// The process was never seen empty in one direction. Its buffer may always be full, so that
    /// the difference of the counts is not the constant.
    MayHold {
        /// True for the direction from the accepted socket, false for the direction to it.
        forward: bool,
    },
    /// Several sockets fit, as with a mirror or with sessions in step.
    Ambiguous {
        /// All sockets that fit.
        others: Vec<usize>,
    },
    /// The partner is older, or has carried bytes of other sessions.
    Reused {
        /// The partner.
        b: usize,
        /// True if the partner is older than the accepted socket.
        older: bool,
        /// Difference of the counts.
        delta: i64,
    },
    /// The process has opened fewer sockets than it has accepted, so that one may serve several.
    Pool {
        /// Number of accepted sockets of the listener.
        accepted: usize,
        /// Number of sockets opened by the process.
        opened: usize,
    },
}

impl Unpaired {
    /// Returns true if more data or more moments may change this soon.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Unpaired::TooLittle { .. }
            | Unpaired::NoPartner { .. }
            | Unpaired::MayHold { .. }
            | Unpaired::Ambiguous { .. } => true,
            Unpaired::Silent | Unpaired::Reused { .. } | Unpaired::Pool { .. } => false,
        }
    }

    /// Returns the cause and the hint. `name` maps an index to the name of its socket.
    pub(super) fn cause(&self, rules: &Rules, name: impl Fn(usize) -> String) -> Cause {
        match self {
            Unpaired::Silent => Cause::new(
                "no bytes moved while it was watched, and only moving bytes show which sockets belong together",
            )
            .hint("try again when data flows"),
            Unpaired::TooLittle { b, moments, bytes } => Cause::new(format!(
                "its counts agree with those of {}, but too seldom: at {moments} moments over {bytes} bytes, where at least {} and {} are needed, and not just once in a while",
                name(*b),
                rules.moments,
                rules.bytes
            ))
            .hint("try again when more data flows, or when the process holds less of it back"),
            Unpaired::NoPartner {
                read,
                written,
                nearest: None,
            } => Cause::new(format!(
                "{read} bytes were read from it and {written} written to it, and no bytes moved on any opened session of the process: the process answers by itself"
            )),
            Unpaired::NoPartner {
                read,
                written,
                nearest: Some((b, r, w)),
            } => Cause::new(format!(
                "{read} bytes were read from it and {written} written to it, and no opened session of the process moved the same: the nearest, {}, had {w} written and {r} read (ratio {:.2}), so that the process changes the bytes, or answers by itself",
                name(*b),
                *w as f64 / (*read).max(1) as f64
            )),
            Unpaired::MayHold { forward } => Cause::new(format!(
                "the proxy may hold data: {}, so that the counts never showed it empty",
                slow_and_fast(*forward)
            ))
            .hint(LESS_BUSY),
            Unpaired::Ambiguous { others } => {
                let names: Vec<String> = others.iter().map(|o| name(*o)).collect();
                Cause::new(format!(
                    "several sessions of the process moved by the same counts ({}): a mirror, or sessions in step",
                    names.join(", ")
                ))
                .hint("try again when they differ")
            }
            Unpaired::Reused { b, older: true, .. } => Cause::new(format!(
                "{} moves as it does, but was open before it: the process keeps opened sessions for more than one client",
                name(*b)
            )),
            Unpaired::Reused {
                b,
                older: false,
                delta,
            } => Cause::new(format!(
                "{} moves as it does, but differs by {delta} bytes since its beginning, more than a header has: it has carried bytes of others",
                name(*b)
            )),
            Unpaired::Pool { accepted, opened } => Cause::new(format!(
                "the process has accepted {accepted} sessions of this listener and opened {opened}: one of these may serve several (a pool)"
            )),
        }
    }
}
