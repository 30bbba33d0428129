//! Policy in force, and the file that it is read from.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use dysco_api::{Failure, FailureCode, Reply};
use dysco_common::Session;
use dysco_config::policy::{Policy, PolicyError};
use dysco_explain::{Cause, Explain};

use crate::engine::{Answer, Chains, Plane, services};
use crate::handlers::Owner;

impl Chains {
    /// Takes up the rules that the data plane has, and puts those of the file in force.
    pub(super) fn start_policy(&mut self, plane: &mut Plane) {
        match plane.agent.policy() {
            Ok(Some(rules)) => match Policy::of_compiled(&rules) {
                Some(policy) => (self.policy, self.applied) = (policy, true),
                None => {
                    self.unread = true;
                    tracing::info!(
                        "the rules in force are known by the policy's file alone: they have services, users, control groups, or elements of another release"
                    );
                }
            },
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the rules in force are not known"),
        }
        let known = self.store.as_ref().map(|store| store.known.clone());
        match known {
            Some(Some(published)) => self.put_published(plane, published),
            // The store decides, once it answers.
            Some(None) if !self.policy.rules.is_empty() && !plane.config.chain.policy.exists() => {}
            _ => self.read_policy(plane),
        }
        self.watch_policy(plane);
    }

    fn watch_policy(&mut self, plane: &Plane) {
        let path = &plane.config.chain.policy;
        let shown = path.display();
        if !path.parent().is_some_and(Path::is_dir) {
            return tracing::info!(path = %shown, "the policy's folder is not there yet: it is looked for now and then");
        }
        let answers = plane.answers.clone();
        let watched = self.file.watch(path, move || {
            // The engine has ended.
            let _ = answers.send(Answer::PolicyWritten);
        });
        if let Err(error) = watched {
            tracing::warn!(
                path = %shown, %error,
                "cannot watch the policy: another one is in force some seconds later, or by 'dyscoctl policy apply' at once; raise fs.inotify.max_user_instances or max_user_watches, and restart dyscod"
            );
        }
    }

    /// Reads the file after a complete write. A file that was renamed or removed may be about to be
    /// rewritten: later looks at it decide.
    pub(in crate::engine) fn policy_written(&mut self, plane: &mut Plane) {
        if !self.follows_store() && plane.config.chain.policy.exists() {
            self.read_policy(plane);
        }
    }

    /// Reads the policy's file if it has changed without a notification.
    pub(super) fn look_at_policy(&mut self, plane: &mut Plane) {
        if !self.follows_store() && self.file.look(&plane.config.chain.policy) {
            self.read_policy(plane);
        }
        self.follow_openers(plane);
    }

    /// Reads the policy's file, and puts it in force if it differs. If it cannot be used, the
    /// previous policy stays.
    fn read_policy(&mut self, plane: &mut Plane) {
        self.file.reads(&plane.config.chain.policy);
        let read = self.policy_of_file(plane).map_err(|e| e.explain().into());
        match read.and_then(|policy| self.put_in_force(plane, policy)) {
            Ok(()) => self.error = None,
            Err(why) => self.refuse(plane, why),
        }
    }

    /// Reports and remembers why a policy is not in force.
    pub(super) fn refuse(&mut self, plane: &Plane, why: Cause) {
        let text = format!("{why}; {}", self.what_stays());
        tracing::error!("{text}");
        plane.tell_monitors("policy_refused", None, text);
        self.error = Some(why);
    }

    /// Returns the file's policy. An absent file is the empty policy, unless rules are in force.
    fn policy_of_file(&self, plane: &Plane) -> Result<Policy, PolicyError> {
        let (path, own) = (&plane.config.chain.policy, &plane.config.host.addresses);
        self.policy_of(path, Policy::load(path, own)?)
    }

    fn policy_of(&self, path: &Path, read: Option<Policy>) -> Result<Policy, PolicyError> {
        match read {
            Some(policy) => Ok(policy),
            None if self.policy.rules.is_empty() && !self.unread => Ok(Policy::default()),
            None => Err(PolicyError::Gone { path: path.into() }),
        }
    }

    /// Returns true if the policy that was read at a path differs from the one in force, and would
    /// be put in force.
    pub(in crate::engine) fn is_other_policy(
        &self,
        path: &Path,
        read: Option<Policy>,
    ) -> Result<bool, PolicyError> {
        Ok(!self.follows_store() && self.policy_of(path, read)? != self.policy)
    }

    /// Puts the policy that was read at a path in force, and watches that file from now on.
    pub(in crate::engine) fn take_up_policy(
        &mut self,
        plane: &mut Plane,
        path: &Path,
        read: Option<Policy>,
    ) -> Result<(), Cause> {
        if !self.follows_store() {
            let policy = self.policy_of(path, read).map_err(|e| e.explain())?;
            self.put_in_force(plane, policy)?;
            self.error = None;
            self.file.reads(path);
        }
        if *path != plane.config.chain.policy {
            plane.config.chain.policy = path.into();
            self.watch_policy(plane);
        }
        Ok(())
    }

    /// Returns a text that says what is in force when a file is not.
    fn what_stays(&self) -> String {
        match self.policy.rules.len() {
            0 if self.unread => "the rules of before stay in force".into(),
            0 => "no rule is in force, all sessions go direct".into(),
            rules => format!("the rules of before stay in force ({rules})"),
        }
    }

