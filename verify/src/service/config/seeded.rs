//! Configurations in which each bug that is put in on purpose shows.

use super::{ALONE, Configuration, Delta, Faults, NONE, PAIR, TWICE};
use crate::faults::faults;
use crate::service::seed::Seed;

/// Returns a configuration for each bug that is put in on purpose.
pub fn seeded() -> Vec<Configuration> {
    [alone(), cutoffs(), messages(), restarts()].concat()
}

const LONGER: &[[Delta; 2]] = &[[Delta::More, Delta::Zero]];

fn alone() -> Vec<Configuration> {
    let of = |name, about, seed| Configuration {
        name,
        about,
        seed: Some(seed),
        ..ALONE
    };
    let lost = faults!(lost: 1);
    vec![
        of(
            "service-early-cutoff",
            "the cutoff is one byte before what was sent",
            Seed::EarlyCutoff,
        ),
        Configuration {
            faults: lost,
            ..of(
                "service-released",
                "the sender hears the handler before the old path has drained",
                Seed::ReleasedAtOnce,
            )
        },
        Configuration {
            puts: LONGER,
            ..of(
                "service-wrong-delta",
                "added bytes are made up for in the wrong direction",
                Seed::WrongDirection,
            )
        },
        of(
            "service-undrained",
            "the handler's sockets are closed before the old path has drained",
            Seed::NotDrained,
        ),
        Configuration {
            closes: [true, false],
            faults: faults!(again: 1),
            ..of(
                "service-keeps-fin",
                "a packet that is divided at the cutoff keeps its FIN",
                Seed::KeepsFin,
            )
        },
        Configuration {
            leaves_early: true,
            faults: lost,
            ..of(
                "service-leaves-early",
                "the session is led past services that leave while it enters",
                Seed::LeavesEarly,
            )
        },
        of(
            "service-never-still",
            "a silent direction never gets a cutoff",
            Seed::NeverStill,
        ),
    ]
}

fn of(name: &'static str, about: &'static str, seed: Seed) -> Configuration {
    Configuration {
        name,
        about,
        seed: Some(seed),
        bytes: [1, 1],
        ..PAIR
    }
}

/// Bugs of cutoffs and routes at both ends.
fn cutoffs() -> Vec<Configuration> {
    vec![
        Configuration {
            faults: faults!(lost: 1),
            bytes: [2, 1],
            ..of(
                "pair-unconfirmed",
                "a cutoff that was told is taken for one that was confirmed",
                Seed::Unconfirmed,
            )
        },
        Configuration {
            faults: faults!(unheard: 1),
            ..of("pair-cut-once", "a cutoff is told once", Seed::CutOnce)
        },
        of(
            "pair-plain",
            "new data passes the handler while it has the session",
            Seed::PlainPassed,
        ),
        of(
            "pair-leaves-first",
            "a host leaves before the other one takes what comes directly",
            Seed::LeavesFirst,
        ),
        of(
            "pair-guessed-cutoff",
            "the other host's cutoff is guessed",
            Seed::GuessedCutoff,
        ),
    ]
}

/// Bugs in the order of both hosts.
fn messages() -> Vec<Configuration> {
    vec![
        of(
            "pair-forgets-first",
            "a host forgets the session while data passes the other handler",
            Seed::ForgetsFirst,
        ),
        Configuration {
            faults: faults!(hasty: 1),
            ..of(
                "pair-enters-first",
                "the asker's data enters before the other handler has the session",
                Seed::EntersFirst,
            )
        },
        of(
            "pair-echoed-out",
            "two hosts that have forgotten a pair answer each other for ever",
            Seed::EchoedOut,
        ),
        Configuration {
            faults: faults!(doubled: 1),
            ..of(
                "pair-connects-twice",
                "a second answer to an invitation makes a second connection",
                Seed::ConnectsTwice,
            )
        },
        Configuration {
            puts: TWICE,
            bytes: [0, 0],
            takes: 1,
            faults: faults!(doubled: 1),
            ..of(
                "pair-stale-names",
                "a message of an earlier pair is taken for one of the next pair",
                Seed::StaleNames,
            )
        },
    ]
}

/// Bugs of daemons that start again.
fn restarts() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "service-taken-for-out",
            about: "a daemon that starts anew takes services that the session leaves for gone",
            seed: Some(Seed::TakenForOut),
            faults: faults!(crashes: 1),
            ..ALONE
        },
        Configuration {
            bytes: [1, 0],
            faults: faults!(crashes: 1),
            ..of(
                "pair-forgets-at-start",
                "a daemon that starts anew forgets a session before the other host may",
                Seed::ForgetsAtStart,
            )
        },
        Configuration {
            faults: faults!(crashes: 1),
            ..of(
                "pair-stays-in",
                "a daemon that starts anew takes services that leave for present",
                Seed::StaysIn,
            )
        },
    ]
}
