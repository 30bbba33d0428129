//! Configurations of sessions that carry no bytes while their chain changes.

use super::configuration::{
    Ask, BEHIND_DELTA, BOTH, COMES_TO_NOTHING, Configuration, DELETE, Faults, INSERT, NONE,
    REPLACE, STAYS, Seen,
};
use super::several_requests::several_requests;
use crate::faults::faults;

/// Returns all these configurations.
pub(crate) fn without_bytes() -> Vec<Configuration> {
    [
        replaced(),
        several(),
        behind_delta(),
        with_state(),
        with_state_given_up(),
        first_and_last(),
        around(),
        given_up(),
        several_requests(),
    ]
    .concat()
}

/// Another host takes a host's place.
fn replaced() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-replace",
            about: "a host takes another's place with its state; commands fail, the new path dies",
            state: true,
            faults: faults!(refusals: 1, deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::Followed],
            ..REPLACE
        },
        Configuration {
            name: "chain-losses",
            about: "messages are lost; the new path dies",
            faults: faults!(losses: 3, deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
        Configuration {
            name: "chain-duplicates",
            about: "messages come again, at any later time",
            faults: faults!(duplicates: 3),
            ..REPLACE
        },
        Configuration {
            name: "chain-late",
            about: "time-outs pass while the answer is on its way",
            faults: faults!(late: 3),
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
        Configuration {
            name: "chain-crashes",
            about: "two daemons die, or one twice, between any two of their steps; a message comes again",
            faults: faults!(crashes: 2, duplicates: 1),
            seen: &[Seen::Changed, Seen::RollBack, Seen::GoneOn],
            ..REPLACE
        },
    ]
}

/// Several hosts enter or leave at once.
fn several() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-longer",
            about: "two hosts come in; a daemon dies, a message is lost, a time-out passes",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2, 3])],
            faults: faults!(losses: 1, late: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..REPLACE
        },
        Configuration {
            name: "chain-deltas",
            about: "two hosts that have changed the stream's size leave; lost, come again, too late",
            hosts: 5,
            first: &[2, 3],
            asks: &[Ask::Become(&[4])],
            deltas: true,
            faults: faults!(losses: 1, duplicates: 1, late: 1),
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
    ]
}

/// A host that has changed the stream stays.
fn behind_delta() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-delta-anchors",
            about: "an anchor in the chain has changed the stream's size; lost, too late, its daemon dies",
            faults: faults!(losses: 1, late: 1, crashes: 1),
            mortal: &[2, 3],
            ..BEHIND_DELTA
        },
        Configuration {
            name: "chain-delta-stays",
            about: "a host that stays has changed the stream's size; lost, comes again, too late, its daemon dies",
            first: &[2],
            asks: &[Ask::Become(&[2, 3])],
            faults: faults!(losses: 1, duplicates: 1, late: 1, crashes: 1),
            mortal: &[2],
            ..BEHIND_DELTA
        },
    ]
}

/// State moves with the session.
fn with_state() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-state",
            about: "a host takes another's place with its state: lost, too late, commands fail, the new path dies",
            state: true,
            faults: faults!(losses: 1, late: 1, refusals: 1, deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-late",
            about: "the same; messages come again, and two time-outs pass while the answer is on its way",
            state: true,
            faults: faults!(duplicates: 1, late: 2),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-crashes",
            about: "the same; a daemon dies between any two of its steps, a time-out passes",
            state: true,
            faults: faults!(losses: 1, late: 1, crashes: 1),
            seen: &[
                Seen::Changed,
                Seen::BackFromNew,
                Seen::GoneOn,
                Seen::StateMoved,
            ],
            ..REPLACE
        },
    ]
}

/// A change that moves state is given up.
fn with_state_given_up() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-state-cancels",
            about: "the same, given up by the operator at any time; the session is reset",
            state: true,
            faults: faults!(cancels: 1, losses: 1, resets: 1),
            seen: &[Seen::Changed, Seen::RollBack, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-twice",
            about: "with its state to another host and back, one after the other or at once; given up at any time",
            asks: &[Ask::Become(&[3]), Ask::Become(&[2])],
            state: true,
            faults: faults!(cancels: 1, late: 1),
            seen: &[Seen::Changed, Seen::Twice, Seen::StateMoved],
            ..REPLACE
        },
    ]
}

/// The first host enters, or the last one leaves.
fn first_and_last() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-insert",
            about: "a host comes in: lost, come again, too late, died, one of each",
            faults: faults!(losses: 1, duplicates: 1, late: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..INSERT
        },
        Configuration {
            name: "chain-delete",
            about: "the only host leaves, with the same faults",
            faults: faults!(losses: 1, duplicates: 1, late: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..DELETE
        },
        Configuration {
            name: "chain-insert-refused",
            about: "a host comes in: given up by the operator, the session is reset, commands fail, the new path dies",
            faults: COMES_TO_NOTHING,
            seen: &[Seen::Changed, Seen::RollBack, Seen::BackFromNew],
            ..INSERT
        },
        Configuration {
            name: "chain-delete-refused",
            about: "the only host leaves, with the same faults",
            faults: COMES_TO_NOTHING,
            seen: &[Seen::Changed, Seen::RollBack, Seen::BackFromNew],
            ..DELETE
        },
    ]
}

/// A host stays while others change.
fn around() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-around",
            about: "a host stays while another comes behind it or goes before it; lost, or too late",
            hosts: 4,
            first: &[2],
            asks: &[Ask::Become(&[2, 3]), Ask::Become(&[3, 2])],
            faults: faults!(losses: 1, late: 1),
            seen: &[Seen::Changed, Seen::Twice],
            ..REPLACE
        },
        Configuration {
            name: "chain-around-crashes",
            about: "a host stays while another leaves; a daemon dies",
            hosts: 4,
            first: &[2, 3],
            asks: &[Ask::Become(&[3])],
            faults: faults!(losses: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..REPLACE
        },
        Configuration {
            name: "chain-kept-crashes",
            about: "a host stays in two changes one after the other; its daemon dies in each, and one is given up",
            faults: faults!(crashes: 2, cancels: 1, late: 1),
            seen: &[Seen::Changed, Seen::RollBack, Seen::Twice, Seen::AfterBack],
            ..STAYS
        },
    ]
}

/// The operator or an end stops the change.
fn given_up() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-cancels",
            about: "given up by the operator at any time",
            faults: faults!(cancels: 1, losses: 1, duplicates: 1),
            seen: BOTH,
            ..REPLACE
        },
        Configuration {
            name: "chain-resets",
            about: "the session is reset at any time, and a daemon dies",
            faults: faults!(resets: 1, crashes: 1, losses: 1),
            seen: BOTH,
            ..REPLACE
        },
    ]
}
