//! Configurations to explore: the requested chains and the possible faults.

use super::carrying::carrying;
use super::seed::Seed;
use crate::nature::Nature;

/// Index of the host that opens the session.
pub const LEFT: usize = 0;
/// Index of the host that accepts the session.
pub const RIGHT: usize = 1;

/// Number of faults of each kind that may still occur.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Messages lost.
    pub losses: u8,
    /// Delivered messages that arrive once more.
    pub duplicates: u8,
    /// Time-outs while an answer is in flight.
    pub late: u8,
    /// Daemons that die, at any step.
    pub crashes: u8,
    /// Commands that fail.
    pub refusals: u8,
    /// Cancels by an operator.
    pub cancels: u8,
    /// New paths that die before both ends have settled on them.
    pub deaths: u8,
    /// The session is reset.
    pub resets: u8,
    /// Segments of the session that are lost.
    pub packets: u8,
    /// Segments that are retransmitted while others are in flight.
    pub again: u8,
    /// Segments that arrive late.
    pub slow: u8,
}

/// A request of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// This chain, whatever chain the session has.
    Become(&'static [usize]),
    /// The session's chain without this host.
    Without(usize),
    /// The session's chain with the second host in place of the first.
    Replace(usize, usize),
}

/// An event that must occur somewhere in the exploration, so that the exploration is not vacuous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A session has another chain, and every host knows it.
    Changed,
    /// A left anchor rolled everything back.
    RollBack,
    /// Everything was rolled back while both anchors took the new path.
    BackFromNew,
    /// A session got a second chain after the first one.
    Twice,
    /// One chain was not established, and another was established after it.
    AfterBack,
    /// A request was refused because another held the session.
    Locked,
    /// The right anchor's data plane followed the left anchor's.
    Followed,
    /// A daemon started in the middle of a change, and the change continued.
    GoneOn,
    /// A change that was rolled back had installed state.
    StateMoved,
    /// Both sides of one host used two paths at the same time.
    AtOnce,
    /// A segment was split: its data took one path, its acknowledgement another.
    Split,
    /// Data sent before a path was taken was retransmitted after that.
    Repeated,
    /// Both FINs have passed while an end used two paths.
    ClosedBetween,
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the exploration.
    pub name: &'static str,
    /// Subject of the exploration.
    pub about: &'static str,
    /// Number of hosts: the two ends are hosts 0 and 1, the hosts of chains have numbers from 2.
    pub hosts: usize,
    /// Chain that the session has at first.
    pub first: &'static [usize],
    /// Requests of operators, made in any order and at any time.
    pub asks: &'static [Ask],
    /// True if no two requests are about the same hops, so that none may be refused.
    pub disjoint: bool,
    /// True if each request is made when no change is in progress.
    pub in_turn: bool,
    /// True if state moves from the hosts that leave to those that replace them.
    pub state: bool,
    /// True if every host of a chain has changed the length of the stream.
    pub deltas: bool,
    /// Number of bytes that the session carries to the right and to the left end, from the time
    /// when it is open. If both are 0, the check covers the paths only.
    pub bytes: [u8; 2],
    /// Ends that close when they have sent everything.
    pub closes: [bool; 2],
    /// Effect of new paths on packets.
    pub nature: Nature,
    /// Faults that may occur, in any order and at any time.
    pub faults: Faults,
    /// Hosts whose daemons may die. An empty list means all hosts.
    pub mortal: &'static [usize],
    /// Events that must occur.
    pub seen: &'static [Seen],
    /// Bug that is put in on purpose.
    pub seed: Option<Seed>,
}

pub(super) const NONE: Faults = Faults {
    losses: 0,
    duplicates: 0,
    late: 0,
    crashes: 0,
    refusals: 0,
    cancels: 0,
    deaths: 0,
    resets: 0,
    packets: 0,
    again: 0,
    slow: 0,
};

/// Faults that may make a change fail, one of each.
const COMES_TO_NOTHING: Faults = Faults {
    cancels: 1,
    resets: 1,
    refusals: 1,
    deaths: 1,
    ..NONE
};

/// A change is seen to succeed, and a change is seen to fail.
const BOTH: &[Seen] = &[Seen::Changed, Seen::RollBack];

