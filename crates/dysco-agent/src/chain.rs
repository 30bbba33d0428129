//! Chains in the data plane: the policy, the neighbours that a chain's SYN may go to, and the
//! keys that may prove a SYN.

pub(crate) mod maps;

use std::net::IpAddr;

use aya::maps::{HashMap, Map, MapData};
use dysco_common::chain::{Given, Hop, Shared, Token};
use dysco_common::fresh::Clock;
use dysco_common::policy::{Contested, PolicyRule};
use dysco_common::siphash::Key;
use dysco_common::{Addr, Element};

use crate::Agent;
use crate::error::AgentError;
use crate::maps::{lock, map_error};
use maps::{AddrPod, GivenPod, HopPod, SharedPod};

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

    /// Returns the rule that opened a session (`Session::laid_by`), if it is in force or was until the
    /// last change of the policy.
    pub fn rule_named(&self, name: u32) -> Option<PolicyRule> {
        lock(&self.chains).named(name).copied()
    }

    /// Returns the rule that a session of a run contends with, if it is in force or was until the last
    /// change of the policy.
    pub fn contested_rule(&self, contested: Contested) -> Option<PolicyRule> {
        lock(&self.chains).contested(contested).copied()
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
