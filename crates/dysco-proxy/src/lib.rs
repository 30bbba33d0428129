//! The proxy host's side of a removal: finds the sockets that a proxy relays between (by its
//! shim's report, or by the kernel's counts), checks that the kernel's counts confirm the claim,
//! and closes both sockets without a packet. The crate contains no protocol. It depends on the
//! data plane's agent and on the types of the local API.

mod ask;
mod blocking;
mod claim;
mod close;
mod config;
mod declared;
pub mod diag;
mod duplicate;
pub mod elsewhere;
mod empty;
mod error;
mod held;
mod inbox;
mod infos;
pub mod kernel;
mod labels;
mod listener;
pub mod loader;
mod measure;
mod names;
mod network;
pub mod outside;
mod pair;
mod pipes;
pub mod port;
mod proc_net;
mod process;
mod receipts;
mod registry;
pub mod repair;
mod reports;
mod sender;
mod sending;
mod shim_socket;
mod stalled;
mod sweep;
mod sys;
pub mod table;
#[cfg(test)]
mod tests;
mod transparent;
pub mod tuning;
mod unwanted;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dysco_api::ProcessName;
use dysco_common::FlowKey;
use tokio::sync::broadcast;
use tracing::warn;

use blocking::{blocking, long};
pub use infos::acknowledged;
use port::HeldPort;

use declared::{Declarations, declarations, label_sessions};

pub use config::{HaproxySocket, ProxyConfig};
pub use error::{CloseError, MeasureError, NotTransparent, StartError};
pub use outside::{Basis, Tracked, WatchRules};
pub use pair::{Closed, Direction, End, Measured, Pair, PairEvent, PairId, Witness};
pub use process::ProcessError;
pub use sending::Sending;

/// Result of leaving a pair: its sockets are closed, or not; then its port is held, or not.
pub type Left = (Result<Closed, CloseError>, Option<io::Result<HeldPort>>);

/// Counters of the shim's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShimStats {
    /// Number of processes that sent a hello.
    pub hellos: u64,
    /// Number of reports processed.
    pub reports: u64,
    /// Number of datagrams that were no report.
    pub malformed: u64,
    /// Number of reports whose descriptors were not the sender's sockets that the report names.
    pub refused: u64,
    /// Number of pairs and processes rejected because the table was full.
    pub no_room: u64,
    /// Number of pairs and processes rejected because their user had reached its share.
    pub over_share: u64,
    /// Number of processes whose shims have reported, and that have not ended.
    pub processes: u64,
    /// Number of pairs known now.
    pub pairs: u64,
}

/// Maximum delay of a report behind the kernel's counts.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// Time by which a measurement may exceed its limit.
const STALL: Duration = Duration::from_secs(2);
/// Maximum number of measurements that are restarted because the claim changed.
const NEWER_CLAIMS: usize = 5;

/// The proxy host's side. A clone is cheap. The side stops when the last clone is dropped.
#[derive(Clone)]
pub struct ProxySide(Arc<Inner>);

struct Inner {
    registry: Arc<Mutex<registry::Registry>>,
    modes: Arc<Mutex<listener::Modes>>,
    labels: Arc<Mutex<labels::Labels>>,
    names: Mutex<names::Names>,
    events: broadcast::Sender<PairEvent>,
    declarations: Mutex<Declarations>,
    still_limit: Duration,
    stalled: Arc<stalled::Stalled>,
    _receiver: shim_socket::Receiver,
}

impl ProxySide {
    /// Opens the shim's socket and starts to receive. Must be called within a tokio runtime.
    pub fn start(config: ProxyConfig) -> Result<ProxySide, StartError> {
        let events = broadcast::channel(1024).0;
        let registry = registry::Registry::new(config.max_pairs, events.clone());
        let registry = Arc::new(Mutex::new(registry));
        let receiver = shim_socket::Receiver::start(
            &config.shim_socket,
            config.shim_name.as_deref(),
            Arc::clone(&registry),
        )?;
        let modes = Arc::new(Mutex::new(listener::Modes::default()));
        let labels = Arc::new(Mutex::new(labels::Labels::default()));
        let declarations = Mutex::new(declarations(&config, &modes, &labels));
        Ok(ProxySide(Arc::new(Inner {
            registry,
            modes,
            labels,
            names: Mutex::default(),
            events,
            declarations,
            still_limit: config.still_limit,
            stalled: Arc::default(),
            _receiver: receiver,
        })))
    }

