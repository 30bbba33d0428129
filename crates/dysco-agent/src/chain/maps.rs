//! The maps of chains, and the switch from one policy to the next.

use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, MapData};
use aya::{Ebpf, Pod};
use dysco_common::chain::{Chain, Given, Hop, Shared, Token};
use dysco_common::delta::DeclaredDelta;
use dysco_common::policy::{
    Contested, InForce, MAX_GENERATION, MAX_RULES, PolicyRule, generation_of, other_half, serves,
};
use dysco_common::{Addr, Session};

use crate::error::AgentError;
use crate::maps::{map_error, open, pod};

pod!(RulePod, PolicyRule);
pod!(AddrPod, Addr);
pod!(HopPod, Hop);
pod!(GivenPod, Given);
pod!(SharedPod, Shared);
pod!(DeclaredPod, DeclaredDelta);

/// Longest time for which a program examines a packet. Rules that were in force earlier than
/// this are no longer read.
const SETTLED: Duration = Duration::from_millis(10);

/// The maps of chains.
pub(crate) struct Chains {
    policy: Array<MapData, RulePod>,
    /// The content of `policy`.
    rules: Vec<PolicyRule>,
    in_force: Array<MapData, u64>,
    pub(super) hops: HashMap<MapData, AddrPod, HopPod>,
    pub(super) keys: HashMap<MapData, u64, SharedPod>,
    pub(super) joins: HashMap<MapData, Token, u32>,
    pub(super) of_slots: HashMap<MapData, u32, GivenPod>,
    pub(crate) deltas: HashMap<MapData, u32, DeclaredPod>,
    switched: Option<Instant>,
}

impl Chains {
    pub(crate) fn open(ebpf: &mut Ebpf) -> Result<Chains, AgentError> {
        let policy: Array<_, RulePod> = open(ebpf, "POLICY")?;
        let all = 0..2 * MAX_RULES as u32;
        let rules = all.map(|at| policy.get(&at, 0).map(|rule| rule.0));
        Ok(Chains {
            rules: rules
                .collect::<Result<_, _>>()
                .map_err(map_error("read", "POLICY"))?,
            policy,
            in_force: open(ebpf, "IN_FORCE")?,
            hops: open(ebpf, "HOPS")?,
            keys: open(ebpf, "KEYS")?,
            joins: open(ebpf, "JOINS")?,
            of_slots: open(ebpf, "CHAINS")?,
            deltas: open(ebpf, "DELTAS")?,
            switched: None,
        })
    }

    /// Writes the rules to the half that is not in force, and switches by one word. Records the
    /// chains that sessions have from the rules overwritten.
    pub(super) fn apply(
        &mut self,
        rules: &[PolicyRule],
        sessions: impl FnOnce() -> Vec<(u32, Session)>,
    ) -> Result<(), AgentError> {
        let before = self
            .in_force
            .get(&0, 0)
            .map(InForce::of)
            .unwrap_or_default();
        if let Some(at) = self.switched {
            std::thread::sleep(SETTLED.saturating_sub(at.elapsed()));
        }
        self.note(before.generation, sessions())?;
        let generation = (before.generation & MAX_GENERATION) % MAX_GENERATION + 1;
        let first = other_half(before.first);
        let all = rules.iter().take(MAX_RULES);
        let end = (all.len() < MAX_RULES).then(PolicyRule::default);
        let rules = all.map(|rule| PolicyRule {
            generation,
            ..*rule
        });
        for (index, rule) in (first..).zip(rules.chain(end)) {
            self.policy
                .set(index, RulePod(rule), 0)
                .map_err(map_error("write", "POLICY"))?;
            self.rules[index as usize] = rule;
        }
        let now = InForce { generation, first };
        self.in_force
            .set(0, now.word(), 0)
            .map_err(map_error("write", "IN_FORCE"))?;
        self.switched = Some(Instant::now());
        Ok(())
    }

    /// Returns the rules in force; `None` if there never were any.
    pub(super) fn in_force(&self) -> Result<Option<Vec<PolicyRule>>, AgentError> {
        let word = self.in_force.get(&0, 0);
        let now = word
            .map(InForce::of)
            .map_err(map_error("read", "IN_FORCE"))?;
        if now.generation == 0 {
            return Ok(None);
        }
        let half = self.rules.iter().skip(now.first as usize).take(MAX_RULES);
        let its = half.take_while(|rule| rule.generation == now.generation);
        Ok(Some(its.copied().collect()))
    }

    /// Returns the rule with this name, if it is in force or was until the last change.
    pub(super) fn named(&self, name: u32) -> Option<&PolicyRule> {
        let mut all = [0, MAX_RULES].into_iter();
        let at = |first| self.rules.get(first + (name & 0xff) as usize);
        all.find_map(|first| at(first).filter(|rule| rule.is_named(name)))
    }

    /// Returns the rule that a session of a run contends with, under the same condition.
    pub(super) fn contested(&self, contested: Contested) -> Option<&PolicyRule> {
        let (index, generation) = contested.rule?;
        let its = |rule: &&PolicyRule| {
            rule.generation != 0 && rule.generation & Contested::GENERATION == generation
        };
        let mut all = [0, MAX_RULES].into_iter();
        all.find_map(|first| self.rules.get(first + index as usize).filter(its))
    }

    /// Records the chains of sessions whose rule is no longer in force. The chain of each
    /// session is thus known from its rule or from this record.
    fn note(&mut self, in_force: u32, sessions: Vec<(u32, Session)>) -> Result<(), AgentError> {
        for (slot, s) in sessions {
            if generation_of(s.laid_by) == in_force || self.of_slots.get(&slot, 0).is_ok() {
                continue;
            }
            if let Some(chain) = self.of_rule(&s) {
                let given = Given {
                    chain,
                    ..Given::default()
                };
                self.of_slots
                    .insert(slot, GivenPod(given), 0)
                    .map_err(map_error("write", "CHAINS"))?;
            }
        }
        Ok(())
    }

    /// Returns the chain of the rule that the session was opened by on this host: of the rules
    /// in force, or of those before.
    pub(super) fn of_rule(&self, s: &Session) -> Option<Chain> {
        // On a host that the session passes, the word is the number of a path.
        let passes = s.joined != 0 && !s.view().is_relayed();
        if s.life.opened_here == 0 || passes {
            return None;
        }
        let rule = self.named(s.laid_by);
        let led =
            rule.filter(|rule| !matches!(rule.serves, serves::FROM_FIRST_BYTE | serves::UNHELD));
        led.map(|rule| rule.chain)
    }
}
