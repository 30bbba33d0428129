//! The server that accepts sessions.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};

use super::plan::Side;
use super::{Registry, end, greet, lock};
use crate::Host;

/// Accepts the sessions of any number of groups on one port.
pub struct Server {
    pub(crate) registry: Registry,
    task: tokio::task::JoinHandle<()>,
    runtime: tokio::runtime::Handle,
    troubles: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Server {
    /// Listens on a host.
    pub fn start(host: &Host, at: SocketAddr) -> Result<Server> {
        let registry = Registry::default();
        let troubles = Arc::<std::sync::Mutex<Vec<String>>>::default();
        let runtime = host.runtime();
        let listener = host
            .run(move || std::net::TcpListener::bind(at))
            .and_then(|l| l.set_nonblocking(true).map(|()| l))
            .with_context(|| format!("failed to listen on {at}"))?;
        // SAFETY: listen only changes the backlog of a socket that this function owns.
        unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 4096) };
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener).context("failed to listen")?;
        let task = runtime.spawn(accept(listener, registry.clone(), troubles.clone()));
        Ok(Server {
            registry,
            task,
            runtime: runtime.handle().clone(),
            troubles,
        })
    }

    /// Connections that never became a session, with the reasons.
    pub fn troubles(&self) -> Vec<String> {
        lock(&self.troubles).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // The port is free once the task, and its listener, have ended.
        let _ = self.runtime.block_on(&mut self.task);
    }
}

async fn accept(
    listener: TcpListener,
    registry: Registry,
    troubles: Arc<std::sync::Mutex<Vec<String>>>,
) {
    while let Ok((stream, from)) = listener.accept().await {
        let (registry, troubles) = (registry.clone(), troubles.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &registry).await {
                lock(&troubles).push(format!("from {from}: {error}"));
            }
        });
    }
}

async fn serve(mut stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let id = greet::server(&mut stream).await?;
    let shared = lock(registry).remove(&id);
    let shared = shared.ok_or_else(|| std::io::Error::other(format!("no session {id}")))?;
    let end = end::run(stream, &shared, Side::Server).await;
    if let Some(tell) = lock(&shared.server_end).take() {
        let _ = tell.send(end);
    }
    Ok(())
}
