//! The proxy host's side of a removal: which sockets a proxy relays between (by its
//! shim's word, or by the kernel's counts from outside), whether the kernel's numbers
//! confirm it, and closing both without a packet. No protocol inside: the crate depends
//! on the data plane's agent and on the words of the local API.

mod ask;
mod close;
pub mod elsewhere;
mod empty;
mod error;
mod held;
mod inbox;
mod kernel;
mod labels;
mod listener;
mod measure;
mod names;
pub mod outside;
mod pair;
mod pipes;
pub mod port;
mod process;
mod receipts;
mod registry;
mod reports;
mod sending;
mod shim_socket;
mod stalled;
mod sweep;
mod sys;
pub mod table;
#[cfg(test)]
mod tests;
mod theirs;
mod unasked;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dysco_api::ProcessName;
use dysco_common::FlowKey;
use dysco_scheduling::spawn_long;
use tokio::sync::broadcast;
use tracing::warn;

pub use error::{CloseError, MeasureError, NotTransparent, StartError};
pub use outside::{Basis, Tracked, WatchRules};
pub use pair::{Closed, Direction, End, Measured, Pair, PairEvent, PairId, Witness};
pub use process::ProcessError;
pub use sending::Sending;

/// How the proxy's side is set up.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where shims send their reports.
    pub shim_socket: PathBuf,
    /// Listening addresses whose sessions the operator declares transparent
    /// from their first byte after the set-up. An unspecified address
    /// (`0.0.0.0`, `::`) stands for every address of its port.
    pub transparent_listeners: Vec<SocketAddr>,
    /// HAProxy runtime sockets to ask for the mode of each frontend.
    pub haproxy: Vec<HaproxySocket>,
    /// Pairs known at once, over all processes.
    pub max_pairs: usize,
    /// How long a measurement may look for a still moment.
    pub still_limit: Duration,
    /// How closely processes without the shim are watched.
    pub watch: WatchRules,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            shim_socket: PathBuf::from("/run/dysco/shim.sock"),
            transparent_listeners: Vec::new(),
            haproxy: Vec::new(),
            max_pairs: 65_536,
            still_limit: Duration::from_secs(2),
            watch: WatchRules::default(),
        }
    }
}

/// A HAProxy runtime socket (`stats socket`).
#[derive(Clone, Debug)]
pub struct HaproxySocket {
    /// Its path.
    pub path: PathBuf,
    /// Frontend name to listening address, for a HAProxy whose statistics do
    /// not name addresses (no `option socket-stats`).
    pub frontends: Vec<(String, SocketAddr)>,
}

/// What the shim's socket has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShimStats {
    /// Processes that said hello.
    pub hellos: u64,
    /// Reports taken.
    pub reports: u64,
    /// Datagrams that were no report.
    pub malformed: u64,
    /// Reports whose descriptors were not the sockets meant, of the sender.
    pub refused: u64,
    /// Pairs and processes not kept since there was no room.
    pub no_room: u64,
    /// Pairs and processes not kept since their user has its share already.
    pub over_share: u64,
    /// Pairs known now.
    pub pairs: u64,
}

/// How often HAProxy is asked for its modes.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long a report may be on its way when the kernel is ahead of it.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// How much longer than its limit a measurement may take.
const STALL: Duration = Duration::from_secs(2);
/// How often a measurement begins again since the claim had changed.
const NEWER_CLAIMS: usize = 5;

/// The proxy host's side. Cheap to clone; stops when the last clone is dropped.
#[derive(Clone)]
pub struct ProxySide(Arc<Inner>);

struct Inner {
    registry: Arc<Mutex<registry::Registry>>,
    modes: Arc<Mutex<listener::Modes>>,
    labels: Arc<Mutex<labels::Labels>>,
    names: Mutex<names::Names>,
    events: broadcast::Sender<PairEvent>,
    told: Mutex<Told>,
    still_limit: Duration,
    stalled: Arc<stalled::Stalled>,
    _receiver: shim_socket::Receiver,
}

