//! Explorations of sessions that carry bytes while their chain changes.

use crate::faults::faults;
use crate::nature::Nature;

use super::configuration::{
    Ask, BOTH_SIDES, Configuration, DELETE, Faults, INSERT, NONE, REPLACE, Seen,
};

/// Resets answer all packets on new paths.
pub(super) const REJECTED: Configuration = Configuration {
    nature: Nature::Rejects,
    bytes: [1, 1],
    seen: &[Seen::RollBack],
    ..INSERT
};

/// New paths alter sequence numbers.
pub(super) const RENUMBERED: Configuration = Configuration {
    nature: Nature::Renumbers,
    ..REJECTED
};

/// Both ends close while a session without a chain gets one, which comes to nothing.
pub(super) const CLOSING_INSERT_BACK: Configuration = Configuration {
    closes: [true; 2],
    faults: faults!(deaths: 1, late: 1),
    seen: &[Seen::Changed, Seen::BackFromNew, Seen::ClosedBetween],
    ..INSERT
};

/// Returns all these configurations.
pub(crate) fn carrying() -> Vec<Configuration> {
    [
        streams(),
        more_streams(),
        closing(),
        closing_back(),
        twice_or_meddled(),
    ]
    .concat()
}

/// Bytes go both ways, and a path changes or is given up.
fn streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-streams",
            about: "bytes both ways; segments lost, late, and said again across the cutoff",
            bytes: [2, 1],
            faults: faults!(packets: 1, again: 1, slow: 1),
            seen: &[Seen::Changed, Seen::Split, Seen::Repeated],
            ..REPLACE
        },
        Configuration {
            name: "chain-streams-insert",
            about: "the same, where the session went direct",
            bytes: [1, 2],
            faults: faults!(packets: 1, again: 1, slow: 1),
            seen: &[Seen::Changed, Seen::Split, Seen::Repeated],
            ..INSERT
        },
        Configuration {
            name: "chain-streams-back",
            about: "bytes both ways; the new path dies, or is given up too early",
            bytes: [1, 1],
            faults: faults!(deaths: 1, late: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::Split],
            ..REPLACE
        },
        Configuration {
            name: "chain-streams-insert-back",
            about: "the same, where the session went direct",
            bytes: [1, 1],
            faults: faults!(deaths: 1, late: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::Split],
            ..INSERT
        },
    ]
}

/// Bytes go both ways while a daemon dies, a host leaves, or a segment changes.
fn more_streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-streams-crash",
            about: "bytes both ways while a daemon dies and a segment is lost",
            bytes: [1, 1],
            faults: faults!(packets: 1, crashes: 1),
            seen: &[Seen::Changed, Seen::GoneOn],
            ..REPLACE
        },
        Configuration {
            name: "chain-streams-delete",
            about: "bytes both ways while the only host leaves; a segment is lost, the new path dies",
            bytes: [1, 1],
            faults: faults!(packets: 1, deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::Split],
            ..DELETE
        },
        Configuration {
            name: "chain-streams-deltas",
            about: "bytes both ways, whose numbers a host that leaves has moved",
            bytes: [1, 1],
            deltas: true,
            faults: faults!(packets: 1, again: 1, slow: 1),
            seen: &[Seen::Changed, Seen::Split],
            ..REPLACE
        },
        Configuration {
            name: "chain-streams-segment",
            about: "bytes both ways while a segment changes that begins at a host of the chain",
            asks: &[Ask::Without(4)],
            bytes: [1, 1],
            faults: faults!(packets: 1, slow: 1),
            seen: &[Seen::Changed, Seen::Split],
            ..BOTH_SIDES
        },
    ]
}

/// Ends close.
fn closing() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-half-close",
            about: "the left end closes when it has sent all; the right one goes on",
            bytes: [1, 1],
            closes: [true, false],
            faults: faults!(packets: 1, slow: 1),
            ..REPLACE
        },
        Configuration {
            name: "chain-closing",
            about: "both ends close; a segment is lost, a message too",
            bytes: [0, 0],
            closes: [true; 2],
            faults: faults!(packets: 1, losses: 1),
            seen: &[Seen::Changed, Seen::ClosedBetween],
            ..INSERT
        },
        Configuration {
            name: "chain-closing-replace",
            about: "both ends close; a segment is lost, a message too",
            bytes: [0, 0],
            closes: [true; 2],
            faults: faults!(packets: 1, losses: 1),
            seen: &[Seen::Changed, Seen::ClosedBetween],
            ..REPLACE
        },
        Configuration {
            name: "chain-closing-delete",
            about: "both ends close while the only host leaves; a segment is lost, the new path dies",
            bytes: [0, 0],
            closes: [true; 2],
            faults: faults!(packets: 1, deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::ClosedBetween],
            ..DELETE
        },
    ]
}

/// Ends close while a change is given up.
fn closing_back() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-closing-back",
            about: "both ends close; the new path dies, or is given up too early or by the operator",
            bytes: [0, 0],
            closes: [true; 2],
            faults: faults!(deaths: 1, late: 1, cancels: 1),
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::ClosedBetween],
            ..REPLACE
        },
        Configuration {
            name: "chain-closing-insert-back",
            about: "both ends close while a host enters; the new path dies, or is given up too early",
            ..CLOSING_INSERT_BACK
        },
        Configuration {
            name: "chain-half-close-back",
            about: "the left end closes when it has sent all, and the new path dies",
            bytes: [1, 1],
            closes: [true, false],
            faults: faults!(deaths: 1),
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..INSERT
        },
    ]
}

/// Two changes at once or one after the other; or the new path meddles.
fn twice_or_meddled() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-streams-segments",
            about: "bytes both ways while both segments change at once",
            bytes: [1, 0],
            seen: &[Seen::Changed, Seen::AtOnce],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-streams-twice",
            about: "two chains are asked for at once or one after the other",
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            bytes: [1, 1],
            faults: faults!(slow: 1),
            seen: &[Seen::Changed, Seen::Locked, Seen::Twice],
            ..REPLACE
        },
        Configuration {
            name: "chain-rejected",
            about: "a new path answers by resets, at any time; a segment is lost, a daemon dies",
            faults: faults!(packets: 1, crashes: 1),
            ..REJECTED
        },
        Configuration {
            name: "chain-renumbered",
            about: "a new path gives other sequence numbers; a message is lost, a daemon dies",
            faults: faults!(losses: 1, crashes: 1),
            ..RENUMBERED
        },
    ]
}
