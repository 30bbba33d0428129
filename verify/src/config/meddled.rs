//! New paths that alter packets, so that no session may take these paths.

use super::configuration::{BASIC, Configuration, Faults, NONE, Seen, TWICE};
use crate::faults::faults;
use crate::nature::Nature;
use crate::seed::Seed;

const REJECTED: Configuration = Configuration {
    nature: Nature::Rejects,
    bytes: [1, 1],
    prompt: true,
    seen: &[Seen::RollBack],
    ..BASIC
};

const RENUMBERED: Configuration = Configuration {
    nature: Nature::Renumbers,
    ..REJECTED
};

/// Returns all these configurations.
pub(super) fn all() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "rejected",
            about: "the new path answers by resets, at any time; a message is lost, a daemon dies",
            faults: faults!(losses: 1, crashes: 1),
            acks_at_once: true,
            ..REJECTED
        },
        Configuration {
            name: "rejected-streams",
            about: "the same while segments are lost and sent again; asked once more afterwards",
            faults: faults!(packets: 1, again: 1),
            requests: TWICE,
            ..REJECTED
        },
        Configuration {
            name: "renumbered",
            about: "the new path gives other sequence numbers; a message is lost, a daemon dies",
            faults: faults!(losses: 1, crashes: 1),
            acks_at_once: true,
            ..RENUMBERED
        },
    ]
}

/// Returns the configurations with bugs that are put in on purpose.
pub(super) fn seeded() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "hears-unopened",
            about: "a reset of the new path is heard before that has opened",
            seed: Some(Seed::HearsUnopened),
            ..REJECTED
        },
        Configuration {
            name: "compares-nothing",
            about: "a new path is taken even if it alters numbers",
            seed: Some(Seed::ComparesNothing),
            ..RENUMBERED
        },
    ]
}
