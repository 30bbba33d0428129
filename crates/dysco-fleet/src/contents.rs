//! All that etcd has of a fleet, from its keys and values.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Settings;

/// Maximum number of hosts. Keys beyond it are ignored.
const MOST_HOSTS: usize = 4096;
/// Maximum number of addresses of a host.
const MOST_ADDRESSES: usize = 16;

/// A policy that was published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Text of the policy.
    pub text: String,
    /// Revision of etcd at which it was published.
    pub revision: i64,
}

/// Entry of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Addresses of the host.
    pub addresses: Vec<IpAddr>,
    /// Revision of the policy in force there; none if no policy of etcd is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<i64>,
    /// Later policy that is not in force there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
}

/// A policy that a host has refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Revision of the policy.
    pub revision: i64,
    /// Reason.
    pub why: String,
}

/// All that etcd has of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The policy; none if its key is absent.
    pub policy: Option<Published>,
    /// Hosts by name.
    pub hosts: BTreeMap<String, HostEntry>,
}

/// A key with its value; none if the key was deleted.
pub(crate) struct Change<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    /// Revision of this change.
    pub revision: i64,
}

impl Contents {
    /// Takes a change in. Returns true if the contents differ then. Keys and values of another form
    /// are ignored, with a warning.
    pub(crate) fn take(&mut self, settings: &Settings, change: &Change<'_>) -> bool {
        if change.key == settings.policy_key().as_bytes() {
            let policy = change.value.map(|text| Published {
                text: String::from_utf8_lossy(text).into_owned(),
                revision: change.revision,
            });
            return std::mem::replace(&mut self.policy, policy.clone()) != policy;
        }
        let prefix = settings.hosts_prefix();
        let name = change.key.strip_prefix(prefix.as_bytes());
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
            return false;
        };
        match change.value.map(entry) {
            None => self.hosts.remove(name).is_some(),
            Some(Ok(_)) if self.hosts.len() >= MOST_HOSTS && !self.hosts.contains_key(name) => {
                tracing::warn!(name, "a host in etcd is ignored: there are {MOST_HOSTS}");
                false
            }
            Some(Ok(entry)) => {
                let before = self.hosts.insert(name.to_owned(), entry);
                before.as_ref() != self.hosts.get(name)
            }
            Some(Err(error)) => {
                tracing::warn!(name, %error, "a host's entry in etcd cannot be read, and is ignored");
                self.hosts.remove(name).is_some()
            }
        }
    }
}

fn entry(value: &[u8]) -> Result<HostEntry, serde_json::Error> {
    let mut entry: HostEntry = serde_json::from_slice(value)?;
    entry.addresses.truncate(MOST_ADDRESSES);
    let canonical = entry.addresses.iter().map(IpAddr::to_canonical);
    entry.addresses = canonical.collect();
    Ok(entry)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{KeyFiles, Member};

    pub(crate) fn settings() -> Settings {
        Settings {
            members: vec![Member {
                url: "http://127.0.0.1:1".into(),
                host: "127.0.0.1".into(),
            }],
            prefix: "/dysco".into(),
            keys: KeyFiles {
                ca: "/none".into(),
                cert: "/none".into(),
                key: "/none".into(),
            },
            lease: Duration::from_secs(30),
            name: "a".into(),
            addresses: vec![[10, 0, 0, 1].into()],
        }
    }

    fn take(contents: &mut Contents, key: &str, value: Option<&str>, revision: i64) -> bool {
        let change = Change {
            key: key.as_bytes(),
            value: value.map(str::as_bytes),
            revision,
        };
        contents.take(&settings(), &change)
    }

    #[test]
    fn the_policy_has_the_revision_of_its_change() {
        let mut contents = Contents::default();
        assert!(take(&mut contents, "/dysco/policy", Some("x"), 7));
        assert_eq!(contents.policy.as_ref().map(|p| p.revision), Some(7));
        // The same text again is another publication.
        assert!(take(&mut contents, "/dysco/policy", Some("x"), 8));
        assert!(take(&mut contents, "/dysco/policy", None, 9));
        assert_eq!(contents.policy, None);
        assert!(!take(&mut contents, "/dysco/policy/2", Some("x"), 10));
        assert_eq!(contents.policy, None);
    }

    #[test]
    fn hosts_come_change_and_go() {
        let mut contents = Contents::default();
        let entry = settings().own_entry(&crate::OwnState {
            policy: Some(3),
            refused: None,
        });
        let text = serde_json::to_string(&entry).unwrap();
        assert!(take(&mut contents, "/dysco/hosts/a", Some(&text), 1));
        assert_eq!(contents.hosts["a"], entry);
        assert!(!take(&mut contents, "/dysco/hosts/a", Some(&text), 2));
        let other = "{\"addresses\": [\"::ffff:10.0.0.2\"], \"later\": 1}";
        assert!(take(&mut contents, "/dysco/hosts/a", Some(other), 3));
        assert_eq!(contents.hosts["a"].addresses, [IpAddr::from([10, 0, 0, 2])]);
        assert!(take(&mut contents, "/dysco/hosts/a", None, 4));
        assert!(!take(&mut contents, "/dysco/hosts/a", None, 5));
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_ignored() {
        let mut contents = Contents::default();
        for bad in ["", "{}", "[]", "{\"addresses\": [\"fw1\"]}"] {
            assert!(
                !take(&mut contents, "/dysco/hosts/b", Some(bad), 1),
                "{bad}"
            );
        }
        assert!(contents.hosts.is_empty());
    }
}
