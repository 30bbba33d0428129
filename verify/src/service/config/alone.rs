//! Services at one end.

use super::{AGAIN, ALONE, BOTH, Configuration, Delta, Faults, NONE, Seen, TWICE};
use crate::faults::faults;

const LONGER: &[[Delta; 2]] = &[[Delta::More, Delta::Less], [Delta::Zero; 2]];
const SHORTER: &[[Delta; 2]] = &[[Delta::Less, Delta::More], [Delta::More, Delta::Zero]];
const DIVIDED: &[Seen] = &[Seen::Put, Seen::Taken, Seen::Divided];

pub(super) fn all() -> Vec<Configuration> {
    [come_and_go(), faults(), crashes(), closing()].concat()
}

fn come_and_go() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "service",
            about: "a service comes in and leaves",
            bytes: [3, 2],
            ..ALONE
        },
        Configuration {
            name: "service-again",
            about: "a service leaves, and another one comes in and leaves",
            puts: TWICE,
            takes: 2,
            bytes: [2, 1],
            seen: AGAIN,
            ..ALONE
        },
        Configuration {
            name: "service-longer",
            about: "the first one adds a byte one way, and takes one away the other way",
            puts: LONGER,
            takes: 2,
            bytes: [2, 2],
            seen: AGAIN,
            ..ALONE
        },
        Configuration {
            name: "service-shorter",
            about: "both change the number of bytes; packets are lost",
            puts: SHORTER,
            takes: 2,
            bytes: [2, 1],
            faults: faults!(lost: 1),
            seen: AGAIN,
            ..ALONE
        },
    ]
}

fn faults() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "service-losses",
            about: "packets are lost, and bytes are sent again across the cutoff",
            bytes: [2, 1],
            faults: faults!(lost: 1, again: 1),
            seen: DIVIDED,
            ..ALONE
        },
        Configuration {
            name: "service-losses-back",
            about: "the same, more in reverse",
            bytes: [1, 2],
            faults: faults!(lost: 1, again: 1),
            seen: DIVIDED,
            ..ALONE
        },
        Configuration {
            name: "service-late",
            about: "packets come late, in another order, and twice",
            bytes: [2, 1],
            faults: faults!(late: 1, again: 1),
            seen: DIVIDED,
            ..ALONE
        },
        Configuration {
            name: "service-late-again",
            about: "the same, while two services come and go",
            puts: LONGER,
            takes: 2,
            bytes: [1, 1],
            faults: faults!(late: 1),
            seen: AGAIN,
            ..ALONE
        },
        Configuration {
            name: "service-dies",
            about: "the handler dies at any time",
            bytes: [2, 1],
            faults: faults!(deaths: 1),
            seen: &[Seen::Put, Seen::Taken, Seen::Reset],
            ..ALONE
        },
    ]
}

fn crashes() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "service-crashes",
            about: "the daemon dies at any time, and starts anew",
            bytes: [2, 1],
            faults: faults!(crashes: 1),
            ..ALONE
        },
        Configuration {
            name: "service-crashes-lost",
            about: "the same, while two services come and go and a packet is lost",
            puts: TWICE,
            takes: 2,
            bytes: [1, 1],
            faults: faults!(crashes: 1, lost: 1),
            seen: AGAIN,
            ..ALONE
        },
    ]
}

fn closing() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "service-half-close",
            about: "one end closes; the other one goes on",
            bytes: [1, 2],
            closes: [true, false],
            faults: faults!(lost: 1, again: 1),
            seen: BOTH,
            ..ALONE
        },
        Configuration {
            name: "service-closing",
            about: "both ends close; packets are lost or late",
            bytes: [1, 1],
            closes: [true; 2],
            faults: faults!(lost: 1, late: 1, again: 1),
            seen: BOTH,
            ..ALONE
        },
        Configuration {
            name: "service-early",
            about: "the service leaves by itself while the session enters",
            bytes: [2, 1],
            leaves_early: true,
            faults: faults!(lost: 1),
            seen: BOTH,
            ..ALONE
        },
    ]
}
