//! Registry of the present connections and queues.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::{ClientConfig, Endpoint, VarInt};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

use super::error::DownReason;
use super::frame::{self, FrameError};
use super::link::{Frames, Link, close};
use super::stats::{Stats, add, count};
use super::tls::{Judge, Tls, Verdict};
use super::{Event, Incoming, PeerStatus, peer};

/// Maximum number of messages that wait for a peer.
const QUEUE: usize = 4096;
/// Maximum number of addresses to which messages wait, or were sent in the last minutes. Peers name
/// some of them.
const PEERS: usize = 4096;
/// Maximum number of handshakes in progress that this host has begun.
const DIALS: usize = 256;
/// Maximum number of connections of one certificate: one in each direction, and as many that are
/// about to be recognised as dead.
const LINKS_PER_PEER: usize = 4;

/// Reasons for cutting off a peer, as reported to both ends.
const REVOKED: &str = "its certificate is revoked";
const FOREIGN: &str = "its certificate is of another authority";

/// State that all tasks of the channel share.
pub(crate) struct Registry {
    pub endpoints: Vec<Endpoint>,
    pub peer_port: u16,
    pub stats: Stats,
    events: mpsc::Sender<Event>,
    pub runtime: Handle,
    /// Places for handshakes that this host begins.
    pub dials: Semaphore,
    tables: Mutex<Tables>,
}

struct Tables {
    client: ClientConfig,
    judge: Judge,
    /// Connections by each address of the peer's certificate, oldest first.
    links: HashMap<IpAddr, Vec<Arc<Link>>>,
    queues: HashMap<IpAddr, mpsc::Sender<Vec<u8>>>,
    /// Reasons for which peers with a queue are not connected.
    reasons: HashMap<IpAddr, DownReason>,
    closed: bool,
}

impl Tables {
    /// Records why a peer is not connected. A peer without a queue is not listed: its reason would
    /// stay for ever.
    fn is_down(&mut self, peer: IpAddr, reason: &DownReason) {
        if self.queues.contains_key(&peer) {
            self.reasons.insert(peer, reason.clone());
        }
    }

    fn verdict(&self, link: &Link) -> Verdict {
        self.judge.verdict(&link.certificate, link.validity)
    }

    /// Closes a connection whose certificate is accepted no more.
    fn refuse(&self, link: &Link) {
        if !link.is_open() {
            return;
        }
        match self.verdict(link) {
            Verdict::Good => {}
            Verdict::Revoked => link.close(close::REVOKED, REVOKED),
            Verdict::Foreign => link.close(close::FOREIGN, FOREIGN),
        }
    }
}

