//! Sockets of the channel, and the peers that connect to them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::{Endpoint, TokioRuntime};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{Semaphore, mpsc};

use super::error::ControlError;
use super::registry::Registry;
use super::stats::count;
use super::tls::{self, Tls};
use super::{ControlConfig, Event, peer};

/// Maximum number of incoming handshakes in progress.
const HANDSHAKES: usize = 256;
/// Number of handshakes from which senders must prove their address first.
const PROVE_FROM: usize = 32;
/// Number of events that wait for the engine before readers wait.
const EVENTS: usize = 4096;

/// Opens the sockets and starts to accept.
pub(crate) fn start(
    config: ControlConfig,
) -> Result<(Arc<Registry>, mpsc::Receiver<Event>), ControlError> {
    let tls = Tls::new(&config.credentials)?;
    let mut endpoints = Vec::new();
    for &address in &config.listen {
        let endpoint = bind(address).and_then(|socket| {
            let endpoint = tls::endpoint(&config.credentials);
            let runtime = Arc::new(TokioRuntime);
            Endpoint::new(endpoint, Some(tls.server.clone()), socket, runtime)
        });
        endpoints.push(endpoint.map_err(|source| ControlError::Bind { address, source })?);
    }
    let (sender, events) = mpsc::channel(EVENTS);
    let registry = Registry::new(endpoints, &tls, config.peer_port, sender);
    for endpoint in &registry.endpoints {
        tokio::spawn(accept(Arc::clone(&registry), endpoint.clone()));
    }
    Ok((registry, events))
}

async fn accept(registry: Arc<Registry>, endpoint: Endpoint) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    while let Some(incoming) = endpoint.accept().await {
        let busy = room.available_permits() <= HANDSHAKES - PROVE_FROM;
        if busy && !incoming.remote_address_validated() && incoming.may_retry() {
            // The packet is not kept: a sender that exists will retransmit.
            let _ = incoming.retry();
            continue;
        }
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            count(&registry.stats.handshakes_turned_away);
            incoming.ignore();
            continue;
        };
        let registry = Arc::clone(&registry);
        tokio::spawn(async move {
            peer::accept(registry, incoming).await;
            drop(permit);
        });
    }
}

/// Opens a socket; `[::]` takes both families, or IPv4 alone on a host without IPv6.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let wildcard = address.is_ipv6() && address.ip().is_unspecified();
    match open(address) {
        Err(error) if wildcard && no_ipv6(&error) => {
            open((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        done => done,
    }
}

fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
