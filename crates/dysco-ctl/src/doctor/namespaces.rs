//! Checks of the network namespaces that the running `dyscod` serves.

use dysco_api::{NamespaceReport, NamespaceState};
use dysco_explain::Cause;

use super::Finding;

/// Returns findings about the other network namespaces that the daemon serves.
pub(super) fn of_namespaces(all: &[NamespaceReport]) -> Vec<Finding> {
    let is = |states: &[NamespaceState]| {
        let states = states.to_vec();
        all.iter().filter(move |one| states.contains(&one.state))
    };
    let unserved = is(&[NamespaceState::Failed, NamespaceState::OtherDyscod]);
    let mut findings: Vec<Finding> = unserved
        .map(|one| {
            let cause = one.why.clone();
            let Cause { why, hint } = cause.unwrap_or_else(|| Cause::new(one.state.words()));
            let found = format!("{} is not served: {why}", one.name);
            Finding::doubtful("namespaces", found, hint.unwrap_or_default())
        })
        .collect();
    let running = is(&[NamespaceState::Running]).count();
    if running > 0 {
        findings.push(Finding::well("namespaces", format!("served: {running}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_namespace_that_is_not_served_is_reported_with_the_reason() {
        let of = |state, why: Option<Cause>| NamespaceReport {
            name: "web".into(),
            inode: 7,
            bound: None,
            pod: None,
            container: None,
            state,
            pid: None,
            socket: "/run/s".into(),
            why,
        };
        let ended = Cause::new("its dyscod has ended").hint("see the log");
        let other = of(NamespaceState::OtherDyscod, None);
        let found = of_namespaces(&[
            of(NamespaceState::Failed, Some(ended)),
            other,
            of(NamespaceState::NoAddress, None),
            of(NamespaceState::Running, None),
        ]);
        let told: Vec<_> = found
            .iter()
            .map(|f| (f.verdict, &*f.found, &*f.hint))
            .collect();
        assert_eq!(
            told,
            [
                (
                    Verdict::Doubtful,
                    "web is not served: its dyscod has ended",
                    "see the log"
                ),
                (Verdict::Doubtful, "web is not served: other dyscod", ""),
                (Verdict::Well, "served: 1", ""),
            ]
        );
    }
}