/// What the operator says of proxies, which may change.
struct Told {
    listeners: Vec<SocketAddr>,
    haproxy: Vec<HaproxySocket>,
    watch: WatchRules,
    /// Ask HAProxy for the modes of its frontends.
    asking: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Told {
    fn drop(&mut self) {
        for task in &self.asking {
            task.abort();
        }
    }
}

impl ProxySide {
    /// Opens the shim's socket and starts to listen. Must be called within a
    /// tokio runtime.
    pub fn start(config: ProxyConfig) -> Result<ProxySide, StartError> {
        let events = broadcast::channel(1024).0;
        let registry = registry::Registry::new(config.max_pairs, events.clone());
        let registry = Arc::new(Mutex::new(registry));
        let receiver = shim_socket::Receiver::start(&config.shim_socket, Arc::clone(&registry))?;
        let modes = Arc::new(Mutex::new(listener::Modes::default()));
        let labels = Arc::new(Mutex::new(labels::Labels::default()));
        let told = Mutex::new(told(&config, &modes, &labels));
        Ok(ProxySide(Arc::new(Inner {
            registry,
            modes,
            labels,
            names: Mutex::default(),
            events,
            told,
            still_limit: config.still_limit,
            stalled: Arc::default(),
            _receiver: receiver,
        })))
    }

    /// Goes by other declarations, sockets of HAProxy and rules of watching from now on; the
    /// rest of a configuration is for the start.
    pub fn configure(&self, config: &ProxyConfig) {
        // What HAProxy has said of its frontends is asked anew.
        *lock(&self.0.modes) = listener::Modes::default();
        let told = told(config, &self.0.modes, &self.0.labels);
        *lock(&self.0.told) = told;
    }

    /// All pairs known now.
    pub fn pairs(&self) -> Vec<Pair> {
        self.registry().pairs()
    }

    /// The pair whose client's side has this five-tuple (local is the proxy's).
    pub fn find(&self, a: &FlowKey) -> Option<Pair> {
        self.registry().find(a)
    }

    /// The pair that has a session on either side (local is the proxy's).
    pub fn of(&self, session: &FlowKey) -> Option<Pair> {
        self.registry().of(session)
    }

    /// Pairs as they come, change and go. A receiver that lags should read
    /// `pairs` again.
    pub fn subscribe(&self) -> broadcast::Receiver<PairEvent> {
        self.0.events.subscribe()
    }

    /// What the shim's socket has seen.
    pub fn stats(&self) -> ShimStats {
        self.registry().stats()
    }

    /// Watches the sockets of processes from outside, as the asked ones need,
    /// and remembers for a while the pairs that the counts have shown.
    pub async fn watch(&self, ask: outside::Ask) -> Result<outside::Found, ProcessError> {
        let side = self.clone();
        let found = long(move || {
            let known = |key: &FlowKey| side.registry().is_sure(key);
            let has_shim = |pid| {
                let process = side.registry().process(pid);
                process.is_some_and(|p| !p.ended())
            };
            let rules = lock(&side.0.told).watch;
            outside::find(&ask, &rules, known, has_shim)
        });
        let found = found.await?;
        for (_, basis) in &found.sessions {
            if let Ok(Basis::Counts(pair)) = basis {
                self.registry().show(*pair);
            }
        }
        Ok(found)
    }

    /// A proxy's processes and their sockets; with `uid`, only that user's.
    pub async fn look(
        &self,
        name: ProcessName,
        uid: Option<u32>,
    ) -> Result<outside::Scene, ProcessError> {
        let sockets = lock(&self.0.told).haproxy.clone();
        for socket in &sockets {
            label_sessions(socket, &self.0.labels).await;
        }
        long(move || outside::Scene::look(&name, uid)).await
    }

    /// Connections of the processes under the shim, reported or not, and of others that may be
    /// proxies.
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

