//! Programs of this host that a rule is about: those of a user, those of a cgroup, or both.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use dysco_common::policy::PolicyRule;
use dysco_explain::Cause;
use nix::unistd::User;
use serde::{Deserialize, Serialize};

/// A user, by name or by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct UserName(String);

/// A cgroup, by its path below the root of the hierarchy, without a slash in front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct GroupPath(String);

impl UserName {
    /// Returns the user's number.
    ///
    /// # Errors
    /// If this host has no such user.
    pub fn uid(&self) -> Result<u32, Cause> {
        if let Ok(uid) = self.0.parse() {
            return Ok(uid);
        }
        let found = User::from_name(&self.0).map_err(Cause::new)?;
        found.map(|user| user.uid.as_raw()).ok_or_else(|| {
            Cause::new(format!("this host has no user '{}'", self.0))
                .hint("name a user of 'getent passwd', or a number")
        })
    }
}

impl TryFrom<toml::Value> for UserName {
    type Error = Cause;

    fn try_from(value: toml::Value) -> Result<Self, Cause> {
        match value {
            toml::Value::String(name) => name.parse(),
            toml::Value::Integer(uid) => uid.to_string().parse(),
            other => Err(Cause::new(format!("{other} is no user")).hint(USERS)),
        }
    }
}

const USERS: &str = "write a name, or a number of 0 to 4294967294";

impl std::str::FromStr for UserName {
    type Err = Cause;

    fn from_str(name: &str) -> Result<Self, Cause> {
        let numeric = name.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        // The greatest number stands for no user (-1).
        let is_uid = name.parse::<u32>().is_ok_and(|uid| uid != u32::MAX);
        match name.is_empty() || numeric && !is_uid {
            true => Err(Cause::new(format!("'{name}' is no user")).hint(USERS)),
            false => Ok(UserName(name.to_owned())),
        }
    }
}

impl std::fmt::Display for UserName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl GroupPath {
    /// Depth below the root of the hierarchy.
    fn level(&self) -> u32 {
        self.0.split('/').count() as u32
    }

