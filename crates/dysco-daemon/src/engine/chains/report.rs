//! Reports about the policy: its rules, and what they decide of a session.

use std::collections::HashSet;
use std::net::IpAddr;

use dysco_api::{Explained, Failure, FailureCode, PolicyReport, Reply, RuleReport};
use dysco_common::Element;
use dysco_common::policy::Otherwise;
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
        let (verdict, text) = decided(rule.as_ref());
        Reply::Explained(Explained {
            rule,
            verdict: verdict.into(),
            text,
        })
    }
}

/// Returns the decision about a session that matches this rule, and the words for it.
fn decided(rule: Option<&RuleReport>) -> (&'static str, String) {
    let Some(rule) = rule else {
        return ("direct", "no rule matches: it goes direct".to_owned());
    };
    let name = &rule.name;
    let gets = services::words::of(&rule.services);
    // A session that does not pass the hosts does not get the services either.
    if !rule.missing.is_empty() {
        let (verdict, what) = match rule.otherwise {
            Otherwise::Refuse => ("refused", "it is refused"),
            Otherwise::Direct if gets.is_empty() => ("direct", "it goes direct"),
            Otherwise::Direct => ("direct", "it goes direct without services"),
        };
        let missing = words(&rule.missing);
        let text = format!(
            "rule {name}: {what}, since no agent with a key is connected at {missing}; start dyscod there, or see its log"
        );
        return (verdict, text);
    }
    let passes = words(&rule.chain);
    match (rule.chain.is_empty(), rule.services.is_empty()) {
        (true, true) => (
            "direct",
            format!("rule {name} has an empty chain: it goes direct"),
        ),
        (true, false) => ("services", format!("rule {name}: it gets {gets}")),
        (false, true) => ("chain", format!("rule {name}: it passes {passes}")),
        (false, false) => (
            "chain",
            format!("rule {name}: it gets {gets}, and passes {passes}"),
        ),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(chain: &[&str], services: &[&str], otherwise: Otherwise) -> RuleReport {
        RuleReport {
            name: "svc".into(),
            source: "any".into(),
            destination: "any".into(),
            ports: "any".into(),
            user: None,
            cgroup: None,
            absent: false,
            chain: chain.iter().map(|host| host.parse().unwrap()).collect(),
            services: services.iter().map(|name| name.parse().unwrap()).collect(),
            missing: Vec::new(),
            otherwise,
        }
    }

    #[test]
    fn a_rule_has_its_hosts_and_its_services() {
        let decided = |chain: &[&str], services: &[&str]| {
            decided(Some(&rule(chain, services, Otherwise::Refuse)))
        };
        let (verdict, text) = decided(&["10.3.0.1"], &["count"]);
        assert_eq!(verdict, "chain");
        assert_eq!(text, "rule svc: it gets +count, and passes 10.3.0.1");
        let (verdict, text) = decided(&["10.3.0.1"], &[]);
        assert_eq!((verdict, &*text), ("chain", "rule svc: it passes 10.3.0.1"));
        let (verdict, text) = decided(&[], &["count"]);
        assert_eq!((verdict, &*text), ("services", "rule svc: it gets +count"));
        assert_eq!(decided(&[], &[]).0, "direct");
        assert_eq!(super::decided(None).0, "direct");
    }

    #[test]
    fn no_services_come_in_while_a_host_is_missing() {
        for (otherwise, verdict, what) in [
            (Otherwise::Refuse, "refused", "it is refused, since"),
            (
                Otherwise::Direct,
                "direct",
                "it goes direct without services, since",
            ),
        ] {
            let mut rule = rule(&["10.9.9.9"], &["count"], otherwise);
            rule.missing = rule.chain.clone();
            let (said, text) = decided(Some(&rule));
            assert_eq!(said, verdict);
            assert!(text.contains(what) && text.contains("10.9.9.9"), "{text}");
            assert!(!text.contains("+count"), "{text}");
            rule.services.clear();
            let (said, text) = decided(Some(&rule));
            assert!(said == verdict && !text.contains("services"), "{text}");
        }
    }
}
