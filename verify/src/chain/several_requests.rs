//! Configurations of sessions whose chain several operators or requests change.

use super::configuration::{
    Ask, BOTH, BOTH_SIDES, Configuration, DELETE, Faults, NONE, REPLACE, Seen,
};
use crate::faults::faults;

/// Returns all these configurations.
pub(crate) fn several_requests() -> Vec<Configuration> {
    [overlapping(), segments(), twice()].concat()
}

/// Two chains are asked for at once.
fn overlapping() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-overlapping",
            about: "two chains are asked for at once, for one session; a daemon dies",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            faults: faults!(losses: 1, late: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::Locked, Seen::Twice],
            ..REPLACE
        },
        Configuration {
            name: "chain-overlapping-deaths",
            about: "the same; a new path dies, or the operator gives one up",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            faults: faults!(deaths: 1, cancels: 1),
            seen: &[
                Seen::Changed,
                Seen::Locked,
                Seen::Twice,
                Seen::BackFromNew,
                Seen::AfterBack,
            ],
            ..REPLACE
        },
    ]
}

/// Segments of a chain change.
fn segments() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-segments",
            about: "hosts leave on both sides of one that stays, at once; a message is lost",
            faults: faults!(losses: 1),
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-deaths",
            about: "a segment that begins at a host of the chain changes; messages lost, too late, commands fail, the new path dies",
            asks: &[Ask::Without(4)],
            faults: faults!(losses: 1, late: 1, deaths: 1, refusals: 1),
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-ends",
            about: "the same; given up by the operator, the session is reset, a daemon dies",
            asks: &[Ask::Without(4)],
            faults: faults!(cancels: 1, resets: 1, crashes: 1),
            seen: BOTH,
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-crashes",
            about: "the same, and two daemons die, or one twice; a message comes again",
            asks: &[Ask::Without(4)],
            faults: faults!(crashes: 2, duplicates: 1),
            seen: &[Seen::Changed, Seen::RollBack, Seen::GoneOn],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-overlapping",
            about: "a segment changes, and the chain as a whole; a daemon dies",
            asks: &[Ask::Without(4), Ask::Become(&[])],
            disjoint: false,
            faults: faults!(crashes: 1),
            seen: &[Seen::Changed, Seen::Locked, Seen::Twice],
            ..BOTH_SIDES
        },
    ]
}

/// The chain changes, and changes back.
fn twice() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-out-and-in",
            about: "the only host leaves, and comes in again before it was told to forget; two time-outs, or a daemon dies",
            asks: &[Ask::Become(&[]), Ask::Become(&[2])],
            faults: faults!(late: 2, crashes: 1),
            seen: &[Seen::Changed, Seen::Twice, Seen::GoneOn],
            ..DELETE
        },
        Configuration {
            name: "chain-and-back",
            about: "in and out again, one after the other or at once; a daemon dies",
            hosts: 3,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[])],
            faults: faults!(duplicates: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::Twice, Seen::GoneOn],
            ..REPLACE
        },
    ]
}