    /// Returns true if `other` is this cgroup, or one below it.
    fn contains(&self, other: &GroupPath) -> bool {
        let below = other.0.strip_prefix(&self.0);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl TryFrom<String> for GroupPath {
    type Error = Cause;

    fn try_from(path: String) -> Result<Self, Cause> {
        path.parse()
    }
}

impl std::str::FromStr for GroupPath {
    type Err = Cause;

    fn from_str(path: &str) -> Result<Self, Cause> {
        let relative = path.trim_matches('/');
        let plain = relative
            .split('/')
            .all(|part| !["", ".", ".."].contains(&part));
        match plain {
            true => Ok(GroupPath(relative.to_owned())),
            false => Err(Cause::new(format!("'{path}' is no path of a cgroup"))
                .hint("write it as in /proc/PID/cgroup, such as system.slice/nginx.service")),
        }
    }
}

impl std::fmt::Display for GroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Programs that a rule is about. A rule without either is about all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opener {
    /// User of the programs.
    pub user: Option<UserName>,
    /// cgroup of the programs; those of the cgroups below it count as well.
    pub cgroup: Option<GroupPath>,
}

impl Opener {
    /// True if it is about all programs.
    pub fn is_any(&self) -> bool {
        *self == Opener::default()
    }

    /// Returns true if a program whose user and cgroup are `other` is one of these.
    pub fn includes(&self, other: &Opener) -> bool {
        let user = match (&self.user, &other.user) {
            (None, _) => true,
            (Some(own), Some(other)) => own == other || same_user(own, other),
            _ => false,
        };
        let cgroup = match (&self.cgroup, &other.cgroup) {
            (None, _) => true,
            (Some(own), Some(other)) => own.contains(other),
            _ => false,
        };
        user && cgroup
    }

    /// Adds the programs to a rule of the data plane. Returns `None` if this host has no such user, or
    /// no such cgroup at the moment.
    pub(super) fn compile(&self, rule: PolicyRule, known: &mut Known) -> Option<PolicyRule> {
        let user = match &self.user {
            Some(user) => Some(known.uid(user)?),
            None => None,
        };
        let (group, level) = match &self.cgroup {
            Some(path) => (known.group(path)?, path.level()),
            None => (0, 0),
        };
        Some(PolicyRule {
            user: user.unwrap_or_default(),
            of_user: u8::from(user.is_some()),
            group,
            level,
            ..rule
        })
    }
}

/// Users and cgroups of this host.
#[derive(Debug, Default)]
pub struct Known {
    /// Root of the hierarchy of cgroups; none if no rule is about one.
    pub groups: Option<PathBuf>,
    /// Users that were found. They are not looked up again: a directory server may be away.
    users: HashMap<String, u32>,
}

impl Known {
    fn uid(&mut self, user: &UserName) -> Option<u32> {
        if let Some(uid) = self.users.get(&user.0) {
            return Some(*uid);
        }
        let uid = user.uid().ok()?;
        self.users.insert(user.0.clone(), uid);
        Some(uid)
    }

    /// Returns the number of a cgroup: the inode of its folder (`kernfs_id`, fs/kernfs).
    fn group(&self, path: &GroupPath) -> Option<u64> {
        let folder = self.groups.as_ref()?.join(&path.0).metadata().ok()?;
        folder.is_dir().then(|| folder.ino())
    }
}

fn same_user(a: &UserName, b: &UserName) -> bool {
    matches!((a.uid(), b.uid()), (Ok(a), Ok(b)) if a == b)
}

impl std::fmt::Display for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.iter().map(|user| format!("user {user}"));
        let cgroup = self.cgroup.iter().map(|path| format!("cgroup {path}"));
        let all: Vec<_> = user.chain(cgroup).collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opener(user: &str, cgroup: &str) -> Opener {
        Opener {
            user: (!user.is_empty()).then(|| user.parse().unwrap()),
            cgroup: (!cgroup.is_empty()).then(|| cgroup.parse().unwrap()),
        }
    }

    #[test]
    fn a_cgroup_includes_those_below_it() {
        let rule = opener("", "/system.slice/");
        assert!(rule.includes(&opener("", "system.slice")));
        assert!(rule.includes(&opener("root", "system.slice/nginx.service/worker")));
        assert!(!rule.includes(&opener("", "system.slices")));
        assert!(!rule.includes(&opener("", "")));
        assert_eq!(opener("", "a/b").cgroup.unwrap().level(), 2);
    }

    #[test]
    fn a_user_has_a_name_and_a_number() {
        assert!(opener("root", "").includes(&opener("0", "")));
        assert!(!opener("root", "").includes(&opener("1", "")));
        assert!(!opener("root", "").includes(&opener("", "")));
        assert!(opener("", "").includes(&opener("root", "")));
    }

    #[test]
    fn what_no_host_can_have_is_refused() {
        for user in ["", "-1", "4294967295", "99999999999"] {
            assert!(user.parse::<UserName>().is_err(), "{user}");
        }
        for path in ["", "/", "..", "a/../b", "a//b", "./a", "a/./b"] {
            assert!(path.parse::<GroupPath>().is_err(), "{path}");
        }
    }

    #[test]
    fn a_rule_about_a_cgroup_that_is_not_there_is_none() {
        let root = tempfile::tempdir().unwrap();
        let rule = opener("root", "a/b");
        let mut known = Known {
            groups: Some(root.path().into()),
            ..Known::default()
        };
        let mut compiled = || rule.compile(PolicyRule::default(), &mut known);
        assert_eq!(compiled(), None);
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        let there = compiled().unwrap();
        assert_eq!((there.of_user, there.user, there.level), (1, 0, 2));
        assert!(there.group != 0 && there.has_opener());
        let nobody = opener("no-such-user", "");
        assert_eq!(
            nobody.compile(PolicyRule::default(), &mut Known::default()),
            None
        );
    }
}
