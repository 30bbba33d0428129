//! The proxy's host is both anchors: its neighbours run no daemon, and no messages are sent.

use super::configuration::{AT_PROXY, BASIC, BOTH, Configuration, Faults, NONE, Seen, TWICE};
use crate::faults::faults;
use crate::seed::Seed;

const LOCAL: Configuration = Configuration {
    alone: true,
    requests: AT_PROXY,
    bytes: [1, 1],
    ..BASIC
};

/// Returns all these configurations.
pub(super) fn all() -> Vec<Configuration> {
    [streams(), interrupted(), closing()].concat()
}

/// Bytes go both ways, also between two stores of the daemon.
fn streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "local-streams",
            about: "by the proxy's host alone: packets lost, and sent again across the cutoff",
            faults: faults!(packets: 2, again: 2),
            bytes: [2, 2],
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..LOCAL
        },
        Configuration {
            name: "local-streams-back",
            about: "the same, more in reverse",
            faults: faults!(packets: 2, again: 1),
            bytes: [1, 3],
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..LOCAL
        },
        Configuration {
            name: "local-held-up",
            about: "packets pass between any two stores of a daemon, which may die there",
            faults: faults!(delays: 2, packets: 1, crashes: 1),
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..LOCAL
        },
    ]
}

/// The daemon dies, or gives the change up.
fn interrupted() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "local-crashes",
            about: "the daemon dies twice, between any two of its steps; a packet is lost",
            faults: faults!(crashes: 2, packets: 1, again: 1),
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..LOCAL
        },
        Configuration {
            name: "local-mixed",
            about: "died twice, too late, failed, given up; asked again afterwards",
            faults: faults!(crashes: 2, late: 1, refusals: 1, cancels: 1),
            requests: TWICE,
            bytes: [1, 1],
            seen: &[
                Seen::Removal,
                Seen::RollBack,
                Seen::SecondAttempt,
                Seen::Already,
                Seen::GoneOn,
            ],
            ..LOCAL
        },
        Configuration {
            name: "local-taken-back",
            about: "given up while packets pass between any two stores; asked again afterwards",
            faults: faults!(cancels: 1, delays: 1, crashes: 1),
            requests: TWICE,
            seen: &[Seen::Removal, Seen::RollBack, Seen::SecondAttempt],
            ..LOCAL
        },
    ]
}

/// Ends close, or reset the session.
fn closing() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "local-half-close",
            about: "the client closes when it has sent all; the server goes on",
            faults: faults!(packets: 1, delays: 1, crashes: 1),
            closes: [true, false],
            seen: BOTH,
            ..LOCAL
        },
        Configuration {
            name: "local-closing",
            about: "both ends close, at once or one after the other; packets are lost",
            faults: faults!(packets: 2, delays: 1),
            bytes: [1, 0],
            closes: [true, true],
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths],
            ..LOCAL
        },
        Configuration {
            name: "local-closing-crash",
            about: "the same, and the daemon dies at any time",
            faults: faults!(packets: 2, crashes: 2),
            bytes: [0, 0],
            closes: [true, true],
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths, Seen::GoneOn],
            ..LOCAL
        },
        Configuration {
            name: "local-resets",
            about: "an end resets the session, and the daemon dies",
            faults: faults!(resets: 2, delays: 1, crashes: 1),
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::RollBack, Seen::ResetInTwoPaths],
            ..LOCAL
        },
    ]
}

/// Returns a configuration for each bug that is put in on purpose.
pub(super) fn seeded() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "local-record-late",
            about: "the record of the cut is written when that is made",
            faults: faults!(crashes: 1),
            seed: Some(Seed::RecordAfterCut),
            ..LOCAL
        },
        Configuration {
            name: "local-forgotten-cut",
            about: "a daemon that starts anew takes back what its predecessor has cut",
            faults: faults!(crashes: 1),
            seed: Some(Seed::ForgottenCut),
            ..LOCAL
        },
        Configuration {
            name: "local-half-drained",
            about: "the proxy is left when one of its two sessions has drained",
            faults: faults!(packets: 1),
            seed: Some(Seed::HalfDrained),
            ..LOCAL
        },
        Configuration {
            name: "local-proxy-believed",
            about: "the ends hear what the proxy acknowledges of bytes from the cutoff on",
            faults: faults!(packets: 2, again: 1),
            bytes: [2, 0],
            seed: Some(Seed::ProxyBelieved),
            ..LOCAL
        },
    ]
}
