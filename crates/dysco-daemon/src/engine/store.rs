//! The fleet's store, as this host sees it: whether etcd answers, which hosts are registered, and a
//! copy of both on disk for the next process.

mod exchange;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dysco_config::{Config, is_host, private};
use dysco_explain::Cause;
use dysco_fleet::{Fleet, HostEntry, KeyFiles, Member, Published, Settings};
use serde::{Deserialize, Serialize};

/// Maximum number of hosts that this host stays connected with. It connects to others when a
/// session needs them.
const MOST_PEERS: usize = 256;

/// The store of the fleet, if one is configured.
#[derive(Default)]
pub(super) struct Store {
    open: Option<Open>,
}

/// A store that is configured.
struct Open {
    fleet: Fleet,
    /// Name of the policy's key, for listings.
    key: String,
    /// URL of the member that answers, or was the last to answer.
    url: Option<String>,
    connected: bool,
    /// Reason why etcd does not answer.
    error: Option<Cause>,
    since: Instant,
    /// The same moment in seconds since 1970.
    since_1970: f64,
    copy: Copy,
}

/// Copy on disk of the policy in force and of the hosts.
struct Copy {
    path: PathBuf,
    kept: Kept,
    /// True if the file has to be written.
    differs: bool,
    /// True if the last attempt to write has failed, which is reported once.
    failed: bool,
}

/// Policy in force, and hosts.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    policy: Option<Published>,
    hosts: BTreeMap<String, HostEntry>,
}

impl Copy {
    /// Reads the copy of a former process. One that cannot be read is as none.
    fn open(path: PathBuf) -> Copy {
        let read = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(error),
        };
        let kept = read.unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "what this host had of etcd is not known");
            Kept::default()
        });
        Copy {
            path,
            kept,
            differs: false,
            failed: false,
        }
    }

    /// Takes the policy in force, and the hosts. Returns true if the policy is another one. A policy
    /// that could not be put in force again stays until there is another one.
    fn set(&mut self, in_force: Option<&Published>, hosts: BTreeMap<String, HostEntry>) -> bool {
        let before = self.kept.policy.as_ref();
        let policy = in_force.or(before).cloned();
        let is_other = policy.as_ref() != before;
        let kept = Kept { policy, hosts };
        self.differs |= kept != self.kept;
        self.kept = kept;
        is_other
    }

    /// Writes the file if it differs.
    fn write(&mut self) {
        if !self.differs {
            return;
        }
        let bytes = serde_json::to_vec(&self.kept).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| replace(&self.path, &bytes));
        self.differs = written.is_err();
        if let Some(error) = written.as_ref().err().filter(|_| !self.failed) {
            tracing::warn!(path = %self.path.display(), %error, "a restarted dyscod would not have what etcd has");
        }
        self.failed = written.is_err();
    }
}

/// Writes a file for root alone, so that it is complete or unchanged.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    private::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

impl Open {
    /// Records that etcd answers or does not answer. Returns true if this is news.
    fn turns(&mut self, connected: bool) -> bool {
        let is_news = self.connected != connected;
        if is_news {
            (self.since, self.since_1970) = now();
        }
        self.connected = connected;
        is_news
    }
}

fn now() -> (Instant, f64) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    (
        Instant::now(),
        since_1970.map_or(0.0, |time| time.as_secs_f64()),
    )
}

fn settings(config: &Config) -> Settings {
    let members = config.fleet.etcd.iter().map(|url| Member {
        url: url.to_string(),
        host: url.host.clone(),
    });
    Settings {
        members: members.collect(),
        prefix: config.fleet.prefix.clone(),
        keys: KeyFiles {
            ca: config.fleet.ca.clone(),
            cert: config.fleet.cert.clone(),
            key: config.fleet.key.clone(),
        },
        lease: config.fleet.lease,
        name: config.host.name.clone(),
        addresses: config.host.addresses.clone(),
    }
}

/// Returns one address of each other host: the first of a family that this host has.
fn peers(own: &[IpAddr], name: &str, hosts: &BTreeMap<String, HostEntry>) -> Vec<IpAddr> {
    let usable = |address: &IpAddr| {
        is_host(*address)
            && !own.contains(address)
            && own.iter().any(|own| own.is_ipv4() == address.is_ipv4())
    };
    let others = hosts.iter().filter(|(other, _)| *other != name);
    let first = others.filter_map(|(_, host)| host.addresses.iter().copied().find(usable));
    first.take(MOST_PEERS).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn host(addresses: &[&str]) -> HostEntry {
        HostEntry {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ..HostEntry::default()
        }
    }

    #[test]
    fn a_peer_is_reached_by_an_address_of_a_family_that_is_here() {
        let own: [IpAddr; 1] = [[10, 0, 0, 1].into()];
        let hosts = BTreeMap::from([
            ("me".to_owned(), host(&["10.0.0.9"])),
            (
                "both".to_owned(),
                host(&["fd00::2", "10.0.0.2", "10.0.1.2"]),
            ),
            ("six".to_owned(), host(&["fd00::3"])),
            // An entry that claims this host's own address, or none of a host.
            ("thief".to_owned(), host(&["10.0.0.1", "127.0.0.1"])),
        ]);
        assert_eq!(peers(&own, "me", &hosts), [IpAddr::from([10, 0, 0, 2])]);
    }

    #[test]
    fn the_next_process_has_what_this_one_had_and_no_other_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet");
        let mut copy = Copy::open(path.clone());
        assert!(copy.kept == Kept::default());
        copy.write();
        assert!(!path.exists(), "nothing has to be written");
        let kept = Kept {
            policy: Some(Published {
                text: "[[rule]]".into(),
                revision: 3,
            }),
            hosts: [("a".to_owned(), host(&["10.0.0.2"]))].into(),
        };
        assert!(copy.set(kept.policy.as_ref(), kept.hosts.clone()));
        copy.write();
        assert!(Copy::open(path.clone()).kept == kept);
        // The policy cannot be put in force any more, and the hosts change.
        assert!(!copy.set(None, BTreeMap::new()));
        copy.write();
        assert!(Copy::open(path.clone()).kept.policy == kept.policy);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "{").unwrap();
        assert!(Copy::open(path).kept == Kept::default());
    }
}
