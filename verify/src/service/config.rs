//! Configurations to explore.

mod alone;
mod pair;
mod seeded;

pub use seeded::seeded;

use super::handler::Delta;
use super::seed::Seed;

/// Numbers of faults that may occur, in any order and at any time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Packets that are lost.
    pub lost: u8,
    /// Packets that come late, or come again late.
    pub late: u8,
    /// Retransmissions while something else could happen.
    pub again: u8,
    /// Messages that are lost.
    pub unheard: u8,
    /// Messages that come twice, or are repeated while something else could happen.
    pub doubled: u8,
    /// Waits that end while something else could happen.
    pub hasty: u8,
    /// Handlers that die.
    pub deaths: u8,
    /// Daemons that die.
    pub crashes: u8,
}

/// An event that must occur somewhere in the exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Services came in.
    Put,
    /// Services left.
    Taken,
    /// Services came in after others had been in.
    PutAgain,
    /// A packet was divided at a cutoff.
    Divided,
    /// A program found the other host's cutoff by itself.
    Inferred,
    /// The other host refused to take part.
    Refused,
    /// Both hosts asked to take the services out.
    BothLeave,
    /// Both ends were reset.
    Reset,
}

/// Events that are kept in a state. The others show in the state itself.
pub(crate) const HISTORY: u16 = 0x7f;

/// One exploration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the exploration.
    pub name: &'static str,
    /// Subject of the exploration.
    pub about: &'static str,
    /// True if the services are at both ends.
    pub pair: bool,
    /// Services that are put in, one after the other: the change that each makes to the length of
    /// both directions.
    pub puts: &'static [[Delta; 2]],
    /// Number of requests to take services out.
    pub takes: u8,
    /// Hosts at which both kinds of requests are made, as a bit set.
    pub asked: u8,
    /// Number of bytes of each end.
    pub bytes: [u8; 2],
    /// Ends that close after their bytes.
    pub closes: [bool; 2],
    /// True if services also leave by themselves, before both directions have entered.
    pub leaves_early: bool,
    /// True if the second host refuses to take part.
    pub refuses: bool,
    /// Faults.
    pub faults: Faults,
    /// Events that must occur.
    pub seen: &'static [Seen],
    /// Bug that is put in on purpose.
    pub seed: Option<Seed>,
}

const NONE: Faults = Faults {
    lost: 0,
    late: 0,
    again: 0,
    unheard: 0,
    doubled: 0,
    hasty: 0,
    deaths: 0,
    crashes: 0,
};

/// One service that adds nothing.
const ONCE: &[[Delta; 2]] = &[[Delta::Zero; 2]];
/// Two such services, one after the other.
const TWICE: &[[Delta; 2]] = &[[Delta::Zero; 2]; 2];
/// Services come in and leave.
const BOTH: &[Seen] = &[Seen::Put, Seen::Taken];
/// Two services come in, one after the other.
const AGAIN: &[Seen] = &[Seen::Put, Seen::Taken, Seen::PutAgain];

const ALONE: Configuration = Configuration {
    name: "",
    about: "",
    pair: false,
    puts: ONCE,
    takes: 1,
    asked: 1,
    bytes: [2, 1],
    closes: [false; 2],
    leaves_early: false,
    refuses: false,
    faults: NONE,
    seen: BOTH,
    seed: None,
};

const PAIR: Configuration = Configuration {
    pair: true,
    ..ALONE
};

/// Returns all configurations.
pub fn all() -> Vec<Configuration> {
    [alone::all(), pair::all()].concat()
}
