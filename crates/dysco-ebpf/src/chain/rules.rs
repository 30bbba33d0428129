//! Matching of the policy's rules against a SYN.

use dysco_common::Counter;
use dysco_common::chain::{MAX_CHAIN, WireElement};
use dysco_common::policy::{InForce, MAX_RULES, Otherwise, rule_name};

use crate::maps::{self, HOPS, IN_FORCE, POLICY, Scratch, count};
use crate::packet::HEADERLESS;

/// Result: no rule matches the session, or the session is to go direct.
pub const NO_RULE: u32 = 0;
/// Result: a host of the chain is not reachable, and the rule refuses the session then.
pub const REFUSED: u32 = u32::MAX;

/// Finds the rule for the SYN in the scratch memory. Returns its name or [`NO_RULE`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn dysco_chain_rule(run: u32) -> u32 {
    let Some(word) = IN_FORCE.get(0) else {
        return NO_RULE;
    };
    let in_force = InForce::of(*word);
    if in_force.generation == 0 {
        return NO_RULE;
    }
    let mut index = 0;
    while index < MAX_RULES as u32 {
        match dysco_chain_matches(run, in_force.first + index, in_force.generation) {
            NO_MATCH => index += 1,
            MATCH => return rule_name(in_force.generation, index),
            _ => return NO_RULE,
        }
    }
    NO_RULE
}

const NO_MATCH: u32 = 0;
const MATCH: u32 = 1;
const END: u32 = 2;

/// Matches one rule against the SYN.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_matches(run: u32, at: u32, generation: u32) -> u32 {
    let (Some(rule), Some(Scratch { packet: p, .. })) = (POLICY.get(at), maps::scratch(run)) else {
        return END;
    };
    if rule.generation != generation {
        return END;
    }
    if rule.matches(&p.key.whole) {
        MATCH
    } else {
        NO_MATCH
    }
}

/// Copies the chain of a rule that has matched, if its hosts are known.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn dysco_chain_choose(run: u32, name: u32) -> u32 {
    let Some(word) = IN_FORCE.get(0) else {
        return NO_RULE;
    };
    let at = InForce::of(*word).place(name);
    let (Some(rule), Some(scratch)) = (POLICY.get(at), maps::scratch(run)) else {
        return NO_RULE;
    };
    scratch.pending.session = scratch.packet.key.whole;
    scratch.pending.origin = scratch.packet.key.whole;
    scratch.pending.left = 0;
    scratch.pending.chain = rule.chain;
    scratch.pending.last = WireElement::default();
    let otherwise = rule.otherwise;
    if rule.serves != 0 {
        // An interface without an Ethernet header leads to no handler.
        if !HEADERLESS || otherwise != Otherwise::Direct as u8 {
            scratch.held = name;
        }
        return NO_RULE;
    }
    let chain = &scratch.pending.chain;
    if chain.len == 0 {
        return NO_RULE;
    }
    let mut i = 0;
    while i < MAX_CHAIN {
        if i as u32 >= chain.len {
            break;
        }
        if HOPS.get_ptr(&chain.elements[i].host).is_none() {
            if otherwise == Otherwise::Direct as u8 {
                count(Counter::ChainDirect);
                return NO_RULE;
            }
            return REFUSED;
        }
        i += 1;
    }
    name
}
