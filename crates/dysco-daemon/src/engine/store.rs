//! The fleet's store, as this host sees it: whether etcd answers, which hosts are registered, and a
//! copy of both on disk for the next process.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dysco_api::{
    Failure, FailureCode, FleetHost, FleetReport, PublishReport, RefusedPolicy, Reply,
};
use dysco_config::{Config, is_host, private};
use dysco_explain::{Cause, Explain};
use dysco_fleet::{Event, Fleet, HostEntry, KeyFiles, Member, OwnState, Published, Settings};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::answers::Answer;
use super::host::ThisHost;
use crate::metrics::StoreGauges;

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

    fn set(&mut self, kept: Kept) {
        self.differs |= kept != self.kept;
        self.kept = kept;
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
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
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

impl ThisHost {
    /// Takes up what a former process had of the store, and connects. Call it before the chains are
    /// started.
    pub(super) fn start_store(&mut self) {
        let config = &self.plane.config;
        if !config.has_store() {
            return;
        }
        let settings = settings(config);
        let key = format!("etcd:{}", settings.policy_key());
        let copy = Copy::open(config.removal.state_dir.join("fleet"));
        let kept = copy.kept.clone();
        let answers = self.plane.answers.clone();
        let fleet = Fleet::start(settings, move |event| {
            // The engine has ended.
            let _ = answers.send(Answer::Store(Box::new(event)));
        });
        let (since, since_1970) = now();
        self.chains.expect_store(PathBuf::from(&key), kept.policy);
        let peers = peers(&config.host.addresses, &config.host.name, &kept.hosts);
        self.chains.take_store_peers(&self.plane, peers);
        self.store.open = Some(Open {
            fleet,
            key,
            url: None,
            connected: false,
            error: None,
            since,
            since_1970,
            copy,
        });
    }

    /// Takes an event of the store.
    pub(super) fn take_store(&mut self, event: Event) {
        let Some(open) = &mut self.store.open else {
            return;
        };
        match event {
            Event::Connected { url } => {
                open.error = None;
                let text = format!("etcd at {url} answers");
                open.url = Some(url);
                if open.turns(true) {
                    self.plane.report("etcd_connected", None, text);
                }
            }
            Event::Lost(error) => {
                let is_first = open.error.is_none();
                let is_news = open.turns(false) || is_first;
                open.error = Some(error.explain().into());
                if is_news {
                    let text = format!("{error}; what etcd had stays in force");
                    tracing::warn!("{text}");
                    self.plane.tell_monitors("etcd_lost", None, text);
                }
            }
            Event::Contents(contents) => {
                let published = contents.policy.as_ref();
                self.chains.take_published(&mut self.plane, published);
                let host = &self.plane.config.host;
                let peers = peers(&host.addresses, &host.name, &contents.hosts);
                self.chains.take_store_peers(&self.plane, peers);
                let before = open.copy.kept.policy.clone();
                open.copy.set(Kept {
                    policy: self.chains.published().cloned(),
                    hosts: contents.hosts,
                });
                // Changes of hosts are many when a fleet starts, and are written with the sweep.
                if open.copy.kept.policy != before {
                    open.copy.write();
                }
            }
        }
        self.tell_store();
    }

    /// Tells the other hosts which policy is in force here.
    pub(super) fn tell_store(&self) {
        if let Some(open) = &self.store.open {
            let state: OwnState = self.chains.own_state();
            open.fleet.set_own(state);
        }
    }

    /// Writes the copy of what etcd has. To be called from time to time.
    pub(super) fn flush_store(&mut self) {
        if let Some(open) = &mut self.store.open {
            open.copy.write();
        }
    }

    /// Carries out `policy publish`.
    pub(super) fn publish(&self, text: String, replies: mpsc::Sender<Reply>) {
        let failed = |code, cause: Cause| {
            let reported = cause.of("publish the policy");
            Reply::Error(Failure::new(code, reported))
        };
        let Some(open) = &self.store.open else {
            let cause = Cause::new("this host has no etcd")
                .hint("name its members under [fleet] (docs/run-a-fleet.md), or put the file in force here alone with 'dyscoctl policy apply'");
            let _ = replies.try_send(failed(FailureCode::BadRequest, cause));
            return;
        };
        if let Err(cause) = self.chains.check_published(&text) {
            let _ = replies.try_send(failed(FailureCode::BadRequest, cause));
            return;
        }
        let (publisher, key) = (open.fleet.publisher(), open.key.clone());
        tokio::spawn(async move {
            let reply = match publisher.publish(text).await {
                Ok(revision) => Reply::Published(PublishReport { key, revision }),
                Err(error) => failed(FailureCode::Refused, error.explain().into()),
            };
            // The client has left.
            let _ = replies.send(reply).await;
        });
    }

    /// Returns the state of the store; none if none is configured.
    pub(super) fn store_report(&self) -> Option<FleetReport> {
        let open = self.store.open.as_ref()?;
        let hosts = open.copy.kept.hosts.iter();
        let hosts = hosts.map(|(name, host)| FleetHost {
            name: name.clone(),
            addresses: host.addresses.clone(),
            policy: host.policy,
            refused: host.refused.as_ref().map(|refused| RefusedPolicy {
                revision: refused.revision,
                why: refused.why.clone(),
            }),
        });
        Some(FleetReport {
            key: open.key.clone(),
            connected: open.connected,
            url: open.url.clone(),
            for_s: open.since.elapsed().as_secs(),
            error: open.error.clone(),
            policy: self.chains.published().map(|p| p.revision),
            refused: self.chains.refused_of_store().cloned(),
            hosts: hosts.collect(),
        })
    }

    /// Returns the numbers of the store for metrics; none if none is configured.
    pub(super) fn store_gauges(&self) -> Option<StoreGauges> {
        let open = self.store.open.as_ref()?;
        Some(StoreGauges {
            up: open.connected,
            since: open.since_1970,
            policy: self.chains.published().map(|p| p.revision),
            refused: self.chains.refused_of_store().is_some(),
            hosts: open.copy.kept.hosts.len() as u64,
        })
    }
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
        copy.set(kept.clone());
        copy.write();
        assert!(Copy::open(path.clone()).kept == kept);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "{").unwrap();
        assert!(Copy::open(path).kept == Kept::default());
    }
}