    /// Replaces the declarations, HAProxy sockets and rules of watching. The rest of a
    /// configuration takes effect only at the start.
    pub fn configure(&self, config: &ProxyConfig) {
        // HAProxy's answers about its frontends are requested again.
        *lock(&self.0.modes) = listener::Modes::default();
        let declarations = declarations(config, &self.0.modes, &self.0.labels);
        *lock(&self.0.declarations) = declarations;
    }

    /// Returns all pairs known now.
    pub fn pairs(&self) -> Vec<Pair> {
        self.registry().pairs()
    }

    /// Returns the pair whose client's side has this five-tuple (local is the proxy's end).
    pub fn find(&self, a: &FlowKey) -> Option<Pair> {
        self.registry().find(a)
    }

    /// Returns the pair that has a session on either side (local is the proxy's end).
    pub fn of(&self, session: &FlowKey) -> Option<Pair> {
        self.registry().of(session)
    }

    /// Returns a receiver of events about new, changed and removed pairs. A receiver that lags
    /// should read `pairs` again.
    pub fn subscribe(&self) -> broadcast::Receiver<PairEvent> {
        self.0.events.subscribe()
    }

    /// Keeps the pairs of these five-tuples of either side that counts have shown, for a minute: removals
    /// of their sessions wait.
    pub fn need(&self, keys: impl Iterator<Item = FlowKey>) {
        self.registry().need(keys);
    }

    /// Returns the counters of the shim's socket.
    pub fn stats(&self) -> ShimStats {
        self.registry().stats()
    }

    /// Watches the sockets of processes from outside, as far as the requested sessions need it.
    /// Stores for a while the pairs that the counts have shown.
    pub async fn watch(&self, ask: outside::Ask) -> Result<outside::Found, ProcessError> {
        let side = self.clone();
        let found = long(move || {
            let known = |key: &FlowKey| side.registry().is_sure(key);
            let rules = lock(&side.0.declarations).watch;
            outside::find(&ask, &rules, known)
        });
        let found = found.await?;
        for (_, basis) in &found.sessions {
            if let Ok(Basis::Counts(pair)) = basis {
                self.registry().observe(*pair);
            }
        }
        Ok(found)
    }

    /// Returns a proxy's processes and their sockets. `uid` allows only that user's processes.
    pub async fn look(
        &self,
        name: ProcessName,
        uid: Option<u32>,
    ) -> Result<outside::ProxySockets, ProcessError> {
        let sockets = lock(&self.0.declarations).haproxy.clone();
        for socket in &sockets {
            label_sessions(socket, &self.0.labels).await;
        }
        long(move || outside::ProxySockets::look(&name, uid)).await
    }

    /// Returns the connections of the processes under the shim, reported or not, and of other
    /// processes that may be proxies.
    pub async fn held(&self) -> Vec<elsewhere::Held> {
        let all = self.registry().processes();
        let live = all.into_iter().filter(|(_, process)| !process.ended());
        let pids: Vec<i32> = live.map(|(pid, _)| pid).collect();
        long(move || {
            let mut all = elsewhere::unproven(&pids);
            all.extend(pids.into_iter().map(elsewhere::held));
            all
        })
        .await
    }

    /// Returns the pair of these two sockets, if one process of this host has both open.
    pub async fn holder_of(&self, a: FlowKey, b: FlowKey) -> Option<Pair> {
        long(move || outside::holder_of(a, b)).await
    }

    /// Returns the process that relays a pair, in the form of listings.
    pub fn relayer(&self, pair: &Pair) -> dysco_api::Relayer {
        let name = lock(&self.0.names).of(pair.id.pid, Instant::now());
        dysco_api::Relayer {
            pid: pair.id.pid,
            name: name.comm,
            unit: name.unit,
            listener: pair.a.key.local(),
        }
    }

    /// Returns the proxy's description of a session that it accepted.
    pub fn label(&self, pid: i32, a: &FlowKey) -> Option<dysco_api::Label> {
        let mut label = lock(&self.0.labels).find(pid, &a.remote())?;
        let modes = lock(&self.0.modes);
        label.mode = modes
            .named(pid, &label.frontend)
            .unwrap_or_default()
            .to_owned();
        Some(label)
    }

    /// Waits while the program that counts receiving calls is being attached.
    async fn witness_ready(&self) {
        let receipts = self.registry().receipts();
        while receipts.is_opening() {
            tokio::time::sleep(REPORT_DELAY).await;
        }
    }