/// One host takes the place of another.
pub(super) const REPLACE: Configuration = Configuration {
    name: "",
    about: "",
    hosts: 4,
    first: &[2],
    asks: &[Ask::Become(&[3])],
    disjoint: false,
    in_turn: false,
    state: false,
    deltas: false,
    bytes: [0; 2],
    closes: [false; 2],
    nature: Nature::Plain,
    faults: NONE,
    mortal: &[],
    seen: &[Seen::Changed],
    seed: None,
};

/// One host replaces another.
pub(super) const BOTH_SIDES: Configuration = Configuration {
    hosts: 5,
    first: &[3, 2, 4],
    asks: &[Ask::Without(3), Ask::Without(4)],
    disjoint: true,
    seen: &[Seen::Changed, Seen::AtOnce],
    ..REPLACE
};

/// A host enters a session that had no chain.
pub(super) const INSERT: Configuration = Configuration {
    hosts: 3,
    first: &[],
    asks: &[Ask::Become(&[2])],
    ..REPLACE
};

/// A host stays while another enters before it, and then moves behind it.
pub(super) const STAYS: Configuration = Configuration {
    asks: &[Ask::Become(&[3, 2]), Ask::Become(&[2, 3])],
    in_turn: true,
    mortal: &[2],
    seen: &[Seen::Changed, Seen::Twice],
    ..REPLACE
};

/// The only host leaves.
pub(super) const DELETE: Configuration = Configuration {
    hosts: 3,
    first: &[2],
    asks: &[Ask::Become(&[])],
    ..REPLACE
};

/// Returns all configurations. Each is explored to its last state.
pub fn all() -> Vec<Configuration> {
    let mut all = without_bytes();
    all.extend(carrying());
    all
}

