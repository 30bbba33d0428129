//! Conversion of the policy into the data plane's form and back.

use std::net::{IpAddr, Ipv6Addr};

use dysco_api::ServiceSpec;
use dysco_common::chain::Chain;
use dysco_common::policy::{Families, Otherwise, PolicyRule, serves};
use dysco_common::{Addr, Element};

use super::{Elements, Known, Policy, Rule};
use crate::{PortRange, Prefix};

impl Policy {
    /// Returns the rules in the data plane's form, and for each of them the index of the rule
    /// that it is a part of. A rule about a user or a cgroup that this host does not have is left out.
    pub fn compile(&self, known: &mut Known) -> (Vec<PolicyRule>, Vec<usize>) {
        let mut compiled = (Vec::new(), Vec::new());
        for (index, rule) in self.rules.iter().enumerate() {
            let opener = rule.opener();
            for part in rule.compile() {
                if let Some(part) = opener.compile(part, known) {
                    compiled.0.push(part);
                    compiled.1.push(index);
                }
            }
        }
        compiled
    }

    /// Returns the policy that these rules represent, without names. Consecutive rules that
    /// differ only in their ports become one. Returns `None` if this version does not know the
    /// kind of an element, or a rule has services, a user or a cgroup, which only the file names.
    pub fn of_compiled(compiled: &[PolicyRule]) -> Option<Policy> {
        let mut rules: Vec<Rule> = Vec::new();
        for rule in compiled {
            let rule = Rule::of_compiled(rule)?;
            match rules.last_mut() {
                Some(before) if before.differs_in_ports(&rule) => before.ports.extend(rule.ports),
                _ => rules.push(rule),
            }
        }
        Some(Policy { rules })
    }
}

impl Rule {
    fn families(&self) -> Families {
        let prefixes = [self.source, self.destination].into_iter().flatten();
        let known = prefixes.map(|prefix| prefix.address);
        match known
            .chain(self.chain.hosts.iter().map(Element::host))
            .next()
        {
            Some(IpAddr::V4(_)) => Families::V4,
            Some(IpAddr::V6(_)) => Families::V6,
            None => Families::Both,
        }
    }

    /// Returns the rule without the programs that it is about, in the data plane's form.
    pub(super) fn compile(&self) -> Vec<PolicyRule> {
        let source = self.source.unwrap_or(Prefix::ALL).rule(0, 0);
        let destination = self.destination.unwrap_or(Prefix::ALL);
        let all = [PortRange::ALL];
        let ports = if self.ports.is_empty() {
            &all[..]
        } else {
            &self.ports
        };
        let each = ports.iter().map(|ports| {
            let destination = destination.rule(ports.first, ports.last);
            PolicyRule {
                source: source.prefix.masked(&source.mask),
                source_mask: source.mask,
                destination: destination.prefix.masked(&destination.mask),
                destination_mask: destination.mask,
                first_port: ports.first,
                last_port: ports.last,
                families: self.families() as u8,
                otherwise: self.otherwise as u8,
                // The length of the chain was checked before.
                chain: Chain::of(&self.chain.hosts).unwrap_or_default(),
                serves: self.serves(),
                ..PolicyRule::default()
            }
        });
        each.collect()
    }

    /// Returns the time at which the sessions of this rule get its services.
    fn serves(&self) -> u8 {
        let services = &self.chain.services;
        match (services.is_empty(), self.chain.hosts.is_empty()) {
            (true, _) => serves::NEVER,
            (false, false) => serves::ONCE_OPEN,
            (false, true) if services.iter().any(ServiceSpec::names_plane) => serves::UNHELD,
            (false, true) => serves::FROM_FIRST_BYTE,
        }
    }

    fn of_compiled(rule: &PolicyRule) -> Option<Rule> {
        if rule.serves != serves::NEVER || rule.has_opener() {
            return None;
        }
        let prefix = |address, mask| prefix(address, mask, rule.families == Families::V4 as u8);
        let ports = PortRange {
            first: rule.first_port,
            last: rule.last_port,
        };
        let elements = rule.chain.elements().iter();
        let read = Rule {
            name: None,
            user: None,
            cgroup: None,
            source: prefix(&rule.source, &rule.source_mask),
            destination: prefix(&rule.destination, &rule.destination_mask),
            ports: Some(ports)
                .filter(|p| *p != PortRange::ALL)
                .into_iter()
                .collect(),
            chain: Elements::of_hosts(elements.map(Element::of_wire).collect::<Option<_>>()?),
            otherwise: match rule.otherwise == Otherwise::Direct as u8 {
                true => Otherwise::Direct,
                false => Otherwise::Refuse,
            },
        };
        // Only an explicit prefix of all IPv6 addresses can have this meaning.
        let all_v6 = rule.families == Families::V6 as u8 && read.families() == Families::Both;
        Some(Rule {
            source: all_v6.then_some(Prefix::ALL).or(read.source),
            ..read
        })
    }

    fn differs_in_ports(&self, other: &Rule) -> bool {
        let mut alike = other.clone();
        alike.ports.clone_from(&self.ports);
        alike == *self && !self.ports.is_empty() && !other.ports.is_empty()
    }
}

/// Returns the prefix of an address and a mask, or `None` for all addresses of both families.
fn prefix(address: &Addr, mask: &Addr, v4: bool) -> Option<Prefix> {
    let bits: u32 = mask.octets().iter().map(|byte| byte.count_ones()).sum();
    let (address, len) = match v4 {
        true => (address.ip(), bits.checked_sub(96)?),
        false if bits == 0 => return None,
        false => (IpAddr::V6(Ipv6Addr::from(address.octets())), bits),
    };
    // The value is at most 128.
    let len = len as u8;
    Some(Prefix { address, len })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_the_data_plane_has_is_the_policy() {
        let text = r#"
            [[rule]]
            name = "web"
            source = "10.0.1.0/24"
            destination = "10.0.3.1"
            ports = [22, "8000-8100"]
            chain = ["10.0.2.1", "10.0.4.1"]
            otherwise = "direct"

            [[rule]]
            ports = [443]
            chain = ["fd00::1"]

            [[rule]]
            source = "::/0"
            chain = []

            [[rule]]
            source = "0.0.0.0/0"
            chain = []

            [[rule]]
            destination = "fd00::/16"
            chain = []

            [[rule]]
            chain = []
        "#;
        let written = Policy::parse(Path::new("policy.toml"), text).unwrap();
        let known = &mut Known::default();
        let (compiled, _) = written.compile(known);
        let read = Policy::of_compiled(&compiled).unwrap();
        assert_eq!(read.compile(known), written.compile(known));
        assert_eq!(read.acquaintances(), written.acquaintances());
        let unnamed = |rule: &Rule| Rule {
            name: None,
            ..rule.clone()
        };
        let unnamed: Vec<_> = written.rules.iter().map(unnamed).collect();
        assert_eq!(read.rules, unnamed);
    }
}
