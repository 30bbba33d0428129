//! Chains in the data plane: the policy, the neighbours that a chain's SYN may go to, and the
//! keys that may prove a SYN.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, Map, MapData};
use aya::{Ebpf, Pod};
use dysco_common::chain::{Chain, Given, Hop, Shared, Token};
use dysco_common::fresh::Clock;
use dysco_common::policy::{InForce, MAX_RULES, PolicyRule, other_half};
use dysco_common::siphash::Key;
use dysco_common::{Addr, Element, Session};

use crate::Agent;
use crate::agent::{lock, map_error, pod, take};
use crate::delta::DeclaredPod;
use crate::error::AgentError;

pod!(RulePod, PolicyRule);
pod!(AddrPod, Addr);
pod!(HopPod, Hop);
pod!(GivenPod, Given);
pod!(SharedPod, Shared);

/// Longest time for which a program examines a packet. Rules that were in force earlier than
/// this are no longer read.
const SETTLED: Duration = Duration::from_millis(10);

/// The maps of chains.
pub(crate) struct Chains {
    policy: Array<MapData, RulePod>,
    /// The content of `policy`.
    rules: Vec<PolicyRule>,
    in_force: Array<MapData, u64>,
    hops: HashMap<MapData, AddrPod, HopPod>,
    keys: HashMap<MapData, u64, SharedPod>,
    joins: HashMap<MapData, Token, u32>,
    of_slots: HashMap<MapData, u32, GivenPod>,
    pub(crate) deltas: HashMap<MapData, u32, DeclaredPod>,
    switched: Option<Instant>,
}

impl Chains {
    pub(crate) fn open(ebpf: &mut Ebpf) -> Result<Chains, AgentError> {
        let open = |name| map_error("open", name);
        let policy: Array<_, RulePod> =
            Array::try_from(take(ebpf, "POLICY")?).map_err(open("POLICY"))?;
        let all = 0..2 * MAX_RULES as u32;
        let rules = all.map(|at| policy.get(&at, 0).map(|rule| rule.0));
        Ok(Chains {
            rules: rules
                .collect::<Result<_, _>>()
                .map_err(map_error("read", "POLICY"))?,
            policy,
            in_force: Array::try_from(take(ebpf, "IN_FORCE")?).map_err(open("IN_FORCE"))?,
            hops: HashMap::try_from(take(ebpf, "HOPS")?).map_err(open("HOPS"))?,
            keys: HashMap::try_from(take(ebpf, "KEYS")?).map_err(open("KEYS"))?,
            joins: HashMap::try_from(take(ebpf, "JOINS")?).map_err(open("JOINS"))?,
            of_slots: HashMap::try_from(take(ebpf, "CHAINS")?).map_err(open("CHAINS"))?,
            deltas: HashMap::try_from(take(ebpf, "DELTAS")?).map_err(open("DELTAS"))?,
            switched: None,
        })
    }