    /// The pair of these two sockets, if one process of this host has both.
    pub async fn holder_of(&self, a: FlowKey, b: FlowKey) -> Option<Pair> {
        long(move || outside::holder_of(a, b)).await
    }

    /// The process that relays a pair, as listings show it.
    pub fn relayer(&self, pair: &Pair) -> dysco_api::Relayer {
        let name = lock(&self.0.names).of(pair.id.pid, Instant::now());
        dysco_api::Relayer {
            pid: pair.id.pid,
            name: name.comm,
            unit: name.unit,
            listener: pair.a.key.local(),
        }
    }

    /// What the proxy itself says of a session that it accepted.
    pub fn label(&self, pid: i32, a: &FlowKey) -> Option<dysco_api::Label> {
        let mut label = lock(&self.0.labels).find(pid, &a.remote())?;
        let modes = lock(&self.0.modes);
        label.mode = modes
            .named(pid, &label.frontend)
            .unwrap_or_default()
            .to_owned();
        Some(label)
    }

    /// May this pair lose its proxy, by what is claimed of it? Judged on the
    /// newest claim, not on the one in `pair`. The claim is not checked here.
    /// With `word`, the operator has just vouched for the listener.
    pub fn transparent(&self, pair: &Pair, word: bool) -> Result<(), NotTransparent> {
        let now = self.registry().newest(pair);
        let now = now.ok_or(NotTransparent::Gone(pair.id))?;
        if now.witness == Witness::Counts {
            return match word || self.is_declared(&now.a.key.local()) {
                true => Ok(()),
                false => Err(NotTransparent::OnlyCounts {
                    listener: now.a.key.local(),
                    forward: now.forward.delta,
                    reverse: now.reverse.delta,
                }),
            };
        }
        let direction = match (now.forward.endless, now.reverse.endless) {
            (true, true) => return Ok(()),
            (false, false) => return Err(NotTransparent::NotSpliced),
            (true, false) => "reverse",
            (false, true) => "forward",
        };
        if word {
            return Ok(());
        }
        self.vouched(&now, direction)
    }

    /// The direction that has not spliced: does anyone vouch for the listener?
    fn vouched(&self, pair: &Pair, direction: &'static str) -> Result<(), NotTransparent> {
        let listener = pair.a.key.local();
        if self.is_declared(&listener) {
            return Ok(());
        }
        match lock(&self.0.modes).of(pair.id.pid, &listener) {
            Some(m) if m.mode == "tcp" => Ok(()),
            Some(m) => Err(NotTransparent::Parsed {
                direction,
                listener,
                frontend: m.frontend.clone(),
                mode: m.mode.clone(),
            }),
            None => Err(NotTransparent::OneDirection {
                direction,
                listener,
            }),
        }
    }

    fn is_declared(&self, listener: &SocketAddr) -> bool {
        listener::declared(&lock(&self.0.told).listeners, listener)
    }

    /// Waits for the program that counts receiving calls, while it is being attached.
    async fn witness_ready(&self) {
        let receipts = self.registry().receipts();
        while receipts.is_opening() {
            tokio::time::sleep(REPORT_DELAY).await;
        }
    }

    /// Has the kernel seen the proxy read what its shim calls spliced?
    pub fn received(&self, pair: &Pair) -> Result<(), NotTransparent> {
        let (receipts, now) = {
            let registry = self.registry();
            (registry.receipts(), registry.newest(pair))
        };
        let against = now.and_then(|now| receipts.against(&now));
        against.map_or(Ok(()), |(direction, calls)| {
            Err(NotTransparent::Received { direction, calls })
        })
    }

