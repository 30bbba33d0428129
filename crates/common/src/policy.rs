//! Policy: ordered rules that assign a chain to sessions. The first rule that matches a SYN
//! decides.

use crate::chain::Chain;
use crate::flow::{Addr, FlowKey};

/// Maximum number of rules.
pub const MAX_RULES: usize = 256;

/// Treatment of a session if a host of its chain is not known to be present.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Otherwise {
    /// The session is not opened.
    #[default]
    Refuse = 0,
    /// The session is opened without the chain.
    Direct = 1,
}

/// Address families that a rule applies to.
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
    /// Id of the cgroup whose programs, or those of the cgroups below it, open the sessions; 0 for any.
    pub group: u64,
    /// Depth of that cgroup below the root of the hierarchy.
    pub level: u32,
    /// User whose programs open the sessions; valid if `of_user` is not 0.
    pub user: u32,
    /// Source prefix, host bits zero.
    pub source: Addr,
    /// Mask of the source prefix.
    pub source_mask: Addr,
    /// Destination prefix, host bits zero.
    pub destination: Addr,
    /// Mask of the destination prefix.
    pub destination_mask: Addr,
    /// First destination port, host order.
    pub first_port: u16,
    /// Last destination port, host order.
    pub last_port: u16,
    /// A [`Families`].
    pub families: u8,
    /// An [`Otherwise`].
    pub otherwise: u8,
    /// A value of [`serves`].
    pub serves: u8,
    /// Not 0 if only the sessions of `user` match.
    pub of_user: u8,
    /// Generation of the policy that the rule belongs to.
    pub generation: u32,
    /// Hosts of the chain; none for sessions without a chain.
    pub chain: Chain,
}

/// Time at which the sessions of a rule get services. Values of [`PolicyRule::serves`].
pub mod serves {
    /// They get none.
    pub const NEVER: u8 = 0;
    /// Before their first byte. The rule has no chain.
    pub const FROM_FIRST_BYTE: u8 = 1;
    /// Once their chain is open: only user space looks at it.
    pub const ONCE_OPEN: u8 = 2;
    /// At once after the handshake: services of the packet plane, which need no handler. The rule has
    /// no chain.
    pub const UNHELD: u8 = 3;
}

impl PolicyRule {
    /// True if the rule is about the sessions of some programs of this host.
    #[inline(always)]
    pub const fn has_opener(&self) -> bool {
        self.of_user != 0 || self.group != 0
    }

    /// Returns true if the ends of a session that this end opens match the rule.
    #[inline(always)]
    pub fn matches(&self, session: &FlowKey) -> bool {
        let port = u16::from_be(session.remote_port);
        session.local.masked(&self.source_mask) == self.source
            && session.remote.masked(&self.destination_mask) == self.destination
            && port >= self.first_port
            && port <= self.last_port
            && (self.families == Families::Both as u8 || self.families == session.is_v6() as u8)
    }

    /// Returns true if this is the rule with this name, provided that it is in the rule's place.
    #[inline(always)]
    pub const fn is_named(&self, name: u32) -> bool {
        name != 0 && self.generation == generation_of(name)
    }
}

/// The policy in force, as one word: its generation, and the index of its first rule in the map.
/// The rules end at the first one of another policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InForce {
    /// Generation of the policy; 0 for none.
    pub generation: u32,
    /// Index of its first rule.
    pub first: u32,
}

impl InForce {
    /// Returns the word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        (self.generation as u64) << 32 | self.first as u64
    }

    /// Returns the policy of a word.
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        InForce {
            generation: (word >> 32) as u32,
            first: word as u32,
        }
    }

    /// Returns the index of the rule with this name. The rule may belong to the previous policy,
    /// which was in force a moment ago.
    #[inline(always)]
    pub const fn place(self, name: u32) -> u32 {
        let first = if self.generation == generation_of(name) {
            self.first
        } else {
            other_half(self.first)
        };
        first + (name & 0xff)
    }
}

/// Returns the index at which the rules begin that are not in force.
#[inline(always)]
pub const fn other_half(first: u32) -> u32 {
    if first == 0 { MAX_RULES as u32 } else { 0 }
}

/// Greatest generation of a policy: names of rules have 23 bits for it.
pub const MAX_GENERATION: u32 = 0x7f_ffff;

/// Bit of a name: sessions do not wait for their services.
const UNHELD: u32 = 1 << 31;

/// Returns the name of the rule that a session was opened by. It is never 0.
#[inline(always)]
pub const fn rule_name(generation: u32, index: u32) -> u32 {
    (generation & MAX_GENERATION) << 8 | index & 0xff
}

/// Returns the generation of the policy whose rule has this name.
#[inline(always)]
pub const fn generation_of(name: u32) -> u32 {
    name >> 8 & MAX_GENERATION
}

/// Returns the name that sessions of a rule or a run get if they do not wait for their services.
#[inline(always)]
pub const fn unheld(name: u32) -> u32 {
    name | UNHELD
}

/// True if sessions with the name of this rule or run are held until their services are in.
#[inline(always)]
pub const fn holds(name: u32) -> bool {
    name != 0 && name & UNHELD == 0
}

/// Greatest number of programs of a host that run with services at a time.
pub const MAX_RUNS: u32 = 1024;

/// Returns the name of a run with services, by its number below [`MAX_RUNS`]. A policy has such a
/// name only as its 8,388,604th.
#[inline(always)]
pub const fn run_name(run: u32) -> u32 {
    RUNS | (run % MAX_RUNS)
}

/// Returns the number of the run with this name, if it is the name of one.
#[inline(always)]
pub const fn run_of(name: u32) -> Option<u32> {
    if name & RUNS == RUNS {
        Some(name % MAX_RUNS)
    } else {
        None
    }
}

/// Names of runs begin so: four generations of policies.
const RUNS: u32 = (UNHELD - 1) / MAX_RUNS * MAX_RUNS;

/// A session that a run gives services, and that a rule or a chain gives others or hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contested {
    /// Number of the run.
    pub run: u32,
    /// Index of the rule in its policy, and the lowest bits of the policy's generation; `None` for a
    /// chain that another host has chosen.
    pub rule: Option<(u32, u32)>,
}

impl Contested {
    /// Greatest generation of a policy that the word has whole.
    pub const GENERATION: u32 = 0x1fff;

    /// Returns the word of an event: the names of the run, and of the rule or 0.
    #[inline(always)]
    pub const fn word(run: u32, rule: u32) -> u32 {
        let has_rule = (rule != 0) as u32;
        let generation = generation_of(rule) & Self::GENERATION;
        (run % MAX_RUNS) << 22 | generation << 9 | (rule & 0xff) << 1 | has_rule
    }

    /// Returns the meaning of a word.
    pub const fn of(word: u32) -> Self {
        let rule = (word >> 1 & 0xff, word >> 9 & Self::GENERATION);
        Contested {
            run: word >> 22,
            rule: if word & 1 != 0 { Some(rule) } else { None },
        }
    }
}
