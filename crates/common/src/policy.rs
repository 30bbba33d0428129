//! Which sessions take which chain: ordered rules, of which the first that
//! matches a SYN decides.

use crate::chain::Chain;
use crate::flow::{Addr, FlowKey};

/// How many rules there may be.
pub const MAX_RULES: usize = 256;

/// What becomes of a session when a host of its chain is not known to be there.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Otherwise {
    /// It is not opened.
    #[default]
    Refuse = 0,
    /// It goes without the chain.
    Direct = 1,
}

/// Which address families a rule is about.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Families {
    /// IPv4 alone.
    V4 = 0,
    /// IPv6 alone.
    V6 = 1,
    /// Both.
    Both = 2,
}

/// A rule as the data plane has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicyRule {
    /// The source's prefix, host bits zero.
    pub source: Addr,
    /// Its mask.
    pub source_mask: Addr,
    /// The destination's prefix, host bits zero.
    pub destination: Addr,
    /// Its mask.
    pub destination_mask: Addr,
    /// First destination port, host order.
    pub first_port: u16,
    /// Last destination port, host order.
    pub last_port: u16,
    /// A [`Families`].
    pub families: u8,
    /// An [`Otherwise`].
    pub otherwise: u8,
    /// Zero.
    pub reserved: u16,
    /// Of which policy the rule is one.
    pub generation: u32,
    /// The hosts; none for sessions that go without a chain.
    pub chain: Chain,
}

impl PolicyRule {
    /// Does a session match that this end opens?
    #[inline(always)]
    pub fn matches(&self, session: &FlowKey) -> bool {
        let port = u16::from_be(session.remote_port);
        session.local.masked(&self.source_mask) == self.source
            && session.remote.masked(&self.destination_mask) == self.destination
            && port >= self.first_port
            && port <= self.last_port
            && (self.families == Families::Both as u8 || self.families == session.is_v6() as u8)
    }

    /// Is it the rule of this name, if it lies in its place?
    #[inline(always)]
    pub const fn is_named(&self, name: u32) -> bool {
        name != 0 && self.generation == name >> 8
    }
}

/// The policy in force, as one word: which it is, and where its rules begin in
/// the map. They end at the first that is of another policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InForce {
    /// Which; 0 for none.
    pub generation: u32,
    /// Index of its first rule.
    pub first: u32,
}

impl InForce {
    /// The word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        (self.generation as u64) << 32 | self.first as u64
    }

    /// What a word says.
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        InForce {
            generation: (word >> 32) as u32,
            first: word as u32,
        }
    }

    /// Where the rule of this name lies: it may be one of the policy before, if that
    /// was in force a moment ago.
    #[inline(always)]
    pub const fn place(self, name: u32) -> u32 {
        let first = if self.generation == name >> 8 {
            self.first
        } else {
            other_half(self.first)
        };
        first + (name & 0xff)
    }
}

/// Where the rules begin that are not in force.
#[inline(always)]
pub const fn other_half(first: u32) -> u32 {
    if first == 0 { MAX_RULES as u32 } else { 0 }
}

/// Names the rule of a policy that a session was opened by. Never 0, and of 24 bits
/// of the generation.
#[inline(always)]
pub const fn rule_name(generation: u32, index: u32) -> u32 {
    generation << 8 | index & 0xff
}
