//! Configurations in which each bug that is put in on purpose shows.

use super::configuration::{BASIC, Configuration, Faults, NEIGHBOURS, NONE, TWICE};
use super::{death, local, meddled, path_liveness};
use crate::faults::faults;
use crate::seed::Seed;

/// Returns a configuration for each bug that is put in on purpose.
pub fn seeded() -> Vec<Configuration> {
    [
        of_messages(),
        of_anchors(),
        death::seeded(),
        path_liveness::seeded(),
        local::seeded(),
        meddled::seeded(),
    ]
    .concat()
}

/// Bugs that lost, late or repeated messages show.
fn of_messages() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "last-ack",
            about: "the last control message is sent once",
            faults: faults!(losses: 1),
            seed: Some(Seed::LastAckOnce),
            ..BASIC
        },
        Configuration {
            name: "lost-cancel",
            about: "a cancel is sent once, and no host asks",
            faults: faults!(losses: 1, refusals: 1),
            seed: Some(Seed::CancelOnce),
            bytes: [0, 0],
            prompt: true,
            ..BASIC
        },
        Configuration {
            name: "late-timeout",
            about: "a time-out of before the cut is acted on after it",
            faults: faults!(late: 1),
            seed: Some(Seed::LateTimeout),
            ..BASIC
        },
        Configuration {
            name: "doubled-set-up",
            about: "a message that comes twice is carried out twice",
            faults: faults!(duplicates: 1),
            seed: Some(Seed::DoubledSetUp),
            bytes: [1, 1],
            ..BASIC
        },
        Configuration {
            name: "stale-names",
            about: "after a cancel the next change is taken for the old one",
            faults: faults!(cancels: 1),
            seed: Some(Seed::StaleNames),
            requests: TWICE,
            ..BASIC
        },
    ]
}

/// Bugs in the order of the anchors.
fn of_anchors() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "right-first",
            about: "the right anchor switches before the left one has",
            faults: faults!(losses: 1, late: 1),
            seed: Some(Seed::RightFirst),
            bytes: [0, 0],
            prompt: true,
            ..BASIC
        },
        Configuration {
            name: "second-anchor",
            about: "a second anchor goes on after the first one's success, with the path of before",
            hosts: 4,
            requests: NEIGHBOURS,
            bytes: [0, 0],
            prompt: true,
            seed: Some(Seed::SecondAnchor),
            ..BASIC
        },
    ]
}
