//! Configurations in which each bug that is put in on purpose shows.

use super::carrying::{CLOSING_INSERT_BACK, REJECTED, RENUMBERED};
use super::configuration::{
    Ask, BEHIND_DELTA, BOTH_SIDES, Configuration, DELETE, Faults, INSERT, NONE, REPLACE, STAYS,
    Seen,
};
use super::seed::Seed;
use crate::faults::faults;

/// Returns a configuration for each bug that is put in on purpose.
pub fn seeded() -> Vec<Configuration> {
    [of_anchors(), of_deltas(), of_what_leaves(), of_packets()].concat()
}

/// Bugs of the anchors.
fn of_anchors() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-right-forgets",
            about: "the right anchor forgets the path before when it has switched",
            faults: faults!(late: 1),
            seed: Some(Seed::RightForgets),
            ..REPLACE
        },
        Configuration {
            name: "chain-no-ack",
            about: "a cancelled path is given up before the right anchor has answered",
            faults: faults!(late: 1),
            seed: Some(Seed::NoAck),
            ..REPLACE
        },
        Configuration {
            name: "chain-left-not-back",
            about: "the right anchor leaves a new path before a left one that is elsewhere",
            asks: &[Ask::Without(4)],
            faults: faults!(late: 1),
            seen: &[Seen::Changed],
            seed: Some(Seed::LeftNotBack),
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-lost-cancel",
            about: "a cancel is sent once, and no host asks",
            faults: faults!(losses: 1, late: 1),
            seed: Some(Seed::CancelOnce),
            ..REPLACE
        },
        Configuration {
            name: "chain-no-record",
            about: "that there is no way back is not recorded",
            faults: faults!(crashes: 1),
            seed: Some(Seed::NoRecord),
            ..REPLACE
        },
        Configuration {
            name: "chain-second-anchor",
            about: "a second anchor goes on after the first one's success, with the chain of before",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            seed: Some(Seed::SecondAnchor),
            ..REPLACE
        },
    ]
}

/// Bugs in the reports about deltas.
fn of_deltas() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-delta-unasked",
            about: "no host asks those that leave by how much they have changed the stream",
            deltas: true,
            seed: Some(Seed::DeltaUnasked),
            ..REPLACE
        },
        Configuration {
            name: "chain-delta-hidden",
            about: "a host that stays says that it has not changed the stream, and it has",
            first: &[2],
            asks: &[Ask::Become(&[2, 3])],
            faults: faults!(late: 1),
            seed: Some(Seed::DeltaHidden),
            ..BEHIND_DELTA
        },
        Configuration {
            name: "chain-delta-hidden-anchor",
            about: "an anchor in the chain says that it has not changed the stream, and it has",
            asks: &[Ask::Without(3)],
            faults: faults!(late: 1),
            seed: Some(Seed::DeltaHidden),
            ..BEHIND_DELTA
        },
    ]
}

/// Bugs in the state and the paths of hosts that leave or enter.
fn of_what_leaves() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-state-early",
            about: "state is taken for installed as soon as it is asked for",
            state: true,
            seed: Some(Seed::StateEarly),
            ..REPLACE
        },
        Configuration {
            name: "chain-state-stays",
            about: "what was installed stays when the change is taken back",
            state: true,
            faults: faults!(cancels: 1),
            seed: Some(Seed::StateStays),
            ..REPLACE
        },
        Configuration {
            name: "chain-takes-last",
            about: "a host whose daemon was away takes the path that came last for the one in use",
            faults: faults!(crashes: 1, cancels: 1, late: 1),
            asks: &[Ask::Become(&[3, 2])],
            seen: &[Seen::Changed, Seen::RollBack],
            seed: Some(Seed::TakesLast),
            ..STAYS
        },
        Configuration {
            name: "chain-collects-living",
            about: "a host whose daemon begins anew collects a path that is in use",
            faults: faults!(crashes: 1),
            asks: &[Ask::Become(&[3, 2])],
            seen: &[Seen::Changed],
            seed: Some(Seed::CollectsLiving),
            ..STAYS
        },
        Configuration {
            name: "chain-delta-unmoved",
            about: "no numbers are moved by what a host that leaves has changed",
            bytes: [1, 1],
            deltas: true,
            seed: Some(Seed::DeltaUnmoved),
            ..DELETE
        },
    ]
}

/// Bugs in the packets of both paths.
fn of_packets() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-acks-unseen",
            about: "what a new path has not carried is acknowledged there",
            bytes: [0, 1],
            seed: Some(Seed::AcksUnseen),
            ..REPLACE
        },
        Configuration {
            name: "chain-settles-early",
            about: "a new path is taken for good before it has carried all",
            bytes: [1, 2],
            seed: Some(Seed::SettlesEarly),
            ..REPLACE
        },
        Configuration {
            name: "chain-back-unannounced",
            about: "who goes back to a path does not show its firewalls how far it is",
            bytes: [1, 1],
            faults: faults!(late: 1),
            seed: Some(Seed::BackUnannounced),
            ..INSERT
        },
        Configuration {
            name: "chain-hears-unopened",
            about: "a reset of a new path is heard before that has opened",
            seed: Some(Seed::HearsUnopened),
            ..REJECTED
        },
        Configuration {
            name: "chain-compares-nothing",
            about: "a new path is taken even if it alters numbers",
            seed: Some(Seed::ComparesNothing),
            ..RENUMBERED
        },
        Configuration {
            name: "chain-late-end-missed",
            about: "a FIN by the direct path of a session that takes another is not recorded",
            seed: Some(Seed::LateEndMissed),
            ..CLOSING_INSERT_BACK
        },
        Configuration {
            name: "chain-end-kept",
            about: "a FIN that a given-up path has carried is not recorded elsewhere",
            seed: Some(Seed::EndKept),
            ..CLOSING_INSERT_BACK
        },
    ]
}
