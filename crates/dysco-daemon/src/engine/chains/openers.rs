//! Rules about the programs of a user or of a cgroup. The data plane knows both by number, and both come
//! and go.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use dysco_agent::groups;
use dysco_api::{Failure, FailureCode};
use dysco_common::Session;
use dysco_common::policy::{Contested, PolicyRule};
use dysco_config::policy::{Known, Opener, Policy};
use dysco_explain::Cause;

use crate::engine::{Chains, Plane};

/// Number of the root of the hierarchy of cgroups (`cgroup_setup_root`, kernel/cgroup/cgroup.c).
const ROOT: u64 = 1;

/// Policy in the data plane's form.
#[derive(Default, PartialEq)]
pub(super) struct Parts {
    pub rules: Vec<PolicyRule>,
    /// For each part, the index of its rule.
    of: Vec<usize>,
}

/// Policy in force, in the data plane's form.
#[derive(Default)]
pub(super) struct Compiled {
    parts: Parts,
    known: Known,
    /// The last error about the hierarchy of cgroups: each is reported once.
    error: Option<String>,
}

impl Compiled {
    /// Compiles a policy. The result is not in use before [`Compiled::set`].
    pub(super) fn compile(&mut self, policy: &Policy, plane: &Plane) -> Parts {
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
        Parts { rules, of }
    }

    /// Records the parts that the data plane has now.
    pub(super) fn set(&mut self, parts: Parts) {
        self.parts = parts;
    }

    /// True if a rule has a part.
    pub(super) fn has(&self, rule: usize) -> bool {
        self.parts.of.contains(&rule)
    }

    /// Returns the index of the rule that a part of the data plane's rules belongs to.
    fn rule_of(&self, part: &PolicyRule) -> Option<usize> {
        let part = PolicyRule {
            generation: 0,
            ..*part
        };
        let at = self.parts.rules.iter().position(|rule| *rule == part)?;
        self.parts.of.get(at).copied()
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
        if !follows {
            return;
        }
        let parts = self.compiled.compile(&self.policy, plane);
        if self.compiled.parts == parts {
            return;
        }
        match plane.agent.apply_policy(&parts.rules) {
            Ok(()) => {
                self.compiled.set(parts);
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
                tracing::error!(%error, "the policy does not follow the users and control groups");
            }
        }
    }

    /// Returns words for the rule, or the chain, that a session of a run contends with.
    pub(in crate::engine) fn contender(&self, plane: &Plane, contested: Contested) -> String {
        if contested.rule.is_none() {
            return "the chain by which it comes".into();
        }
        let part = plane.agent.contested_rule(contested);
        let at = part.and_then(|part| self.compiled.rule_of(&part));
        match at.and_then(|at| self.policy.names().nth(at)) {
            Some(name) => format!("rule {name} of the policy"),
            None => "a rule of an earlier policy".into(),
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
