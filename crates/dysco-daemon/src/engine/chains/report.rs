//! Reports about the policy: its rules, and what they decide of a session.

use std::collections::HashSet;
use std::net::IpAddr;

use dysco_api::{Explained, Failure, FailureCode, PolicyReport, Reply, RuleReport};
use dysco_common::Element;
use dysco_config::policy::Opener;

use crate::engine::{Chains, Plane, services};

impl Chains {
    /// Answers `policy list`.
    pub(in crate::engine) fn policy_report(&self, plane: &Plane) -> Reply {
        let there: HashSet<IpAddr> = plane
            .agent
            .hops()
            .into_iter()
            .map(|(host, _)| host)
            .collect();
        let rules = 0..self.policy.rules.len();
        Reply::Policy(PolicyReport {
            file: self.place(plane),
            of_fleet: self.follows_store(),
            error: self.error.clone(),
            rules: rules.map(|at| self.rule_report(at, &there)).collect(),
        })
    }

    fn rule_report(&self, at: usize, there: &HashSet<IpAddr>) -> RuleReport {
        let rule = &self.policy.rules[at];
        let any = |word: Option<String>| word.unwrap_or_else(|| "any".into());
        let ports: Vec<_> = rule.ports.iter().map(ToString::to_string).collect();
        let missing = rule
            .chain
            .hosts
            .iter()
            .filter(|e| !there.contains(&e.host()));
        RuleReport {
            name: self.policy.names().nth(at).unwrap_or_default(),
            source: any(rule.source.map(|p| p.to_string())),
            user: rule.user.as_ref().map(ToString::to_string),
            cgroup: rule.cgroup.as_ref().map(ToString::to_string),
            absent: !self.compiled.has(at) && !rule.opener().is_any(),
            destination: any(rule.destination.map(|p| p.to_string())),
            ports: any((!ports.is_empty()).then(|| ports.join(", "))),
            chain: rule.chain.hosts.clone(),
            services: rule.chain.services.clone(),
            missing: missing.copied().collect(),
            otherwise: rule.otherwise,
        }
    }

    /// Answers `policy explain`.
    pub(in crate::engine) fn policy_explain(
        &self,
        plane: &Plane,
        source: std::net::SocketAddr,
        destination: std::net::SocketAddr,
        opener: Result<Opener, Failure>,
    ) -> Reply {
        let opener = match opener {
            Ok(opener) => opener,
            Err(failure) => return Reply::Error(failure),
        };
        if source.is_ipv4() != destination.is_ipv4() {
            return Reply::Error(of_two_families(source.ip(), destination.ip()));
        }
        let there: HashSet<IpAddr> = plane
            .agent
            .hops()
            .into_iter()
            .map(|(host, _)| host)
            .collect();
        let found = self.policy.find(source, destination, &opener);
        let rule = found.map(|at| self.rule_report(at, &there));
        let (verdict, text) = match &rule {
            None => ("direct", "no rule matches: it goes direct".to_owned()),
            Some(rule) if !rule.services.is_empty() => {
                let services = services::words::of(&rule.services);
                let text = format!("rule {}: it gets {services}", rule.name);
                ("services", text)
            }
            Some(rule) if rule.chain.is_empty() => {
                let text = format!("rule {} has an empty chain: it goes direct", rule.name);
                ("direct", text)
            }
            Some(rule) if rule.missing.is_empty() => {
                let text = format!("rule {}: it passes {}", rule.name, words(&rule.chain));
                ("chain", text)
            }
            Some(rule) => {
                let (verdict, what) = match rule.otherwise {
                    dysco_common::policy::Otherwise::Direct => ("direct", "it goes direct"),
                    dysco_common::policy::Otherwise::Refuse => ("refused", "it is refused"),
                };
                let missing = words(&rule.missing);
                let text = format!(
                    "rule {}: {what}, since no agent with a key is connected at {missing}; start dyscod there, or see its log",
                    rule.name
                );
                (verdict, text)
            }
        };
        Reply::Explained(Explained {
            rule,
            verdict: verdict.into(),
            text,
        })
    }
}

/// Returns the failure for two ends of different families, which no session has.
fn of_two_families(source: IpAddr, destination: IpAddr) -> Failure {
    Failure {
        code: FailureCode::BadRequest,
        what: "explain what would become of the session".into(),
        why: format!("{source} and {destination} are of two address families"),
        hint: "name two ends by addresses of one family".into(),
    }
}

fn words(chain: &[Element]) -> String {
    let words: Vec<_> = chain.iter().map(ToString::to_string).collect();
    words.join(", ")
}
