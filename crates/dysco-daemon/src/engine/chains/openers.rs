//! Rules about the programs of a user or of a cgroup. The data plane knows both by number, and both come
//! and go.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use dysco_agent::groups;
use dysco_api::{Failure, FailureCode};
use dysco_common::Session;
use dysco_common::policy::PolicyRule;
use dysco_config::policy::{Known, Opener, Policy};
use dysco_explain::Cause;

use crate::engine::{Chains, Plane};

/// Number of the root of the hierarchy of cgroups (`cgroup_setup_root`, kernel/cgroup/cgroup.c).
const ROOT: u64 = 1;

/// The policy in the data plane's form.
#[derive(Default)]
pub(super) struct Compiled {
    /// Its parts.
    pub rules: Vec<PolicyRule>,
    /// For each part, the index of its rule.
    of: Vec<usize>,
    known: Known,
    /// The last error about the hierarchy of cgroups: each is reported once.
    error: Option<String>,
}

impl Compiled {
    /// Compiles a policy. Returns false if the result is the former one.
    pub(super) fn update(&mut self, policy: &Policy, plane: &Plane) -> bool {
        self.known.groups = None;
        if policy.has_groups() {
            match root(plane) {
                Ok(root) => (self.known.groups, self.error) = (Some(root), None),
                Err(why) if self.error.as_ref() != Some(&why) => {
                    tracing::error!("rules about control groups match no session: {why}");
                    self.error = Some(why);
                }
                Err(_) => {}
            }
        }
        let (rules, of) = policy.compile(&mut self.known);
        let other = (&rules, &of) != (&self.rules, &self.of);
        (self.rules, self.of) = (rules, of);
        other
    }

    /// True if a rule has a part.
    pub(super) fn has(&self, rule: usize) -> bool {
        self.of.contains(&rule)
    }

    /// Returns the index of the rule that a part of the data plane's rules belongs to.
    fn rule_of(&self, part: &PolicyRule) -> Option<usize> {
        let part = PolicyRule {
            generation: 0,
            ..*part
        };
        let at = self.rules.iter().position(|rule| *rule == part)?;
        self.of.get(at).copied()
    }
}

/// Returns the root of the hierarchy of cgroups.
fn root(plane: &Plane) -> Result<PathBuf, String> {
    let root = groups::root(&plane.config.removal.state_dir).map_err(|e| e.to_string())?;
    let number = root.metadata().map_err(|e| e.to_string())?.ino();
    match number == ROOT {
        true => Ok(root),
        false => Err("dyscod is in a control group namespace of its own".into()),
    }
}

/// Returns the program that a request describes.
///
/// # Errors
/// The failure of the request, if a word cannot name a user or a cgroup.
pub(in crate::engine) fn opener(
    user: Option<String>,
    cgroup: Option<String>,
) -> Result<Opener, Failure> {
    let refused = |cause: Cause| {
        let explained = cause.of("explain what would become of the session");
        Failure::new(FailureCode::BadRequest, explained)
    };
    Ok(Opener {
        user: user.map(|name| name.parse()).transpose().map_err(refused)?,
        cgroup: cgroup
            .map(|path| path.parse())
            .transpose()
            .map_err(refused)?,
    })
}

impl Chains {
    /// Puts the policy in force again if it is about users or cgroups that have come or gone.
    pub(super) fn follow_openers(&mut self, plane: &mut Plane) {
        let follows = self.applied && self.policy.has_openers();
        if !follows || !self.compiled.update(&self.policy, plane) {
            return;
        }
        match plane.agent.apply_policy(&self.compiled.rules) {
            Ok(()) => {
                let names = self.policy.names().enumerate();
                let absent = names.filter(|(at, _)| !self.compiled.has(*at));
                let absent: Vec<_> = absent.map(|(_, name)| name).collect();
                let text = match absent.is_empty() {
                    true => "the users and control groups of all rules are there".into(),
                    false => format!(
                        "without effect, as a user or control group is not there: {}",
                        absent.join(", ")
                    ),
                };
                plane.report("policy_applied", None, text);
            }
            Err(error) => {
                // The next look tries again.
                self.compiled.rules.clear();
                tracing::error!(%error, "the policy does not follow the users and control groups");
            }
        }
    }

    /// Returns the index of the rule that has opened a session. If that one is gone, the policy in
    /// force decides.
    pub(super) fn rule_of(&self, plane: &Plane, s: &Session) -> Option<usize> {
        let part = plane.agent.rule_named(s.laid_by);
        if let Some(at) = part.and_then(|part| self.compiled.rule_of(&part)) {
            return Some(at);
        }
        let (local, remote) = (s.key.local(), s.key.remote());
        self.policy.find(local, remote, &Opener::default())
    }
}
