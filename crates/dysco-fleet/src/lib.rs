//! The policy and the hosts of a fleet, in etcd.
//!
//! A task reads all keys below a prefix, and watches them from that revision on. It registers this
//! host under a lease, so that the entry of a host that is gone ends. After a loss it connects to
//! the next address, and reads everything again. The crate knows a policy only as a text, and keeps
//! nothing on disk. It depends on no other crate than `dysco-explain`.

mod client;
mod contents;
mod error;
mod session;
mod tls;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use contents::{Contents, HostEntry, Published, Refused};
pub use error::FleetError;
pub use tls::RevokedList;

/// Settings of the connection to etcd, and of this host's entry.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Members of etcd; never empty.
    pub members: Vec<Member>,
    /// Prefix of all keys, which ends without a slash.
    pub prefix: String,
    /// Keys and certificates for members whose URL begins with `https`.
    pub keys: KeyFiles,
    /// Time after which the entry of a host that is gone ends.
    pub lease: Duration,
    /// Name of this host.
    pub name: String,
    /// Addresses of this host.
    pub addresses: Vec<IpAddr>,
}

/// A member of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// URL, such as `https://10.0.0.5:2379`.
    pub url: String,
    /// Host that its certificate has to name: an address, or a DNS name.
    pub host: String,
}

/// Files of keys and certificates. They are read at each connection.
#[derive(Clone, Debug)]
pub struct KeyFiles {
    /// Certificate of the authority that etcd's certificate has to be of.
    pub ca: PathBuf,
    /// Certificate of this host.
    pub cert: PathBuf,
    /// Key of this host.
    pub key: PathBuf,
}

/// Event of the connection to etcd.
#[derive(Debug)]
pub enum Event {
    /// A member answers.
    Connected {
        /// URL of the member.
        url: String,
    },
    /// All that etcd has, at first and after each change.
    Contents(Contents),
    /// The connection has ended, or could not be made. Another attempt follows.
    Lost(FleetError),
}

/// State of this host that its entry tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnState {
    /// Revision of the policy in force; none if no policy of etcd is.
    pub policy: Option<i64>,
    /// Later policy that is not in force.
    pub refused: Option<Refused>,
}

/// Handle of the task. The task ends when the handle is dropped.
pub struct Fleet {
    settings: Arc<Settings>,
    own: watch::Sender<OwnState>,
    revoked: watch::Sender<Option<RevokedList>>,
    task: JoinHandle<()>,
}

impl Fleet {
    /// Starts the task, which calls `tell` for each event. It connects to no member whose certificate
    /// is on the list of revoked ones. Must be called inside a tokio runtime.
    pub fn start(
        settings: Settings,
        revoked: Option<RevokedList>,
        tell: impl Fn(Event) + Send + Sync + 'static,
    ) -> Fleet {
        let settings = Arc::new(settings);
        let (own, changes) = watch::channel(OwnState::default());
        let (revoked, list) = watch::channel(revoked);
        let task = tokio::spawn(session::run(settings.clone(), changes, list, tell));
        Fleet {
            settings,
            own,
            revoked,
            task,
        }
    }

    /// Connects again if the list of revoked certificates is another one.
    pub fn set_revoked(&self, list: Option<RevokedList>) {
        self.revoked.send_if_modified(|revoked| {
            let differs = *revoked != list;
            *revoked = list;
            differs
        });
    }

    /// Sets the state that this host's entry tells.
    pub fn set_own(&self, state: OwnState) {
        self.own.send_if_modified(|own| {
            let differs = *own != state;
            *own = state;
            differs
        });
    }

    /// Returns a way to publish a policy that does not borrow the handle.
    pub fn publisher(&self) -> Publisher {
        Publisher {
            settings: self.settings.clone(),
            revoked: self.revoked.borrow().clone(),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Publishes policies.
pub struct Publisher {
    settings: Arc<Settings>,
    revoked: Option<RevokedList>,
}

impl Publisher {
    /// Writes the text of a policy, by a connection of its own to the first member that answers.
    /// Returns the revision that it has. The text is not checked.
    ///
    /// # Errors
    /// If no member has taken it within some seconds. It may be published nevertheless.
    pub async fn publish(&self, text: String) -> Result<i64, FleetError> {
        client::publish(&self.settings, self.revoked.clone(), text).await
    }
}

impl Settings {
    /// Returns the key of the policy.
    pub fn policy_key(&self) -> String {
        format!("{}/policy", self.prefix)
    }

    fn hosts_prefix(&self) -> String {
        format!("{}/hosts/", self.prefix)
    }

    fn own_key(&self) -> String {
        format!("{}{}", self.hosts_prefix(), self.name)
    }

    fn own_entry(&self, state: &OwnState) -> HostEntry {
        HostEntry {
            addresses: self.addresses.clone(),
            policy: state.policy,
            refused: state.refused.clone(),
        }
    }
}
