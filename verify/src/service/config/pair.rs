//! Services at both ends.

use super::{AGAIN, BOTH, Configuration, Faults, NONE, PAIR, Seen, TWICE};
use crate::faults::faults;

pub(super) fn all() -> Vec<Configuration> {
    [come_and_go(), packets(), messages(), deaths()].concat()
}

fn come_and_go() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "pair",
            about: "services come in at both ends, and leave",
            bytes: [1, 1],
            seen: &[Seen::Put, Seen::Taken, Seen::Inferred],
            ..PAIR
        },
        Configuration {
            name: "pair-other-leaves",
            about: "either host takes them out, or both at once",
            takes: 2,
            asked: 3,
            bytes: [1, 0],
            seen: &[Seen::Put, Seen::Taken, Seen::BothLeave],
            ..PAIR
        },
        Configuration {
            name: "pair-both-ask",
            about: "both hosts ask at once to put services in",
            puts: TWICE,
            takes: 1,
            asked: 3,
            bytes: [1, 0],
            seen: &[Seen::Put, Seen::Taken, Seen::Refused],
            ..PAIR
        },
        Configuration {
            name: "pair-again",
            about: "services leave, and others come in and leave",
            puts: TWICE,
            takes: 2,
            bytes: [1, 0],
            seen: AGAIN,
            ..PAIR
        },
        Configuration {
            name: "pair-refused",
            about: "the other host refuses; messages are lost and come twice",
            refuses: true,
            bytes: [1, 0],
            faults: faults!(unheard: 1, doubled: 1),
            seen: &[Seen::Refused],
            ..PAIR
        },
    ]
}

fn packets() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "pair-losses",
            about: "packets are lost, and bytes are sent again across the cutoff",
            bytes: [2, 0],
            faults: faults!(lost: 1, again: 1),
            seen: &[Seen::Put, Seen::Taken, Seen::Divided],
            ..PAIR
        },
        Configuration {
            name: "pair-losses-both",
            about: "a packet of either end is lost while both send",
            bytes: [2, 1],
            faults: faults!(lost: 1),
            seen: BOTH,
            ..PAIR
        },
        Configuration {
            name: "pair-late",
            about: "packets come late, in another order, and twice",
            bytes: [2, 0],
            faults: faults!(late: 1),
            seen: BOTH,
            ..PAIR
        },
        Configuration {
            name: "pair-closing",
            about: "both ends close; a packet is lost or late",
            bytes: [1, 0],
            closes: [true; 2],
            faults: faults!(lost: 1, late: 1),
            seen: BOTH,
            ..PAIR
        },
    ]
}

fn messages() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "pair-unheard",
            about: "messages are lost",
            bytes: [1, 0],
            faults: faults!(unheard: 2),
            ..PAIR
        },
        Configuration {
            name: "pair-doubled",
            about: "messages come twice, at any later time",
            bytes: [1, 0],
            faults: faults!(doubled: 2),
            ..PAIR
        },
        Configuration {
            name: "pair-hasty",
            about: "the time to wait is over while the answer is on its way",
            bytes: [1, 0],
            faults: faults!(hasty: 2, unheard: 1),
            ..PAIR
        },
        Configuration {
            name: "pair-both-leave",
            about: "both hosts take them out at once; a message is lost, another comes twice",
            takes: 2,
            asked: 3,
            bytes: [1, 0],
            faults: faults!(unheard: 1, doubled: 1),
            seen: &[Seen::Put, Seen::Taken, Seen::BothLeave],
            ..PAIR
        },
        Configuration {
            name: "pair-doubled-again",
            about: "messages of a pair that has left come while the next one comes in",
            puts: TWICE,
            takes: 2,
            bytes: [1, 0],
            faults: faults!(doubled: 1),
            seen: AGAIN,
            ..PAIR
        },
    ]
}

fn deaths() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "pair-dies",
            about: "a handler dies at any time",
            bytes: [1, 0],
            faults: faults!(deaths: 1),
            seen: &[Seen::Put, Seen::Taken, Seen::Reset],
            ..PAIR
        },
        Configuration {
            name: "pair-crashes",
            about: "a daemon dies at any time, and starts anew",
            bytes: [1, 0],
            faults: faults!(crashes: 1),
            ..PAIR
        },
        Configuration {
            name: "pair-crashes-lost",
            about: "the same, and a packet or a message is lost",
            bytes: [1, 0],
            faults: faults!(crashes: 1, lost: 1, unheard: 1),
            ..PAIR
        },
    ]
}
