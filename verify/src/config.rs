//! Configurations to explore: chains, requests, streams and the possible faults.

mod configuration;
mod death;
mod local;
mod meddled;
mod path_liveness;
mod seeded;

pub use configuration::{Configuration, Faults, Request, Seen};
pub use seeded::seeded;

use crate::faults::faults;
use configuration::{BASIC, BOTH, NEIGHBOURS, NONE, TWICE};

/// Returns all configurations. Each is explored to its last state.
pub fn all() -> Vec<Configuration> {
    [
        faults(),
        given_up(),
        contending(),
        streams(),
        closing(),
        death::all(),
        path_liveness::all(),
        local::all(),
        meddled::all(),
    ]
    .concat()
}

/// One proxy leaves, and messages, daemons or commands fail.
fn faults() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "removal",
            about: "asked at the proxy, nothing goes wrong",
            bytes: [1, 1],
            ..BASIC
        },
        Configuration {
            name: "losses",
            about: "messages are lost",
            faults: faults!(losses: 3),
            seen: BOTH,
            ..BASIC
        },
        Configuration {
            name: "duplicates",
            about: "messages come again, at any later time",
            faults: faults!(duplicates: 3),
            ..BASIC
        },
        Configuration {
            name: "late",
            about: "time-outs pass while the answer is on its way",
            faults: faults!(late: 3),
            seen: BOTH,
            ..BASIC
        },
        Configuration {
            name: "crashes",
            about: "two daemons die, or one twice, between any two of their steps",
            faults: faults!(crashes: 2),
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..BASIC
        },
        Configuration {
            name: "mixed",
            about: "one of each: lost, come again, too late, died",
            faults: faults!(losses: 1, duplicates: 1, late: 1, crashes: 1),
            bytes: [0, 0],
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            prompt: true,
            ..BASIC
        },
    ]
}

/// The change fails, and is asked for again.
fn given_up() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "refusals",
            about: "a host fails at any step; asked again afterwards",
            faults: faults!(refusals: 1, losses: 1),
            requests: TWICE,
            seen: &[Seen::Removal, Seen::RollBack, Seen::SecondAttempt],
            ..BASIC
        },
        Configuration {
            name: "cancels",
            about: "given up by the operator at any time; asked again afterwards",
            faults: faults!(cancels: 1, losses: 1, duplicates: 1),
            requests: TWICE,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::RollBack, Seen::SecondAttempt],
            ..BASIC
        },
    ]
}

/// Several hosts ask, or two proxies leave.
fn contending() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "left-asks",
            about: "asked by the left neighbour",
            faults: faults!(losses: 1, crashes: 1),
            requests: &[Request::Ask { at: 0, of: 1 }],
            ..BASIC
        },
        Configuration {
            name: "right-asks",
            about: "asked by the right neighbour",
            faults: faults!(losses: 1, crashes: 1),
            requests: &[Request::Ask { at: 2, of: 1 }],
            ..BASIC
        },
        Configuration {
            name: "contenders",
            about: "the proxy and both neighbours ask at once",
            requests: &[
                Request::Leave { at: 1 },
                Request::Ask { at: 0, of: 1 },
                Request::Ask { at: 2, of: 1 },
            ],
            bytes: [0, 0],
            seen: &[Seen::Removal, Seen::OneOfTwo],
            ..BASIC
        },
        Configuration {
            name: "neighbours",
            about: "two proxies in a row leave at once: the segments overlap",
            faults: faults!(losses: 1),
            hosts: 4,
            requests: NEIGHBOURS,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::OneOfTwo],
            ..BASIC
        },
        Configuration {
            name: "neighbours-crash",
            about: "the same, and a daemon dies",
            faults: faults!(crashes: 1),
            hosts: 4,
            requests: NEIGHBOURS,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::OneOfTwo, Seen::GoneOn],
            ..BASIC
        },
    ]
}

/// Bytes go both ways.
fn streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "streams",
            about: "bytes both ways; packets lost, and sent again across the cutoff",
            faults: faults!(packets: 1, again: 1),
            bytes: [2, 1],
            prompt: true,
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..BASIC
        },
        Configuration {
            name: "streams-back",
            about: "the same, more in reverse",
            faults: faults!(packets: 1, again: 1),
            bytes: [1, 2],
            prompt: true,
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..BASIC
        },
        Configuration {
            name: "streams-crash",
            about: "bytes both ways while a daemon dies and a packet is lost",
            faults: faults!(packets: 1, crashes: 1),
            bytes: [1, 1],
            prompt: true,
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..BASIC
        },
    ]
}

/// Ends close, or reset the session.
fn closing() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "half-close",
            about: "the client closes when it has sent all; the server goes on",
            faults: faults!(packets: 1),
            bytes: [1, 1],
            closes: [true, false],
            prompt: true,
            ..BASIC
        },
        Configuration {
            name: "closing",
            about: "both ends close, at once or one after the other",
            faults: faults!(losses: 1),
            bytes: [0, 0],
            closes: [true, true],
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths],
            ..BASIC
        },
        Configuration {
            name: "closing-crash",
            about: "the same once it is cut, and a daemon dies at any time",
            faults: faults!(crashes: 1),
            bytes: [0, 0],
            closes: [true, true],
            closes_cut: true,
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths],
            ..BASIC
        },
        Configuration {
            name: "resets",
            about: "an end resets the session",
            faults: faults!(resets: 1),
            bytes: [1, 0],
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ResetInTwoPaths],
            ..BASIC
        },
    ]
}
