//! Sessions in which the offset of a byte determines its value, checked at both ends.

mod end;
mod server;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use dysco_netns::Host;
use dysco_pattern::Pattern;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::plan::{Plan, ProxyKind, SERVER_PORT, SessionKind, SessionPlan, Side, address};

pub(crate) use server::Server;

/// Time after which a session that has not opened never will.
const OPENS: Duration = Duration::from_secs(15);

/// Common phase of all sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// Sessions send.
    Run,
    /// No end sends or closes, and all read as fast as they can.
    Rest,
    /// Ends close their halves.
    Close,
}

/// Observations of one end of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndRun {
    /// Number of bytes handed to the kernel.
    pub sent: u64,
    /// Number of bytes received, all of them checked.
    pub received: u64,
    /// Offset of the first wrong byte.
    pub wrong_at: Option<u64>,
    /// True if the end received the FIN of the other end.
    pub eof: bool,
    /// Error of a system call.
    pub error: Option<String>,
    /// True if the end is over, in one way or another.
    pub over: bool,
}

/// State of one end, shared by the tasks of both ends.
#[derive(Default)]
struct EndState {
    sent: AtomicU64,
    received: AtomicU64,
    over: AtomicBool,
    seen: Mutex<EndRun>,
}

/// State of a session, shared by its two ends and its watcher.
pub(crate) struct Session {
    /// Plan of the session.
    pub plan: SessionPlan,
    /// Offset from which its proxy rewrites bytes.
    rewritten: Option<u64>,
    ends: [EndState; 2],
    local: Mutex<Option<SocketAddr>>,
    trouble: Mutex<Option<String>>,
    phase: watch::Receiver<Phase>,
}

impl Session {
    /// Creates the session of a plan. It is not open yet.
    pub(crate) fn new(
        plan: &Plan,
        session: &SessionPlan,
        phase: watch::Receiver<Phase>,
    ) -> Arc<Session> {
        let proxy = session.proxy.and_then(|host| plan.proxy(host));
        let rewritten = proxy.and_then(|p| match p.kind {
            ProxyKind::Rewrite { from } => Some(from),
            _ => None,
        });
        Arc::new(Session {
            plan: session.clone(),
            rewritten,
            ends: Default::default(),
            local: Mutex::default(),
            trouble: Mutex::default(),
            phase,
        })
    }

    /// Number of bytes that a side has received and checked.
    pub(crate) fn received(&self, side: Side) -> u64 {
        self.end(side).received.load(Ordering::Relaxed)
    }

    /// Number of bytes that a side has handed to its kernel.
    pub(crate) fn sent(&self, side: Side) -> u64 {
        self.end(side).sent.load(Ordering::Relaxed)
    }

    /// True if both ends are over.
    pub(crate) fn is_over(&self) -> bool {
        let over = |side| self.end(side).over.load(Ordering::Relaxed);
        over(Side::Client) && over(Side::Server)
    }

    /// Address of the client's end.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        *lock(&self.local)
    }

    /// Reason why the session never opened.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Observations of an end so far.
    pub(crate) fn seen(&self, side: Side) -> EndRun {
        let end = self.end(side);
        EndRun {
            sent: self.sent(side),
            received: self.received(side),
            over: end.over.load(Ordering::Relaxed),
            ..lock(&end.seen).clone()
        }
    }

    fn end(&self, side: Side) -> &EndState {
        &self.ends[side as usize]
    }

    /// Pattern that a side sends.
    fn pattern(&self, side: Side) -> Pattern {
        Pattern::new(self.plan.id * 2 + side as u64)
    }

    fn fail(&self, trouble: String) {
        lock(&self.trouble).get_or_insert(trouble);
        for end in &self.ends {
            end.over.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns the opposite side.
pub(crate) fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// Opens a session when it is due, and runs the client's end.
pub(crate) fn open(host: &Host, plan: &Plan, session: Arc<Session>) -> JoinHandle<()> {
    let to = match session.plan.proxy.and_then(|proxy| plan.proxy(proxy)) {
        Some(proxy) => proxy.listen(),
        None => SocketAddr::new(address(session.plan.server, session.plan.v6), SERVER_PORT),
    };
    host.runtime().spawn(async move {
        sleep(Duration::from_millis(session.plan.start_ms)).await;
        match timeout(OPENS, connect(to, &session)).await {
            Ok(Ok(stream)) => {
                *lock(&session.local) = stream.local_addr().ok();
                end::run(stream, &session, Side::Client).await;
            }
            Ok(Err(error)) => session.fail(error.to_string()),
            Err(_) => session.fail("it did not open in time".into()),
        }
    })
}

async fn connect(to: SocketAddr, session: &Session) -> std::io::Result<TcpStream> {
    let socket = match to.is_ipv4() {
        true => TcpSocket::new_v4()?,
        false => TcpSocket::new_v6()?,
    };
    if let Some(bytes) = buffer(session.plan.kind, Side::Client) {
        socket.set_recv_buffer_size(bytes)?;
    }
    let mut stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    end::greet(&mut stream, session.plan.id).await?;
    Ok(stream)
}

/// Size of the receive buffer of a side, if the plan sets one.
fn buffer(kind: SessionKind, of: Side) -> Option<u32> {
    match kind {
        SessionKind::TinyWindow { side, buffer, .. } if side == of => Some(buffer),
        _ => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens on a server's host, for IPv4 and IPv6.
pub(crate) fn serve(host: &Host, number: u8, sessions: &[Arc<Session>]) -> Result<Server> {
    let own = sessions.iter().filter(|s| s.plan.server == number);
    Server::start(host, number, own.cloned().collect())
}
