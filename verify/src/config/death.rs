//! Proxies that die at any moment of a change, with or without data.

use super::configuration::{AT_PROXY, BASIC, Configuration, Faults, NONE, Seen};
use crate::faults::faults;
use crate::seed::Seed;

/// One proxy process dies.
const DIES: Faults = faults!(proxies: 1);

const PROXY: Configuration = Configuration {
    requests: AT_PROXY,
    faults: DIES,
    prompt: true,
    bytes: [2, 1],
    seen: &[Seen::Removal, Seen::Lost, Seen::Outlived],
    ..BASIC
};

/// Returns all these configurations.
pub(super) fn all() -> Vec<Configuration> {
    [removed(), alone()].concat()
}

/// The proxy's process dies while its neighbours are the anchors.
fn removed() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "proxy-dies",
            about: "the proxy's process dies with bytes of both directions",
            ..PROXY
        },
        Configuration {
            name: "proxy-dies-lost",
            about: "the same, and a message is lost",
            faults: Faults { losses: 1, ..DIES },
            bytes: [1, 1],
            ..PROXY
        },
        Configuration {
            name: "proxy-dies-streams",
            about: "the same, and a packet is lost, or sent again across the cutoff",
            faults: Faults {
                packets: 1,
                again: 1,
                ..DIES
            },
            bytes: [2, 0],
            acks_at_once: true,
            ..PROXY
        },
        Configuration {
            name: "proxy-dies-crash",
            about: "the same, and a daemon dies",
            faults: Faults { crashes: 1, ..DIES },
            bytes: [1, 1],
            acks_at_once: true,
            ..PROXY
        },
        Configuration {
            name: "proxy-dies-half-closed",
            about: "the same, of a session that the client closes when it has sent all",
            closes: [true, false],
            bytes: [1, 1],
            ..PROXY
        },
    ]
}

/// The proxy's process dies while its own host is both anchors.
fn alone() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "local-proxy-dies",
            about: "by the proxy's host alone: its process dies with bytes of both directions",
            alone: true,
            ..PROXY
        },
        Configuration {
            name: "local-proxy-dies-crash",
            about: "the same, and the daemon dies, or is held up between any two stores",
            faults: Faults {
                crashes: 1,
                delays: 1,
                ..DIES
            },
            alone: true,
            bytes: [1, 1],
            ..PROXY
        },
        Configuration {
            name: "local-proxy-dies-half-closed",
            about: "the same, of a session that the client closes, and a packet is lost",
            faults: Faults { packets: 1, ..DIES },
            alone: true,
            closes: [true, false],
            bytes: [1, 1],
            ..PROXY
        },
    ]
}

/// Returns the configurations with bugs that are put in on purpose.
pub(super) fn seeded() -> Vec<Configuration> {
    let proxys_end = Configuration {
        name: "proxys-end",
        about: "an end hears the FIN of a proxy that has died with bytes for it",
        bytes: [1, 0],
        acks_at_once: true,
        seed: Some(Seed::ProxysEnd),
        ..PROXY
    };
    let unnoticed = Configuration {
        name: "proxys-end-unnoticed",
        about: "an end has heard that FIN, and the path is changed all the same",
        seed: Some(Seed::ProxysEndUnnoticed),
        ..proxys_end.clone()
    };
    vec![proxys_end, unnoticed]
}
