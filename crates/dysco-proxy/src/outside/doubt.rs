//! Why a session is not paired, in an operator's words.

use super::pairing::Rules;
use crate::error::{LESS_BUSY, slow_and_fast};

/// Why an accepted socket has no partner. Sockets are numbers of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// Nothing moved.
    Silent,
    /// Fits so far, and too little was seen.
    TooLittle {
        /// The likely partner.
        b: usize,
        /// So often the counts agreed.
        moments: usize,
        /// So many bytes passed meanwhile.
        bytes: i64,
    },
    /// None moved as this one did.
    NoPartner {
        /// Bytes read from it.
        read: i64,
        /// Bytes written to it.
        written: i64,
        /// The one that moved most alike, bytes read from it, and written.
        nearest: Option<(usize, i64, i64)>,
    },
    /// The process was never seen empty in one direction: its buffer may be full all the
    /// time, so that the difference of the counts is not the constant.
    MayHold {
        /// From the accepted socket, or towards it.
        forward: bool,
    },
    /// Several may be meant: a mirror, or sessions in step.
    Ambiguous {
        /// All of them.
        others: Vec<usize>,
    },
    /// The partner was open before, or carried bytes of others.
    Reused {
        /// The partner.
        b: usize,
        /// It was open before.
        older: bool,
        /// How far the counts differ.
        delta: i64,
    },
    /// Fewer were opened than accepted: one of them may serve several.
    Pool {
        /// How many of the listener.
        accepted: usize,
        /// How many by the process.
        opened: usize,
    },
}

impl Doubt {
    /// May more data or more moments settle it soon?
    pub fn may_pass(&self) -> bool {
        match self {
            Doubt::TooLittle { .. }
            | Doubt::NoPartner { .. }
            | Doubt::MayHold { .. }
            | Doubt::Ambiguous { .. } => true,
            Doubt::Silent | Doubt::Reused { .. } | Doubt::Pool { .. } => false,
        }
    }

    /// For an operator, who knows sockets by what `name` makes of them.
    pub fn words(&self, rules: &Rules, name: impl Fn(usize) -> String) -> String {
        match self {
            Doubt::Silent => "nothing moved while it was watched, and which sockets belong together is seen by what moves; try again when data flows".into(),
            Doubt::TooLittle { b, moments, bytes } => format!(
                "its counts agree with those of {}, but too seldom: at {moments} moments over {bytes} bytes, where at least {} and {} are needed, and not just once in a while; try again when more data flows, or when the process holds less of it back",
                name(*b), rules.moments, rules.bytes
            ),
            Doubt::NoPartner { read, written, nearest: None } => format!(
                "{read} bytes were read from it and {written} written to it, and on no opened session of the process anything moved: the process answers by itself"
            ),
            Doubt::NoPartner { read, written, nearest: Some((b, r, w)) } => format!(
                "{read} bytes were read from it and {written} written to it, and no opened session of the process moved alike: the nearest, {}, had {w} written and {r} read (ratio {:.2}); the process changes the bytes, or answers by itself",
                name(*b), *w as f64 / (*read).max(1) as f64
            ),
            Doubt::MayHold { forward } => format!(
                "the proxy may hold data: {}, so that the counts never showed it empty; {LESS_BUSY}",
                slow_and_fast(*forward)
            ),
            Doubt::Ambiguous { others } => {
                let names: Vec<String> = others.iter().map(|o| name(*o)).collect();
                format!(
                    "several sessions of the process moved by the same counts ({}): a mirror, or sessions in step; try again when they differ",
                    names.join(", ")
                )
            }
            Doubt::Reused { b, older: true, .. } => format!(
                "{} moves as it does, but was open before it: the process keeps opened sessions for more than one client",
                name(*b)
            ),
            Doubt::Reused { b, older: false, delta } => format!(
                "{} moves as it does, but differs by {delta} bytes since its beginning, more than a header has: it has carried bytes of others",
                name(*b)
            ),
            Doubt::Pool { accepted, opened } => format!(
                "the process has accepted {accepted} sessions of this listener and opened {opened}: one of these may serve several (a pool)"
            ),
        }
    }
}