fn without_bytes() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "chain-replace",
            about: "a host takes another's place with its state; commands fail, the new path dies",
            state: true,
            faults: Faults {
                refusals: 1,
                deaths: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::Followed],
            ..REPLACE
        },
        Configuration {
            name: "chain-losses",
            about: "messages are lost; the new path dies",
            faults: Faults {
                losses: 3,
                deaths: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
        Configuration {
            name: "chain-duplicates",
            about: "messages come again, at any later time",
            faults: Faults {
                duplicates: 3,
                ..NONE
            },
            ..REPLACE
        },
        Configuration {
            name: "chain-late",
            about: "time-outs pass while the answer is on its way",
            faults: Faults { late: 3, ..NONE },
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
        Configuration {
            name: "chain-crashes",
            about: "two daemons die, or one twice, between any two of their steps; a message comes again",
            faults: Faults {
                crashes: 2,
                duplicates: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::RollBack, Seen::GoneOn],
            ..REPLACE
        },
        Configuration {
            name: "chain-longer",
            about: "two hosts come in; a daemon dies, a message is lost, a time-out passes",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2, 3])],
            faults: Faults {
                losses: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
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
            faults: Faults {
                losses: 1,
                duplicates: 1,
                late: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..REPLACE
        },
        Configuration {
            name: "chain-state",
            about: "a host takes another's place with its state: lost, too late, commands fail, the new path dies",
            state: true,
            faults: Faults {
                losses: 1,
                late: 1,
                refusals: 1,
                deaths: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-late",
            about: "the same; messages come again, and two time-outs pass while the answer is on its way",
            state: true,
            faults: Faults {
                duplicates: 1,
                late: 2,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-crashes",
            about: "the same; a daemon dies between any two of its steps, a time-out passes",
            state: true,
            faults: Faults {
                losses: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
            seen: &[
                Seen::Changed,
                Seen::BackFromNew,
                Seen::GoneOn,
                Seen::StateMoved,
            ],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-cancels",
            about: "the same, given up by the operator at any time; the session is reset",
            state: true,
            faults: Faults {
                cancels: 1,
                losses: 1,
                resets: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::RollBack, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-state-twice",
            about: "with its state to another host and back, one after the other or at once; given up at any time",
            asks: &[Ask::Become(&[3]), Ask::Become(&[2])],
            state: true,
            faults: Faults {
                cancels: 1,
                late: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::Twice, Seen::StateMoved],
            ..REPLACE
        },
        Configuration {
            name: "chain-insert",
            about: "a host comes in: lost, come again, too late, died, one of each",
            faults: Faults {
                losses: 1,
                duplicates: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..INSERT
        },
        Configuration {
            name: "chain-delete",
            about: "the only host leaves, with the same faults",
            faults: Faults {
                losses: 1,
                duplicates: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
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
        Configuration {
            name: "chain-around",
            about: "a host stays while another comes behind it or goes before it; lost, or too late",
            hosts: 4,
            first: &[2],
            asks: &[Ask::Become(&[2, 3]), Ask::Become(&[3, 2])],
            faults: Faults {
                losses: 1,
                late: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::Twice],
            ..REPLACE
        },
        Configuration {
            name: "chain-around-crashes",
            about: "a host stays while another leaves; a daemon dies",
            hosts: 4,
            first: &[2, 3],
            asks: &[Ask::Become(&[3])],
            faults: Faults {
                losses: 1,
                crashes: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew, Seen::GoneOn],
            ..REPLACE
        },
        Configuration {
            name: "chain-kept-crashes",
            about: "a host stays in two changes one after the other; its daemon dies in each, and one is given up",
            faults: Faults {
                crashes: 2,
                cancels: 1,
                late: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::RollBack, Seen::Twice, Seen::AfterBack],
            ..STAYS
        },
        Configuration {
            name: "chain-cancels",
            about: "given up by the operator at any time",
            faults: Faults {
                cancels: 1,
                losses: 1,
                duplicates: 1,
                ..NONE
            },
            seen: BOTH,
            ..REPLACE
        },
        Configuration {
            name: "chain-resets",
            about: "the session is reset at any time, and a daemon dies",
            faults: Faults {
                resets: 1,
                crashes: 1,
                losses: 1,
                ..NONE
            },
            seen: BOTH,
            ..REPLACE
        },
        Configuration {
            name: "chain-overlapping",
            about: "two chains are asked for at once, for one session; a daemon dies",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            faults: Faults {
                losses: 1,
                late: 1,
                crashes: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::Locked, Seen::Twice],
            ..REPLACE
        },
        Configuration {
            name: "chain-overlapping-deaths",
            about: "the same; a new path dies, or the operator gives one up",
            hosts: 4,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[3])],
            faults: Faults {
                deaths: 1,
                cancels: 1,
                ..NONE
            },
            seen: &[
                Seen::Changed,
                Seen::Locked,
                Seen::Twice,
                Seen::BackFromNew,
                Seen::AfterBack,
            ],
            ..REPLACE
        },
        Configuration {
            name: "chain-segments",
            about: "hosts leave on both sides of one that stays, at once; a message is lost",
            faults: Faults { losses: 1, ..NONE },
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-deaths",
            about: "a segment that begins at a host of the chain changes; messages lost, too late, commands fail, the new path dies",
            asks: &[Ask::Without(4)],
            faults: Faults {
                losses: 1,
                late: 1,
                deaths: 1,
                refusals: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::BackFromNew],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-ends",
            about: "the same; given up by the operator, the session is reset, a daemon dies",
            asks: &[Ask::Without(4)],
            faults: Faults {
                cancels: 1,
                resets: 1,
                crashes: 1,
                ..NONE
            },
            seen: BOTH,
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-crashes",
            about: "the same, and two daemons die, or one twice; a message comes again",
            asks: &[Ask::Without(4)],
            faults: Faults {
                crashes: 2,
                duplicates: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::RollBack, Seen::GoneOn],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-segment-overlapping",
            about: "a segment changes, and the chain as a whole; a daemon dies",
            asks: &[Ask::Without(4), Ask::Become(&[])],
            disjoint: false,
            faults: Faults { crashes: 1, ..NONE },
            seen: &[Seen::Changed, Seen::Locked, Seen::Twice],
            ..BOTH_SIDES
        },
        Configuration {
            name: "chain-out-and-in",
            about: "the only host leaves, and comes in again before it was told to forget; two time-outs, or a daemon dies",
            asks: &[Ask::Become(&[]), Ask::Become(&[2])],
            faults: Faults {
                late: 2,
                crashes: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::Twice, Seen::GoneOn],
            ..DELETE
        },
        Configuration {
            name: "chain-and-back",
            about: "in and out again, one after the other or at once; a daemon dies",
            hosts: 3,
            first: &[],
            asks: &[Ask::Become(&[2]), Ask::Become(&[])],
            faults: Faults {
                duplicates: 1,
                crashes: 1,
                ..NONE
            },
            seen: &[Seen::Changed, Seen::Twice, Seen::GoneOn],
            ..REPLACE
        },
    ]
}