    /// Writes the rules to the half that is not in force, and switches by one word. Records the
    /// chains that sessions have from the rules overwritten.
    fn apply(
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
        // Rule names have 24 bits for the generation.
        let generation = (before.generation & 0xff_ffff) % 0xff_ffff + 1;
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
    fn in_force(&self) -> Result<Option<Vec<PolicyRule>>, AgentError> {
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

    /// Records the chains of sessions whose rule is no longer in force. The chain of each
    /// session is thus known from its rule or from this record.
    fn note(&mut self, in_force: u32, sessions: Vec<(u32, Session)>) -> Result<(), AgentError> {
        for (slot, s) in sessions {
            if s.laid_by >> 8 == in_force || self.of_slots.get(&slot, 0).is_ok() {
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
    fn of_rule(&self, s: &Session) -> Option<Chain> {
        // On a host that the session passes, the word is the number of a path.
        let passes = s.joined != 0 && !s.view().is_relayed();
        if s.life.opened_here == 0 || passes {
            return None;
        }
        let name = s.laid_by;
        let mut all = [0, MAX_RULES].into_iter();
        let at = |first| self.rules.get(first + (name & 0xff) as usize);
        let rule = all.find_map(|first| at(first).filter(|rule| rule.is_named(name)));
        rule.filter(|rule| rule.serves == 0).map(|rule| rule.chain)
    }
}

/// Sets the addresses of this host, in place of those of an earlier run.
pub(crate) fn set_own(map: Map, addresses: &[IpAddr]) -> Result<(), AgentError> {
    let mut own: HashMap<MapData, AddrPod, u8> =
        HashMap::try_from(map).map_err(map_error("open", "OWN"))?;
    let now: Vec<Addr> = addresses.iter().map(|address| (*address).into()).collect();
    for address in &now {
        own.insert(AddrPod(*address), 1, 0)
            .map_err(map_error("write", "OWN"))?;
    }
    let before: Vec<AddrPod> = own.keys().filter_map(Result::ok).collect();
    for address in before.iter().filter(|address| !now.contains(&address.0)) {
        // The address was there a moment ago.
        let _ = own.remove(address);
    }
    Ok(())
}

impl Agent {
    /// Puts a policy in force. For each SYN either the earlier policy or this one holds, as a
    /// whole. Rules beyond the 256th are cut off. Sessions keep their chains, which
    /// [`Agent::chain_of`] returns.
    ///
    /// # Errors
    /// If a map cannot be read or written; the policy before stays in force.
    pub fn apply_policy(&self, rules: &[PolicyRule]) -> Result<(), AgentError> {
        lock(&self.chains).apply(rules, || self.sessions())
    }

    /// Returns the policy in force, which may be an earlier process's; `None` if there never was
    /// one.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn policy(&self) -> Result<Option<Vec<PolicyRule>>, AgentError> {
        lock(&self.chains).in_force()
    }

    /// Lets a chain's SYNs go to a host.
    pub fn set_hop(&self, host: IpAddr, hop: &Hop) -> Result<(), AgentError> {
        let mut chains = lock(&self.chains);
        let key = AddrPod(host.into());
        chains
            .hops
            .insert(key, HopPod(*hop), 0)
            .map_err(map_error("write", "HOPS"))
    }

    /// Lets no chain's SYNs go to the host any longer.
    pub fn remove_hop(&self, host: IpAddr) {
        // The hop may not be there.
        let _ = lock(&self.chains).hops.remove(&AddrPod(host.into()));
    }

    /// Returns the hop of a host that a chain's SYNs may go to.
    pub fn hop(&self, host: IpAddr) -> Option<Hop> {
        let key = AddrPod(host.into());
        lock(&self.chains).hops.get(&key, 0).ok().map(|hop| hop.0)
    }

    /// Hosts that a chain's SYNs may go to, each with its hop.
    pub fn hops(&self) -> Vec<(IpAddr, Hop)> {
        let chains = lock(&self.chains);
        let hops = chains.hops.iter().filter_map(Result::ok);
        hops.map(|(addr, hop)| (addr.0.ip(), hop.0)).collect()
    }

    /// Accepts SYNs whose proof was made with this key.
    pub fn add_key(&self, id: u64, key: Key) -> Result<(), AgentError> {
        let clock = Clock::default();
        let shared = Shared { key, clock };
        lock(&self.chains)
            .keys
            .insert(id, SharedPod(shared), 0)
            .map_err(map_error("write", "KEYS"))
    }

    /// No longer accepts SYNs whose proof was made with this key.
    pub fn remove_key(&self, id: u64) {
        // The key may not be there.
        let _ = lock(&self.chains).keys.remove(&id);
    }

    /// Awaits a SYN with this secret. The SYN gives the slot's entry its path.
    pub fn await_join(&self, token: Token, slot: u32) -> Result<(), AgentError> {
        lock(&self.chains)
            .joins
            .insert(token, slot, 0)
            .map_err(map_error("write", "JOINS"))
    }

    /// No longer awaits a SYN with this secret.
    pub fn forget_join(&self, token: Token) {
        // The secret may not be there.
        let _ = lock(&self.chains).joins.remove(&token);
    }

    /// Forgets all awaited SYNs.
    pub fn forget_joins(&self) {
        let mut chains = lock(&self.chains);
        let all: Vec<Token> = chains.joins.keys().filter_map(Result::ok).collect();
        for token in all {
            // The secret was there a moment ago.
            let _ = chains.joins.remove(&token);
        }
    }

    /// Records the chain that a session was given while it lived.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn set_given(&self, slot: u32, given: &Given) -> Result<(), AgentError> {
        lock(&self.chains)
            .of_slots
            .insert(slot, GivenPod(*given), 0)
            .map_err(map_error("write", "CHAINS"))
    }

    /// Returns the chain and the rest that the session of a slot was given here, by a rule when
    /// it was opened or since. Both come from maps, which outlive the process.
    pub fn given(&self, slot: u32) -> Option<Given> {
        let chains = lock(&self.chains);
        if let Ok(given) = chains.of_slots.get(&slot, 0) {
            return Some(given.0);
        }
        let chain = chains.of_rule(&self.session(slot))?;
        Some(Given {
            chain,
            ..Given::default()
        })
    }

    /// Returns the elements of the chain that the session of a slot was given, if this version
    /// knows their kinds.
    pub fn chain_of(&self, slot: u32) -> Option<Vec<Element>> {
        let chain = self.given(slot)?.chain;
        chain.elements().iter().map(Element::of_wire).collect()
    }

    pub(crate) fn forget_chain(&self, slot: u32) {
        // Most sessions have none.
        let _ = lock(&self.chains).of_slots.remove(&slot);
    }

    /// Returns the names of the accepted keys.
    pub fn key_ids(&self) -> Vec<u64> {
        lock(&self.chains)
            .keys
            .keys()
            .filter_map(Result::ok)
            .collect()
    }
}
