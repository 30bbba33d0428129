//! Task that sends to one address: connects on demand, and drops messages that cannot be sent.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dysco_explain::Cause;
use quinn::Endpoint;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::error::DownReason;
use super::frame;
use super::link::{Frames, Link, close, down_reason};
use super::registry::Registry;
use super::stats::{add, count};

/// Maximum duration of a handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(1);
/// Time after which a task with nothing to send ends.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum number of waiting messages that are given to a connection at once.
const BATCH: usize = 64;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// Time before the end of a peer's certificate, in seconds, at which a connection with its next
/// certificate is made.
const AHEAD: u64 = 60;

/// Reason for closing a connection, as reported to both ends.
const EXPIRED: &str = "its certificate has expired";

/// Queues a message.
pub(crate) fn send(registry: &Arc<Registry>, to: IpAddr, message: Vec<u8>) {
    if message.is_empty() || message.len() > frame::MAX_MESSAGE {
        count(&registry.stats.dropped_bad_length);
        return;
    }
    queue(registry, to, message);
}

/// Makes a connection without sending anything: an empty message is not sent, but needs a
/// connection.
pub(crate) fn reach(registry: &Arc<Registry>, to: IpAddr) {
    queue(registry, to, Vec::new());
}

/// Queues a message, and starts the peer's task if there is none.
fn queue(registry: &Arc<Registry>, to: IpAddr, message: Vec<u8>) {
    if let Some(queue) = registry.queue(to, message) {
        let task = run(Arc::clone(registry), to, queue);
        registry.runtime.spawn(task);
    }
}

/// Sends queued messages until the queue is closed, or idle for a long time.
async fn run(registry: Arc<Registry>, to: IpAddr, mut queue: mpsc::Receiver<Vec<u8>>) {
    let mut backoff = FIRST_BACKOFF;
    let mut is_down = false;
    let mut batch = Vec::new();
    loop {
        batch.clear();
        match timeout(IDLE, queue.recv_many(&mut batch, BATCH)).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(_) if registry.retire(to, &queue) => return,
            Err(_) => continue,
        }
        match link(&registry, to).await {
            Ok(link) => {
                backoff = FIRST_BACKOFF;
                is_down = false;
                write(&registry, &link, &batch).await;
            }
            Err(reason) => {
                // Each message gets one attempt: the messages that waited with it are as old.
                let mut dropped = said(&batch);
                while let Ok(message) = queue.try_recv() {
                    dropped += said(&[message]);
                }
                // The attempts are repeated as long as messages arrive: an operator reads of it
                // once.
                if std::mem::replace(&mut is_down, true) {
                    tracing::debug!(address = %to, %reason, "failed to reach peer again");
                } else {
                    tracing::info!(address = %to, %reason, "failed to reach peer");
                }
                registry.unreachable(to, dropped, reason).await;
                sleep(backoff).await;
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        }
    }
}

/// Returns the number of messages: an empty one only asks for the connection.
pub(crate) fn said(batch: &[Vec<u8>]) -> usize {
    batch.iter().filter(|m| !m.is_empty()).count()
}

async fn write(registry: &Registry, link: &Link, batch: &[Vec<u8>]) {
    let mut frames = Vec::with_capacity(batch.iter().map(|m| m.len() + 2).sum());
    for message in batch {
        frame::append(&mut frames, message);
    }
    if frames.is_empty() {
        return;
    }
    match link.write(&frames).await {
        Ok(()) => add(&registry.stats.messages_sent, said(batch)),
        // The reader of the connection knows the reason, and reports it.
        Err(_) => add(&registry.stats.dropped_unreachable, said(batch)),
    }
}

