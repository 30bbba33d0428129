//! New paths that die while two paths are in use.

use super::configuration::{BASIC, Configuration, Faults, NONE, Seen, TWICE};
use crate::faults::faults;
use crate::seed::Seed;

/// One path dies, in one direction or both.
const DIES: Faults = faults!(deaths: 1);

const PATH: Configuration = Configuration {
    faults: DIES,
    prompt: true,
    seen: &[Seen::Removal, Seen::TakenBack],
    ..BASIC
};

/// Returns all these configurations.
pub(super) fn all() -> Vec<Configuration> {
    [dead(), of_streams()].concat()
}

/// A path dies, and messages, daemons or commands fail.
fn dead() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "dead-path",
            about: "the new path dies while both are in use, one way or both; bytes both ways",
            bytes: [2, 1],
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::TakenBack, Seen::CaughtUp],
            ..PATH
        },
        Configuration {
            name: "dead-path-lost",
            about: "the same, and messages are lost",
            faults: Faults { losses: 1, ..DIES },
            ..PATH
        },
        Configuration {
            name: "dead-path-doubled",
            about: "the same, and a message comes again",
            faults: Faults {
                duplicates: 1,
                ..DIES
            },
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "dead-path-late",
            about: "the same, and a time-out passes too early",
            faults: Faults { late: 1, ..DIES },
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "dead-path-crash",
            about: "the same, and a daemon dies between any two of its steps",
            faults: Faults { crashes: 1, ..DIES },
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::TakenBack, Seen::GoneOn],
            ..PATH
        },
        Configuration {
            name: "dead-path-mixed",
            about: "the same; a daemon dies, and a message is lost",
            faults: Faults {
                crashes: 1,
                losses: 1,
                ..DIES
            },
            bytes: [0, 0],
            seen: &[Seen::Removal, Seen::TakenBack, Seen::GoneOn],
            ..PATH
        },
    ]
}

/// Packets are lost, ends close, or the path lives (again).
fn of_streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "dead-path-streams",
            about: "the same, packets are lost, and sent again across the cutoff",
            faults: Faults {
                packets: 1,
                again: 1,
                ..DIES
            },
            bytes: [1, 1],
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "dead-path-again",
            about: "the same, a command fails, and it is asked for once more when the path lives again",
            faults: Faults {
                refusals: 1,
                ..DIES
            },
            requests: TWICE,
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "dead-path-closing",
            about: "the same, and both ends close",
            bytes: [0, 0],
            closes: [true, true],
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "dead-path-reset",
            about: "the same, and an end resets the session",
            faults: Faults { resets: 1, ..DIES },
            acks_at_once: true,
            ..PATH
        },
        Configuration {
            name: "false-alarm",
            about: "the new path lives, and is taken for dead; bytes both ways",
            faults: faults!(refusals: 1),
            bytes: [1, 1],
            seen: &[Seen::Removal, Seen::RollBack, Seen::CaughtUp],
            ..PATH
        },
    ]
}

/// Returns the configurations with bugs that are put in on purpose.
pub(super) fn seeded() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "hears-on",
            about: "the right anchor hears the new path while it is taken back",
            faults: faults!(refusals: 1),
            bytes: [1, 1],
            seen: &[Seen::Removal, Seen::RollBack],
            seed: Some(Seed::HearsOn),
            ..PATH
        },
        Configuration {
            name: "stays-behind",
            about: "both ends have got more than the proxy taken again has sent, and do not hear it",
            bytes: [3, 3],
            acks_at_once: true,
            seed: Some(Seed::StaysBehind),
            ..PATH
        },
        Configuration {
            name: "taken-unannounced",
            about: "a new path is taken for good before it has shown that it carries anything",
            acks_at_once: true,
            seed: Some(Seed::Unannounced),
            ..PATH
        },
    ]
}