    pub(super) fn put_in_force(&mut self, plane: &mut Plane, policy: Policy) -> Result<(), Cause> {
        if self.applied && policy == self.policy {
            return Ok(());
        }
        let serving = || policy.rules.iter().filter(|r| !r.chain.services.is_empty());
        services::check_policy(&policy)?;
        let serves = serving().next().is_some();
        let follows = serving().any(|r| !r.chain.hosts.is_empty());
        if follows {
            // Before the first session opens by such a rule.
            plane.monitors.set_policy(&plane.agent, true);
        }
        let parts = self.compiled.compile(&policy, plane);
        let applied = plane.agent.apply_policy(&parts.rules);
        applied.map_err(|e| e.explain())?;
        self.compiled.set(parts);
        let text = format!("{} rules are in force", policy.rules.len());
        plane.monitors.set_policy(&plane.agent, follows);
        (self.policy, self.applied, self.unread) = (policy, true, false);
        if serves {
            // Their first session does not wait for the start of a handler.
            let prepare = Answer::Service(Box::new(services::done::Done::Wanted));
            // The engine has ended.
            let _ = plane.answers.send(prepare);
        }
        (self.asked, self.refreshed) = (None, None);
        plane.report("policy_applied", None, text);
        self.sweep_chains(plane);
        Ok(())
    }

    /// Returns the services that the policy gives a session that this host has opened.
    pub(in crate::engine) fn services_for(
        &self,
        plane: &Plane,
        s: &Session,
    ) -> Option<services::Wanted> {
        let at = self.rule_of(plane, s)?;
        let rule = self.policy.rules.get(at)?;
        let name = self.policy.names().nth(at).unwrap_or_default();
        (!rule.chain.services.is_empty()).then(|| services::Wanted {
            services: rule.chain.services.clone(),
            otherwise: rule.otherwise,
            owner: Owner::System,
            by: format!("rule {name} of the policy"),
        })
    }

    /// Carries out `policy apply`.
    pub(in crate::engine) fn policy_apply(
        &mut self,
        plane: &mut Plane,
        text: Option<&str>,
    ) -> Reply {
        if self.follows_store() {
            return self.apply_published(plane, text);
        }
        let file = plane.config.chain.policy.clone();
        let policy = match text {
            Some(text) => Policy::of_host(&file, text, &plane.config.host.addresses),
            None => self.policy_of_file(plane),
        };
        let applied = policy.map_err(|e| e.explain().into());
        let applied = applied.and_then(|policy| {
            let Some(text) = text else {
                return self.put_in_force(plane, policy);
            };
            let before = match std::fs::read(&file) {
                Ok(before) => Some(before),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
                Err(source) => return Err(unusable("read", &file, source)),
            };
            write_whole(&file, text.as_bytes())
                .map_err(|source| unusable("write", &file, source))?;
            self.put_in_force(plane, policy).inspect_err(|_| {
                // Otherwise the next look at the file would put it in force.
                let back = match before {
                    Some(before) => write_whole(&file, &before),
                    None => std::fs::remove_file(&file),
                };
                if let Err(error) = back {
                    tracing::error!(path = %file.display(), %error, "the policy's file is one that is not in force");
                }
            })
        });
        match applied {
            Ok(()) => {
                self.error = None;
                self.policy_report(plane)
            }
            Err(cause) => not_applied(
                FailureCode::Refused,
                cause,
                "the policy before stays in force; try the file with 'dyscoctl policy check'",
            ),
        }
    }

    /// Carries out `policy apply` where etcd has the policy: takes it from there once more.
    fn apply_published(&mut self, plane: &mut Plane, text: Option<&str>) -> Reply {
        if text.is_some() {
            let place = self.place(plane);
            let why = format!("{} is in force, for all hosts", place.display());
            let hint = "publish the file with 'dyscoctl policy publish FILE'";
            return not_applied(FailureCode::BadRequest, Cause::new(why), hint);
        }
        self.put_published_again(plane);
        match &self.error {
            None => self.policy_report(plane),
            Some(cause) => {
                let hint = "the policy before stays in force";
                not_applied(FailureCode::Refused, cause.clone(), hint)
            }
        }
    }
}

/// Returns the failure of `policy apply`, with a hint behind that of the cause.
fn not_applied(code: FailureCode, cause: Cause, hint: &str) -> Reply {
    let hint = match &cause.hint {
        Some(own) => format!("{own}; {hint}"),
        None => hint.to_owned(),
    };
    let reported = cause.hint(hint).of("put the policy in force");
    Reply::Error(Failure::new(code, reported))
}

fn unusable(what: &'static str, path: &Path, source: std::io::Error) -> Cause {
    let path = path.into();
    PolicyError::File { what, path, source }.explain().into()
}

/// Writes a file so that it is complete or unchanged, even after a loss of power.
fn write_whole(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let new = path.with_extension("toml.new");
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    if let Err(error) = File::open(dir).and_then(|dir| dir.sync_all()) {
        tracing::warn!(path = %path.display(), %error, "the policy may be lost with the power");
    }
    Ok(())
}