    /// Checks the newest claim against the kernel's counts and against the receiving calls that
    /// the kernel has seen. Never stops the proxy.
    pub async fn measure(&self, pair: &Pair) -> Result<Measured, MeasureError> {
        let mut tries = 0;
        loop {
            let now = self.registry().newest(pair);
            let now = now.ok_or(MeasureError::Gone(pair.id))?;
            let (limit, stalled) = (self.0.still_limit, &self.0.stalled);
            stalled.admit(now.id)?;
            let reading = blocking(move || measure::measure(&now, limit));
            // A program may delay the kernel's answers about its own pipes.
            let result = stalled.within(now.id.pid, limit + STALL, reading).await;
            let result = result.unwrap_or(Err(MeasureError::Stalled(now.id)));
            self.witness_ready().await;
            self.received(&now).map_err(MeasureError::Received)?;
            let lie = matches!(&result, Err(MeasureError::DeltaMismatch { .. }));
            if !lie {
                return result;
            }
            // The shim reports a byte after it was written. The report may be in transit.
            tokio::time::sleep(REPORT_DELAY).await;
            tries += 1;
            if tries > NEWER_CLAIMS || self.registry().newest(pair) == Some(now) {
                if let Err(e) = &result {
                    warn!(pair = %pair.id, "{e}");
                }
                return result;
            }
        }
    }

    /// Checks the newest claims of many pairs, of which most are silent, in one pass. `None` stands
    /// for a pair that has to be measured by itself.
    pub async fn measure_many(
        &self,
        pairs: Vec<Pair>,
    ) -> Vec<Option<Result<Measured, MeasureError>>> {
        let newest: Vec<Option<Pair>> = {
            let registry = self.registry();
            pairs.iter().map(|pair| registry.newest(pair)).collect()
        };
        let stalled = &self.0.stalled;
        let known = newest.iter().flatten();
        let known: Vec<Pair> = known
            .filter(|p| stalled.admit(p.id).is_ok())
            .copied()
            .collect();
        let of = known.clone();
        let reading = blocking(move || measure::glance(&of));
        // The pass waits for the kernel's answers about all processes: none is stalled by itself.
        let seen = tokio::time::timeout(self.0.still_limit + STALL, reading).await;
        self.witness_ready().await;
        let seen = known.into_iter().zip(seen.unwrap_or_default());
        let seen: HashMap<PairId, Measured> = seen
            .filter_map(|(pair, measured)| Some((pair.id, measured?)))
            .collect();
        let result = |pair: Option<Pair>| {
            let pair = pair?;
            let measured = *seen.get(&pair.id)?;
            let received = self.received(&pair).map_err(MeasureError::Received);
            Some(received.map(|()| measured))
        };
        newest.into_iter().map(result).collect()
    }

    /// Returns the sending parameters (windows and segment lengths) of the sockets of each pair,
    /// of side A and of side B. `None` stands for a pair whose sockets no longer exist.
    pub async fn sending(&self, pairs: Vec<Pair>) -> Vec<Option<[Sending; 2]>> {
        blocking(move || measure::sending(&pairs)).await
    }

    /// Makes the kernel send a packet on both of the pair's sessions. The ends answer, which
    /// shows the state of a silent session.
    pub async fn ask_for_packets(&self, pair: &Pair) -> std::io::Result<()> {
        let this = *pair;
        blocking(move || ask::for_packets(&this)).await
    }

    /// Closes both sockets of each pair without a packet, and holds the port by which the pair's
    /// second session was opened, before the kernel gives it to another socket. Must be called after
    /// the tombstones are set. May be called repeatedly.
    pub async fn leave(&self, pairs: Vec<Pair>) -> Vec<Left> {
        let all = pairs.clone();
        let left = blocking(move || {
            let mut processes = duplicate::Processes::default();
            let leave = |pair: &Pair| {
                let closed = close::close_silently(pair, &mut processes);
                let port = closed.is_ok().then(|| HeldPort::hold(&pair.b.key));
                (closed, port)
            };
            all.iter().map(leave).collect::<Vec<Left>>()
        });
        let left = left.await;
        let mut registry = self.registry();
        for (pair, (closed, _)) in pairs.iter().zip(&left) {
            if closed.is_ok() && registry.newest(pair).is_some() {
                registry.remove(&pair.id);
            }
        }
        left
    }

    fn registry(&self) -> MutexGuard<'_, registry::Registry> {
        lock(&self.0.registry)
    }
}

/// Locks a mutex, even if poisoned. No lock is held while its data is inconsistent.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