async fn link(registry: &Arc<Registry>, to: IpAddr) -> Result<Arc<Link>, DownReason> {
    if let Some(link) = registry.link(to) {
        return Ok(link);
    }
    // The semaphore is never closed.
    let _place = registry.dials.acquire().await;
    let late = DownReason::NoAnswer(HANDSHAKE.as_millis() as u64);
    let handshake = timeout(HANDSHAKE, connect(registry, to)).await;
    let own = match handshake.unwrap_or(Err(late)) {
        Ok((link, frames)) => Ok(join(registry, link, frames).await),
        Err(reason) => Err(reason),
    };
    // The peer may have connected meanwhile: all messages take the older connection.
    registry.link(to).map_or(own, Ok)
}

/// Adds a new connection, which ends with its peer's certificate.
async fn join(registry: &Arc<Registry>, link: Link, frames: Frames) -> Arc<Link> {
    let link = registry.add(link, frames).await;
    let task = expire(Arc::clone(registry), Arc::clone(&link));
    registry.runtime.spawn(task);
    link
}

/// Closes a connection when its peer's certificate expires. A connection with the peer's next
/// certificate is made before, if there is one.
async fn expire(registry: Arc<Registry>, mut link: Arc<Link>) {
    loop {
        let end = link.validity.not_after;
        if !link.lasts_until(end.saturating_sub(AHEAD)).await {
            return;
        }
        let next = renewed(&registry, &link).await;
        if link.lasts_until(end + 1).await {
            link.close(close::EXPIRED, EXPIRED);
        }
        match next {
            Some(next) => link = next,
            None => return,
        }
    }
}

/// Makes a connection to the same peer, if it has a certificate that is valid for longer.
async fn renewed(registry: &Arc<Registry>, link: &Link) -> Option<Arc<Link>> {
    let via = link.via();
    let first = link.identity.addresses.first().copied()?;
    let to = if link.identity.holds(via) { via } else { first };
    let (next, frames) = timeout(HANDSHAKE, connect(registry, to)).await.ok()?.ok()?;
    if next.validity.not_after <= link.validity.not_after {
        return None;
    }
    Some(registry.add(next, frames).await)
}

async fn connect(registry: &Registry, to: IpAddr) -> Result<(Link, Frames), DownReason> {
    if registry.endpoints.is_empty() {
        return Err(DownReason::NoChannel);
    }
    let endpoint = endpoint_for(&registry.endpoints, to).ok_or_else(|| {
        let cause = Cause::new("[control] listen has no address of its family");
        DownReason::Unreachable(cause.hint("add one, or leave it out for all addresses"))
    })?;
    let address = SocketAddr::new(to, registry.peer_port);
    let connecting = endpoint
        .connect_with(registry.client(), address, &to.to_string())
        .map_err(|e| DownReason::Unreachable(Cause::new(e)))?;
    let connection = connecting.await.map_err(|e| down_reason(&e))?;
    Link::establish(connection).await
}

/// Returns a socket that can send to an address: of its family, or of both.
fn endpoint_for(endpoints: &[Endpoint], to: IpAddr) -> Option<&Endpoint> {
    let fits = |endpoint: &&Endpoint| match endpoint.local_addr() {
        Ok(SocketAddr::V6(own)) => to.is_ipv6() || own.ip().is_unspecified(),
        Ok(SocketAddr::V4(_)) => to.is_ipv4(),
        Err(_) => false,
    };
    endpoints.iter().find(fits)
}

/// Accepts a peer that connects.
pub(crate) async fn accept(registry: Arc<Registry>, incoming: quinn::Incoming) {
    let from = incoming.remote_address();
    let handshake = async {
        let connecting = incoming.accept().map_err(|e| down_reason(&e))?;
        let connection = connecting.await.map_err(|e| down_reason(&e))?;
        Link::establish(connection).await
    };
    let done = timeout(HANDSHAKE, handshake).await;
    match done.unwrap_or(Err(DownReason::Silent)) {
        Ok((link, frames)) => {
            join(&registry, link, frames).await;
        }
        Err(reason) => {
            count(&registry.stats.handshakes_failed);
            tracing::info!(%from, %reason, "turned a peer away");
        }
    }
}
