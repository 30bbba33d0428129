//! What is explored: chains, requests, streams and the faults that may come.

use crate::nature::Nature;
use crate::seed::Seed;
use crate::world::Faults;

mod death;
mod doubt;
mod local;
mod meddled;
mod seeded;

pub use seeded::seeded;

/// A wish of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// At the proxy's own host.
    Leave {
        /// Which host.
        at: usize,
    },
    /// At one of its neighbours.
    Ask {
        /// Which host.
        at: usize,
        /// The proxy's.
        of: usize,
    },
    /// At the proxy's host once more, when the first attempt has come to nothing.
    Again {
        /// Which host.
        at: usize,
    },
}

/// What must happen somewhere in the exploration, so that it is not vacuous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A middlebox left, and every host knows.
    Removal,
    /// A left anchor took everything back.
    RollBack,
    /// A change was refused or rolled back, and the next one succeeded.
    SecondAttempt,
    /// Of two contenders one lost and one won.
    OneOfTwo,
    /// Both FINs passed while both paths were in use.
    ClosedInTwoPaths,
    /// A reset came while both paths were in use.
    ResetInTwoPaths,
    /// Something sent before the cut was repeated after it, on the old path.
    OldDataAfterCut,
    /// What was asked for has been done already.
    Already,
    /// A new path died, and the old one was taken again.
    TakenBack,
    /// That path had to carry what the new one had carried before.
    CaughtUp,
    /// A daemon was started in the middle of a change that went on.
    GoneOn,
    /// A proxy died with bytes, and both ends were reset.
    Lost,
    /// A proxy died, and its session went on by the new path with every byte.
    Outlived,
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Hosts in a row: client, middleboxes, server.
    pub hosts: usize,
    /// The proxy's host is both anchors, and no other has a daemon.
    pub alone: bool,
    /// What operators ask for, in any order and at any time.
    pub requests: &'static [Request],
    /// Bytes of each direction: from the left, from the right.
    pub bytes: [u8; 2],
    /// Which ends close when they have sent all.
    pub closes: [bool; 2],
    /// Faults that may come, in any order and at any time.
    pub faults: Faults,
    /// What new paths do to packets.
    pub nature: Nature,
    /// What takes a host some time (measuring, a look-up) takes none.
    pub prompt: bool,
    /// Nobody sends or closes before a session is cut.
    pub closes_cut: bool,
    /// Whoever gets data acknowledges it in the same step.
    pub acks_at_once: bool,
    /// What must be seen.
    pub seen: &'static [Seen],
    /// A bug put in on purpose.
    pub seed: Option<Seed>,
}

impl Configuration {
    /// Units of each direction: bytes, and a FIN.
    pub fn whole(&self) -> [u8; 2] {
        [0, 1].map(|d| self.bytes[d] + u8::from(self.closes[d]))
    }

    /// Do new paths answer by resets?
    pub fn rejects(&self) -> bool {
        self.nature == Nature::Rejects
    }

    /// Does this host run a daemon?
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
/// A removal, and that it can come to nothing.
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

/// All of them. Each is explored to its last state.
pub fn all() -> Vec<Configuration> {
    let mut all = vec![
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
    ];
    all.extend(death::all());
    all.extend(doubt::all());
    all.extend(local::all());
    all.extend(meddled::all());
    all
}
