//! Rules about the programs of a user or of a cgroup. The data plane knows both by number, and both come
//! and go.

use std::path::Path;

use dysco_api::{Failure, FailureCode};
use dysco_common::Session;
use dysco_common::policy::PolicyRule;
use dysco_config::policy::{Opener, Policy};
use dysco_explain::Cause;

use crate::engine::{Chains, Plane};
use crate::groups;

/// Usual root of the hierarchy of cgroups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns a policy as the data plane has it, and for each part the index of its rule.
pub(super) fn compiled(policy: &Policy, plane: &Plane) -> (Vec<PolicyRule>, Vec<usize>) {
    if !policy.has_openers() {
        return policy.compile(Path::new(GROUPS));
    }
    match groups::root(&plane.config.removal.state_dir) {
        Ok(root) => policy.compile(&root),
        Err(error) => {
            tracing::error!(%error, "rules about cgroups are not in force: there is no hierarchy");
            policy.compile(Path::new(GROUPS))
        }
    }
}

/// Returns the program that a request describes.
///
/// # Errors
/// The failure of the request, if there is no such user or cgroup.
pub(in crate::engine) fn opener(
    user: Option<&str>,
    cgroup: Option<&str>,
) -> Result<Opener, Failure> {
    let refused = |cause: Cause| {
        let explained = cause.of("explain what would become of the session");
        Failure::new(FailureCode::BadRequest, explained)
    };
    Ok(Opener {
        user: user.map(str::parse).transpose().map_err(refused)?,
        cgroup: cgroup.map(str::parse).transpose().map_err(refused)?,
    })
}

impl Chains {
    /// Puts the policy in force again if it is about users or cgroups that have come or gone.
    pub(super) fn follow_openers(&mut self, plane: &Plane) {
        if !self.applied || !self.policy.has_openers() {
            return;
        }
        let compiled = compiled(&self.policy, plane);
        if compiled == self.compiled {
            return;
        }
        match plane.agent.apply_policy(&compiled.0) {
            Ok(()) => self.compiled = compiled,
            Err(error) => {
                tracing::error!(%error, "the policy does not follow the users and cgroups");
            }
        }
    }

    /// Returns the index of the rule that has opened a session. If another policy is in force
    /// meanwhile, that one decides.
    pub(super) fn rule_of(&self, plane: &Plane, s: &Session) -> Option<usize> {
        if let Some(part) = plane.agent.rule_index(s.laid_by) {
            return self.compiled.1.get(part).copied();
        }
        let (local, remote) = (s.key.local(), s.key.remote());
        self.policy.find(local, remote, &Opener::default())
    }
}