    /// Checks the newest claim against the kernel's own numbers, and against what it has
    /// seen the proxy read. Never stops the proxy.
    pub async fn measure(&self, pair: &Pair) -> Result<Measured, MeasureError> {
        let mut tries = 0;
        loop {
            let now = self.registry().newest(pair);
            let now = now.ok_or(MeasureError::Gone(pair.id))?;
            let (limit, stalled) = (self.0.still_limit, &self.0.stalled);
            stalled.admit(now.id)?;
            let reading = blocking(move || measure::measure(&now, limit));
            // A program may stall the kernel's answers about its own pipes.
            let result = stalled.within(now.id.pid, limit + STALL, reading).await;
            let result = result.unwrap_or(Err(MeasureError::Stalled(now.id)));
            self.witness_ready().await;
            self.received(&now).map_err(MeasureError::Received)?;
            let lie = matches!(&result, Err(MeasureError::DeltaMismatch { .. }));
            if !lie {
                return result;
            }
            // The shim tells of a byte after it was written: let it.
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

    /// Reads by which windows and segment lengths both sockets of each pair send, of side A and
    /// of side B. `None` stands for a pair whose sockets are gone.
    pub async fn sending(&self, pairs: Vec<Pair>) -> Vec<Option<[Sending; 2]>> {
        blocking(move || pairs.iter().map(measure::sending).collect()).await
    }

    /// Has the kernel send a packet on both of the pair's sessions, which their
    /// ends answer: what is silent may be heard then.
    pub async fn ask_for_packets(&self, pair: &Pair) -> std::io::Result<()> {
        let this = *pair;
        blocking(move || ask::for_packets(&this)).await
    }

    /// Closes both sockets without a packet. To be called behind tombstones;
    /// may be called again.
    pub async fn close_silently(&self, pair: &Pair) -> Result<Closed, CloseError> {
        let this = *pair;
        let closed = blocking(move || close::close_silently(&this)).await?;
        let mut registry = self.registry();
        if registry.newest(pair).is_some() {
            registry.remove(&pair.id);
        }
        Ok(closed)
    }

    fn registry(&self) -> MutexGuard<'_, registry::Registry> {
        lock(&self.0.registry)
    }
}

/// No lock here is held while its data is half changed.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what blocks off the runtime's own threads, in turns that come soon.
async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    ended(tokio::task::spawn_blocking(f)).await
}

/// Runs what takes long off the runtime's own threads, in turns like everybody's.
async fn long<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    ended(spawn_long(f)).await
}

async fn ended<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(v) => v,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        // The runtime is stopping: nobody waits for the answer.
        Err(_) => std::future::pending().await,
    }
}

/// Asks HAProxy for the names of its sessions. Without an answer they have none.
async fn label_sessions(socket: &HaproxySocket, labels: &Mutex<labels::Labels>) {
    if let Ok((pid, found)) = labels::ask(socket).await {
        lock(labels).put(pid, found);
    }
}

fn told(
    config: &ProxyConfig,
    modes: &Arc<Mutex<listener::Modes>>,
    labels: &Arc<Mutex<labels::Labels>>,
) -> Told {
    let ask = |socket: &HaproxySocket| {
        let (modes, labels) = (Arc::clone(modes), Arc::clone(labels));
        tokio::spawn(keep_asking(socket.clone(), modes, labels))
    };
    Told {
        listeners: config.transparent_listeners.clone(),
        haproxy: config.haproxy.clone(),
        watch: config.watch,
        asking: config.haproxy.iter().map(ask).collect(),
    }
}

async fn keep_asking(
    socket: HaproxySocket,
    modes: Arc<Mutex<listener::Modes>>,
    labels: Arc<Mutex<labels::Labels>>,
) {
    let mut complained = false;
    loop {
        if lock(&labels).wanted() {
            label_sessions(&socket, &labels).await;
        }
        match listener::ask(&socket).await {
            Ok((pid, found)) => {
                lock(&modes).put(pid, found);
                complained = false;
            }
            Err(e) if !complained => {
                warn!(path = %socket.path.display(), error = %e,
                    "cannot ask HAProxy for the modes of its frontends: is `stats socket` set, with level operator?");
                complained = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
