//! Configurations to explore: chains, requests, streams and the possible faults.

use crate::nature::Nature;
use crate::seed::Seed;
use crate::world::Faults;

mod death;
mod local;
mod meddled;
mod path_liveness;
mod seeded;

pub use seeded::seeded;

/// A request of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A request at the proxy's own host.
    Leave {
        /// Index of the host.
        at: usize,
    },
    /// A request at a neighbour of the proxy's host.
    Ask {
        /// Index of the host.
        at: usize,
        /// Index of the proxy's host.
        of: usize,
    },
    /// A second request at the proxy's host, after the first attempt has failed.
    Again {
        /// Index of the host.
        at: usize,
    },
}

/// An event that must occur somewhere in the exploration, so that the exploration is not vacuous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A middlebox left, and every host knows it.
    Removal,
    /// A left anchor rolled everything back.
    RollBack,
    /// A change was refused or rolled back, and the next one succeeded.
    SecondAttempt,
    /// One of two contenders failed and the other succeeded.
    OneOfTwo,
    /// Both FINs passed while both paths were in use.
    ClosedInTwoPaths,
    /// A reset arrived while both paths were in use.
    ResetInTwoPaths,
    /// Data sent before the cutover was retransmitted after it, on the old path.
    OldDataAfterCut,
    /// A request was for something that had already been done.
    Already,
    /// A new path died, and the session went back to the old path.
    TakenBack,
    /// The old path then had to carry what the new path had carried before.
    CaughtUp,
    /// A daemon started in the middle of a change, and the change continued.
    GoneOn,
    /// A proxy died with bytes, and both ends were reset.
    Lost,
    /// A proxy died, and its session continued on the new path with every byte.
    Outlived,
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the exploration.
    pub name: &'static str,
    /// Subject of the exploration.
    pub about: &'static str,
    /// Number of hosts in a row: client, middleboxes, server.
    pub hosts: usize,
    /// True if the proxy's host is both anchors, and no other host has a daemon.
    pub alone: bool,
    /// Requests of operators, made in any order and at any time.
    pub requests: &'static [Request],
    /// Number of bytes of each direction: from the left, from the right.
    pub bytes: [u8; 2],
    /// Ends that close when they have sent everything.
    pub closes: [bool; 2],
    /// Faults that may occur, in any order and at any time.
    pub faults: Faults,
    /// Effect of new paths on packets.
    pub nature: Nature,
    /// True if actions that take a host some time (measuring, a look-up) take none.
    pub prompt: bool,
    /// True if no end sends or closes before a session is cut over.
    pub closes_cut: bool,
    /// True if each receiver of data acknowledges it in the same step.
    pub acks_at_once: bool,
    /// Events that must occur.
    pub seen: &'static [Seen],
    /// Bug that is put in on purpose.
    pub seed: Option<Seed>,
}

impl Configuration {
    /// Number of units of each direction: bytes, and a FIN.
    pub fn whole(&self) -> [u8; 2] {
        [0, 1].map(|d| self.bytes[d] + u8::from(self.closes[d]))
    }

    /// True if new paths answer with resets.
    pub fn rejects(&self) -> bool {
        self.nature == Nature::Rejects
    }

    /// True if this host runs a daemon.
    pub fn has_daemon(&self, place: usize) -> bool {
        !self.alone || place == 1
    }
}

const NONE: Faults = Faults {
    losses: 0,
    duplicates: 0,
    late: 0,
    crashes: 0,
    refusals: 0,
    cancels: 0,
    packets: 0,
    again: 0,
    resets: 0,
    deaths: 0,
    delays: 0,
    proxies: 0,
};

const AT_PROXY: &[Request] = &[Request::Leave { at: 1 }];
const TWICE: &[Request] = &[Request::Leave { at: 1 }, Request::Again { at: 1 }];
const NEIGHBOURS: &[Request] = &[Request::Leave { at: 1 }, Request::Leave { at: 2 }];
/// A removal is seen to succeed, and a removal is seen to fail.
const BOTH: &[Seen] = &[Seen::Removal, Seen::RollBack];

const BASIC: Configuration = Configuration {
    name: "",
    about: "",
    hosts: 3,
    alone: false,
    requests: AT_PROXY,
    bytes: [1, 0],
    closes: [false; 2],
    faults: NONE,
    nature: Nature::Plain,
    prompt: false,
    closes_cut: false,
    acks_at_once: false,
    seen: &[Seen::Removal],
    seed: None,
};

/// Returns all configurations. Each is explored to its last state.
pub fn all() -> Vec<Configuration> {
    [
        faults(),
        given_up(),
        contending(),
        streams(),
        closing(),
        death::all(),
        path_liveness::all(),
        local::all(),
        meddled::all(),
    ]
    .concat()
}