impl Registry {
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        tls: &Tls,
        peer_port: u16,
        events: mpsc::Sender<Event>,
    ) -> Arc<Registry> {
        Arc::new(Registry {
            endpoints,
            peer_port,
            stats: Stats::default(),
            events,
            runtime: Handle::current(),
            dials: Semaphore::new(DIALS),
            tables: Mutex::new(Tables {
                client: tls.client.clone(),
                judge: tls.judge.clone(),
                links: HashMap::new(),
                queues: HashMap::new(),
                reasons: HashMap::new(),
                closed: false,
            }),
        })
    }

    /// Accepts and connects by other credentials from now on. Existing connections continue, except
    /// those whose certificate is now revoked, or of another authority. Returns the names of the keys
    /// of those that continue.
    pub(crate) fn take_up(&self, tls: Tls) -> HashSet<u64> {
        let mut tables = self.tables();
        for endpoint in &self.endpoints {
            endpoint.set_server_config(Some(tls.server.clone()));
        }
        (tables.client, tables.judge) = (tls.client, tls.judge);
        let all = || tables.links.values().flatten();
        all().for_each(|link| tables.refuse(link));
        let open = all().filter(|link| link.is_open());
        open.filter_map(|link| Some(link.key()?.0)).collect()
    }

    /// Returns the QUIC configuration with which this host connects.
    pub(crate) fn client(&self) -> ClientConfig {
        self.tables().client.clone()
    }

    // A panic elsewhere leaves the tables consistent: each change is one call.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. Returns the queue of a peer that had none: it needs a task.
    pub(crate) fn queue(&self, to: IpAddr, message: Vec<u8>) -> Option<mpsc::Receiver<Vec<u8>>> {
        let mut tables = self.tables();
        if tables.closed {
            count(&self.stats.dropped_unreachable);
            return None;
        }
        if tables.queues.len() >= PEERS && !tables.queues.contains_key(&to) {
            add(&self.stats.dropped_unreachable, peer::said(&[message]));
            return None;
        }
        let mut new = None;
        let queue = tables.queues.entry(to).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            new = Some(receiver);
            sender
        });
        match queue.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => count(&self.stats.dropped_queue_full),
            Err(TrySendError::Closed(_)) => count(&self.stats.dropped_unreachable),
        }
        new
    }

    /// Ends a peer's task, unless a message was queued meanwhile.
    pub(crate) fn retire(&self, to: IpAddr, queue: &mpsc::Receiver<Vec<u8>>) -> bool {
        let mut tables = self.tables();
        let idle = queue.is_empty();
        if idle {
            tables.queues.remove(&to);
            tables.reasons.remove(&to);
        }
        idle
    }

    /// Returns the oldest connection to an address. All messages take it while it lives, so that
    /// they stay in order.
    pub(crate) fn link(&self, to: IpAddr) -> Option<Arc<Link>> {
        let tables = self.tables();
        let links = tables.links.get(&to)?;
        links.iter().find(|link| link.is_open()).cloned()
    }

    /// Adds a new connection, and starts to read from it.
    pub(crate) async fn add(self: &Arc<Registry>, link: Link, frames: Frames) -> Arc<Link> {
        count(&self.stats.connections);
        let link = Arc::new(link);
        for address in self.insert(&link) {
            tracing::debug!(%address, "peer is there");
            self.tell(Event::PeerUp(address)).await;
        }
        if let Some((id, key)) = link.key() {
            let (peer, via) = (Arc::clone(&link.identity), link.via());
            self.tell(Event::Key { peer, via, id, key }).await;
        }
        let task = Arc::clone(self).read(Arc::clone(&link), frames);
        self.runtime.spawn(task);
        link
    }

    /// Adds a connection. Returns the addresses that had no connection before.
    fn insert(&self, link: &Arc<Link>) -> Vec<IpAddr> {
        let mut tables = self.tables();
        if tables.closed {
            link.close(close::STOPPING, "dyscod stops");
        }
        // The list may be newer than the handshake.
        tables.refuse(link);
        let mut new = Vec::new();
        for &address in &link.identity.addresses {
            tables.reasons.remove(&address);
            let links = tables.links.entry(address).or_default();
            if links.is_empty() {
                new.push(address);
            }
            if links.len() >= LINKS_PER_PEER {
                links[0].close(close::TOO_MANY, "too many connections");
            }
            links.push(Arc::clone(link));
        }
        new
    }

    async fn read(self: Arc<Registry>, link: Arc<Link>, mut frames: Frames) {
        let reason = loop {
            match frame::read(&mut frames).await {
                Ok(Some(message)) if message.is_empty() => {
                    count(&self.stats.frames_empty);
                    break link.refuse_framing("a frame is empty");
                }
                Ok(Some(message)) => {
                    count(&self.stats.messages_received);
                    let incoming = Incoming {
                        from: Arc::clone(&link.identity),
                        via: link.via(),
                        message,
                    };
                    self.tell(Event::Message(incoming)).await;
                }
                Ok(None) => break link.refuse_framing("its stream ended"),
                Err(FrameError::Oversized) => {
                    count(&self.stats.frames_oversized);
                    break link.refuse_framing("a frame is too long");
                }
                Err(FrameError::Truncated) => {
                    count(&self.stats.frames_truncated);
                    break link.refuse_framing("a frame is cut short");
                }
                Err(FrameError::Broken) => break link.why_closed().await,
            }
        };
        if let Some((id, _)) = link.key() {
            // A revoked peer may close the connection before this host does.
            let ended = match self.tables().verdict(&link) {
                Verdict::Good => Event::KeyGone,
                Verdict::Revoked | Verdict::Foreign => Event::KeyRevoked,
            };
            self.tell(ended(id)).await;
        }
        for address in self.remove(&link, &reason) {
            tracing::info!(%address, %reason, "peer is gone");
            self.tell(Event::PeerDown(address, reason.clone())).await;
        }
    }

    /// Removes a connection. Returns the addresses that have no connection any more.
    fn remove(&self, link: &Arc<Link>, reason: &DownReason) -> Vec<IpAddr> {
        let mut tables = self.tables();
        let mut gone = Vec::new();
        for &address in &link.identity.addresses {
            if let Some(links) = tables.links.get_mut(&address) {
                links.retain(|other| !Arc::ptr_eq(other, link));
                if links.is_empty() {
                    tables.links.remove(&address);
                    tables.is_down(address, reason);
                    gone.push(address);
                }
            }
        }
        gone
    }

    /// Reports that a connection to a peer could not be made.
    pub(crate) async fn unreachable(&self, to: IpAddr, dropped: usize, reason: DownReason) {
        add(&self.stats.dropped_unreachable, dropped);
        count(&self.stats.handshakes_failed);
        self.tables().is_down(to, &reason);
        self.tell(Event::PeerDown(to, reason)).await;
    }

    async fn tell(&self, event: Event) {
        // The receiver is gone only when the daemon ends.
        let _ = self.events.send(event).await;
    }

    pub(crate) fn peers(&self) -> Vec<PeerStatus> {
        let tables = self.tables();
        let known: BTreeSet<_> = tables.links.keys().chain(tables.queues.keys()).collect();
        let status = |address: &IpAddr| {
            let links = tables.links.get(address).into_iter().flatten();
            let link = links.into_iter().find(|link| link.is_open());
            // The peer may have connected while an attempt of this host failed.
            let reason = tables.reasons.get(address).filter(|_| link.is_none());
            PeerStatus {
                address: *address,
                up: link.is_some(),
                rtt: link.map(|link| link.rtt()),
                reason: reason.cloned(),
            }
        };
        known.into_iter().map(status).collect()
    }

    pub(crate) fn local_addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.endpoints.iter().map(Endpoint::local_addr);
        addresses.filter_map(Result::ok).collect()
    }

    /// Closes everything, without waiting.
    pub(crate) fn close(&self) {
        let mut tables = self.tables();
        tables.closed = true;
        tables.queues.clear();
        drop(tables);
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(close::STOPPING), b"dyscod stops");
        }
    }

    pub(crate) async fn shutdown(&self) {
        self.close();
        for endpoint in &self.endpoints {
            // Peers that are gone do not delay the daemon.
            let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
        }
    }
}
