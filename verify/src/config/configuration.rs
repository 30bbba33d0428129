//! Parts of a configuration, and the configurations that others vary.

use crate::nature::Nature;
use crate::seed::Seed;

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
    /// Packets lost.
    pub packets: u8,
    /// Segments that are retransmitted although they may be in flight.
    pub again: u8,
    /// Resets by the applications.
    pub resets: u8,
    /// New paths that no longer carry anything.
    pub deaths: u8,
    /// Daemons that are held up between two of their steps while packets pass.
    pub delays: u8,
    /// Processes of proxies that die, with or without data.
    pub proxies: u8,
}

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
    pub(crate) fn has_daemon(&self, place: usize) -> bool {
        !self.alone || place == 1
    }
}

pub(super) const NONE: Faults = Faults {
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

pub(super) const AT_PROXY: &[Request] = &[Request::Leave { at: 1 }];
pub(super) const TWICE: &[Request] = &[Request::Leave { at: 1 }, Request::Again { at: 1 }];
pub(super) const NEIGHBOURS: &[Request] = &[Request::Leave { at: 1 }, Request::Leave { at: 2 }];
/// A removal is seen to succeed, and a removal is seen to fail.
pub(super) const BOTH: &[Seen] = &[Seen::Removal, Seen::RollBack];

pub(super) const BASIC: Configuration = Configuration {
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