/// One proxy leaves, and messages, daemons or commands fail.
fn faults() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "removal",
            about: "asked at the proxy, nothing goes wrong",
            bytes: [1, 1],
            ..BASIC
        },
        Configuration {
            name: "losses",
            about: "messages are lost",
            faults: Faults { losses: 3, ..NONE },
            seen: BOTH,
            ..BASIC
        },
        Configuration {
            name: "duplicates",
            about: "messages come again, at any later time",
            faults: Faults {
                duplicates: 3,
                ..NONE
            },
            ..BASIC
        },
        Configuration {
            name: "late",
            about: "time-outs pass while the answer is on its way",
            faults: Faults { late: 3, ..NONE },
            seen: BOTH,
            ..BASIC
        },
        Configuration {
            name: "crashes",
            about: "two daemons die, or one twice, between any two of their steps",
            faults: Faults { crashes: 2, ..NONE },
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..BASIC
        },
        Configuration {
            name: "mixed",
            about: "one of each: lost, come again, too late, died",
            faults: Faults {
                losses: 1,
                duplicates: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
            bytes: [0, 0],
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            prompt: true,
            ..BASIC
        },
    ]
}

/// The change fails, and is asked for again.
fn given_up() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "refusals",
            about: "a host fails at any step; asked again afterwards",
            faults: Faults {
                refusals: 1,
                losses: 1,
                ..NONE
            },
            requests: TWICE,
            seen: &[Seen::Removal, Seen::RollBack, Seen::SecondAttempt],
            ..BASIC
        },
        Configuration {
            name: "cancels",
            about: "given up by the operator at any time; asked again afterwards",
            faults: Faults {
                cancels: 1,
                losses: 1,
                duplicates: 1,
                ..NONE
            },
            requests: TWICE,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::RollBack, Seen::SecondAttempt],
            ..BASIC
        },
    ]
}

/// Several hosts ask, or two proxies leave.
fn contending() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "left-asks",
            about: "asked by the left neighbour",
            faults: Faults {
                losses: 1,
                crashes: 1,
                ..NONE
            },
            requests: &[Request::Ask { at: 0, of: 1 }],
            ..BASIC
        },
        Configuration {
            name: "right-asks",
            about: "asked by the right neighbour",
            faults: Faults {
                losses: 1,
                crashes: 1,
                ..NONE
            },
            requests: &[Request::Ask { at: 2, of: 1 }],
            ..BASIC
        },
        Configuration {
            name: "contenders",
            about: "the proxy and both neighbours ask at once",
            requests: &[
                Request::Leave { at: 1 },
                Request::Ask { at: 0, of: 1 },
                Request::Ask { at: 2, of: 1 },
            ],
            bytes: [0, 0],
            seen: &[Seen::Removal, Seen::OneOfTwo],
            ..BASIC
        },
        Configuration {
            name: "neighbours",
            about: "two proxies in a row leave at once: the segments overlap",
            faults: Faults { losses: 1, ..NONE },
            hosts: 4,
            requests: NEIGHBOURS,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::OneOfTwo],
            ..BASIC
        },
        Configuration {
            name: "neighbours-crash",
            about: "the same, and a daemon dies",
            faults: Faults { crashes: 1, ..NONE },
            hosts: 4,
            requests: NEIGHBOURS,
            bytes: [0, 0],
            prompt: true,
            seen: &[Seen::Removal, Seen::OneOfTwo, Seen::GoneOn],
            ..BASIC
        },
    ]
}

/// Bytes go both ways.
fn streams() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "streams",
            about: "bytes both ways; packets lost, and sent again across the cutoff",
            faults: Faults {
                packets: 1,
                again: 1,
                ..NONE
            },
            bytes: [2, 1],
            prompt: true,
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..BASIC
        },
        Configuration {
            name: "streams-back",
            about: "the same, more in reverse",
            faults: Faults {
                packets: 1,
                again: 1,
                ..NONE
            },
            bytes: [1, 2],
            prompt: true,
            seen: &[Seen::Removal, Seen::OldDataAfterCut],
            ..BASIC
        },
        Configuration {
            name: "streams-crash",
            about: "bytes both ways while a daemon dies and a packet is lost",
            faults: Faults {
                packets: 1,
                crashes: 1,
                ..NONE
            },
            bytes: [1, 1],
            prompt: true,
            seen: &[Seen::Removal, Seen::RollBack, Seen::GoneOn],
            ..BASIC
        },
    ]
}

/// Ends close, or reset the session.
fn closing() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "half-close",
            about: "the client closes when it has sent all; the server goes on",
            faults: Faults { packets: 1, ..NONE },
            bytes: [1, 1],
            closes: [true, false],
            prompt: true,
            ..BASIC
        },
        Configuration {
            name: "closing",
            about: "both ends close, at once or one after the other",
            faults: Faults { losses: 1, ..NONE },
            bytes: [0, 0],
            closes: [true, true],
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths],
            ..BASIC
        },
        Configuration {
            name: "closing-crash",
            about: "the same once it is cut, and a daemon dies at any time",
            faults: Faults { crashes: 1, ..NONE },
            bytes: [0, 0],
            closes: [true, true],
            closes_cut: true,
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ClosedInTwoPaths],
            ..BASIC
        },
        Configuration {
            name: "resets",
            about: "an end resets the session",
            faults: Faults { resets: 1, ..NONE },
            bytes: [1, 0],
            prompt: true,
            acks_at_once: true,
            seen: &[Seen::Removal, Seen::ResetInTwoPaths],
            ..BASIC
        },
    ]
}
