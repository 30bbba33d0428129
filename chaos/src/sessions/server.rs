//! The servers that accept the sessions.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use anyhow::{Context, Result};
use dysco_netns::Host;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Session, buffer, end};
use crate::plan::{SERVER_PORT, Side, address};

type Sessions = Arc<HashMap<u64, Arc<Session>>>;

/// The listeners of a host.
pub(crate) struct Server {
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens for these sessions.
    pub(crate) fn start(host: &Host, number: u8, sessions: Vec<Arc<Session>>) -> Result<Server> {
        let sessions: Sessions = Arc::new(sessions.into_iter().map(|s| (s.plan.id, s)).collect());
        let mut tasks = Vec::new();
        for v6 in [false, true] {
            let at = SocketAddr::new(address(number, v6), SERVER_PORT);
            let listener = host
                .run(move || StdListener::bind(at))
                .and_then(|l| l.set_nonblocking(true).map(|()| l))
                .with_context(|| format!("failed to listen on {at}"))?;
            let _inside = host.runtime().enter();
            let listener = TcpListener::from_std(listener).context("failed to listen")?;
            tasks.push(host.runtime().spawn(accept(listener, sessions.clone())));
        }
        Ok(Server { tasks })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, sessions: Sessions) {
    while let Ok((stream, _)) = listener.accept().await {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            // A connection without a greeting never becomes a session: its client reports that.
            let _ = serve(stream, &sessions).await;
        });
    }
}

async fn serve(mut stream: TcpStream, sessions: &Sessions) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let id = end::hear_greeting(&mut stream).await?;
    let Some(session) = sessions.get(&id) else {
        return Ok(());
    };
    if let Some(bytes) = buffer(session.plan.kind, Side::Server) {
        socket2::SockRef::from(&stream).set_recv_buffer_size(bytes as usize)?;
    }
    end::run(stream, session, Side::Server).await;
    Ok(())
}
