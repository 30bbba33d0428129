//! Matching of the policy's rules against a SYN.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{
    bpf_get_socket_cookie, bpf_get_socket_uid, bpf_skb_ancestor_cgroup_id,
};
use dysco_common::Counter;
use dysco_common::chain::{MAX_CHAIN, WireElement};
use dysco_common::policy::{InForce, MAX_RULES, Otherwise, PolicyRule, rule_name, serves, unheld};

use crate::hold;
use crate::maps::{self, HOPS, IN_FORCE, POLICY, Scratch, count};
use crate::packet::HEADERLESS;

/// Result: no rule matches the session, or the session is to go direct.
pub(super) const NO_RULE: u32 = 0;
/// Result: a host of the chain is not reachable, and the rule refuses the session then. Or the session
/// belongs to a run, whose services it would miss.
pub(super) const REFUSED: u32 = u32::MAX;

/// Finds the rule for the SYN in the scratch memory. Returns its name or [`NO_RULE`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_rule(skb: *mut __sk_buff, run: u32) -> u32 {
    let Some(word) = IN_FORCE.get(0) else {
        return NO_RULE;
    };
    let in_force = InForce::of(*word);
    if in_force.generation == 0 {
        return NO_RULE;
    }
    let mut index = 0;
    while index < MAX_RULES as u32 {
        let at = in_force.first + index;
        // SAFETY: the program's own context.
        match unsafe { dysco_chain_matches(skb, run, at, in_force.generation) } {
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
unsafe extern "C" fn dysco_chain_matches(
    skb: *mut __sk_buff,
    run: u32,
    at: u32,
    generation: u32,
) -> u32 {
    let (Some(rule), Some(Scratch { packet: p, .. })) = (POLICY.get(at), maps::scratch(run)) else {
        return END;
    };
    if rule.generation != generation {
        return END;
    }
    if rule.matches(&p.key.whole) && opener_matches(skb, rule) {
        MATCH
    } else {
        NO_MATCH
    }
}

/// Returns true if the socket that sends the packet belongs to the programs that the rule is about.
#[inline(always)]
fn opener_matches(skb: *mut __sk_buff, rule: &PolicyRule) -> bool {
    // A packet without a socket, as of a session of a container that this host forwards, has the user
    // 65534 for the kernel.
    // SAFETY: the program's own context.
    let has_socket = || unsafe { bpf_get_socket_cookie(skb.cast()) } != 0;
    // SAFETY: the same.
    let is_user = || unsafe { bpf_get_socket_uid(skb) } == rule.user;
    let of_user = || rule.of_user == 0 || has_socket() && is_user();
    let of_group = || {
        let level = rule.level as i32;
        // SAFETY: the same.
        rule.group == 0 || unsafe { bpf_skb_ancestor_cgroup_id(skb, level) } == rule.group
    };
    of_user() && of_group()
}

/// Copies the chain of a rule that has matched, if its hosts are known. Counts a SYN that the rule
/// refuses.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_chain_choose(run: u32, name: u32) -> u32 {
    let Some(word) = IN_FORCE.get(0) else {
        return NO_RULE;
    };
    let at = InForce::of(*word).place(name);
    let (Some(rule), Some(scratch)) = (POLICY.get(at), maps::scratch(run)) else {
        return NO_RULE;
    };
    // What the rule demands must not be missed either.
    if scratch.run != 0 && (rule.serves != serves::NEVER || rule.chain.len != 0) {
        hold::contested(scratch.run, name);
        return REFUSED;
    }
    scratch.pending.session = scratch.packet.key.whole;
    scratch.pending.origin = scratch.packet.key.whole;
    scratch.pending.left = 0;
    scratch.pending.chain = rule.chain;
    scratch.pending.last = WireElement::default();
    let otherwise = rule.otherwise;
    scratch.optional = (otherwise == Otherwise::Direct as u8) as u32;
    if rule.serves == serves::FROM_FIRST_BYTE {
        // An interface without an Ethernet header leads to no handler.
        if !HEADERLESS || otherwise != Otherwise::Direct as u8 {
            scratch.held = name;
        }
        return NO_RULE;
    }
    if rule.serves == serves::UNHELD {
        scratch.held = unheld(name);
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
            count(Counter::ChainRefused);
            return REFUSED;
        }
        i += 1;
    }
    name
}
