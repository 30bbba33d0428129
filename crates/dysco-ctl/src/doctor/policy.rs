//! Checks of etcd, and of the policy in force.

use std::collections::HashSet;

use dysco_api::{FleetReport, PolicyReport};
use dysco_explain::Cause;

use super::Finding;
use crate::output::seconds;

/// Returns findings about etcd, and about the policy that it has.
pub(super) fn of_fleet(fleet: &FleetReport) -> Vec<Finding> {
    let link = match (&fleet.error, fleet.connected) {
        (_, true) => Finding::well("etcd", "it answers"),
        (None, false) => Finding::doubtful("etcd", "it has not answered yet", "ask again"),
        (Some(Cause { why, hint }), false) => Finding::doubtful(
            "etcd",
            format!("lost for {}: {why}", seconds(fleet.for_s as f64)),
            format!(
                "{}; the policy and the hosts of before stay in force",
                hint.as_deref().unwrap_or("see the log of dyscod")
            ),
        ),
    };
    let refused = fleet.refused.iter().map(|cause| {
        let hint = cause.hint.as_deref().unwrap_or("correct it");
        Finding::ill(
            "policy",
            format!("{} is not in force: {}", fleet.key, cause.why),
            format!("{hint}; then 'dyscoctl policy publish FILE'"),
        )
    });
    [link].into_iter().chain(refused).collect()
}

/// Returns findings about the rules in force. The status has those about the policy of etcd.
pub(super) fn of_policy(policy: &PolicyReport) -> Vec<Finding> {
    let error = policy.error.iter().filter(|_| !policy.of_fleet);
    let unused = error.map(|error| {
        let file = policy.file.display();
        let hint = error.hint.as_deref().unwrap_or("correct it");
        Finding::ill(
            "policy",
            format!("{file} is not in force: {}", error.why),
            format!("{hint}; see 'dyscoctl policy check {file}'"),
        )
    });
    let missing: HashSet<_> = policy.rules.iter().flat_map(|rule| &rule.missing).collect();
    let mut missing: Vec<_> = missing.into_iter().collect();
    missing.sort_unstable();
    let missing = missing.into_iter().map(|element| {
        let host = element.host();
        Finding::doubtful(
            "policy",
            format!("{element} of a chain is not there: its rules do what they say of that"),
            format!("start dyscod at {host}; see 'dyscoctl policy list'"),
        )
    });
    unused.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use dysco_api::{Element, RuleReport};

    use super::*;
    use crate::doctor::Verdict;

    fn worst(policy: &PolicyReport) -> (Verdict, String) {
        let all = of_policy(policy).into_iter();
        let worst = all.max_by_key(|finding| finding.verdict).unwrap();
        (worst.verdict, worst.found)
    }

    #[test]
    fn a_rule_that_cannot_be_followed_is_reported() {
        let mut policy = PolicyReport {
            file: "/p.toml".into(),
            of_fleet: false,
            error: None,
            rules: vec![RuleReport {
                services: Vec::new(),
                name: "r".into(),
                source: "any".into(),
                destination: "any".into(),
                user: None,
                cgroup: None,
                absent: false,
                ports: "any".into(),
                chain: vec![Element::Host([10, 0, 0, 2].into())],
                missing: Vec::new(),
                otherwise: Default::default(),
            }],
        };
        assert!(of_policy(&policy).is_empty());
        policy.rules[0].missing = policy.rules[0].chain.clone();
        let (verdict, found) = worst(&policy);
        assert_eq!(verdict, Verdict::Doubtful);
        assert!(found.contains("10.0.0.2"), "{found}");
        policy.error = Some("line 1: no".into());
        let (verdict, found) = worst(&policy);
        assert_eq!(verdict, Verdict::Ill);
        assert!(
            found.contains("/p.toml is not in force: line 1: no"),
            "{found}"
        );
    }
}
