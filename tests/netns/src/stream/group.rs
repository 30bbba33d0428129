//! Sessions that are opened, run and stopped together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::plan::{Close, Plan, Reading, Side};
use super::{End, Phase, Server, Shared, end, greet, lock};
use crate::{Host, wait};

static NEXT: AtomicU64 = AtomicU64::new(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Sessions of one plan.
pub struct Group {
    phase: watch::Sender<Phase>,
    reading: [watch::Sender<Reading>; 2],
    sessions: Vec<Session>,
    runtime: tokio::runtime::Handle,
}

struct Session {
    shared: Arc<Shared>,
    local: SocketAddr,
    client: JoinHandle<End>,
    server: oneshot::Receiver<End>,
}

/// Result of one session.
#[derive(Debug)]
pub struct Outcome {
    /// Address of the client's end of the connection.
    pub local: SocketAddr,
    /// Actions and observations of the client.
    pub client: End,
    /// Actions and observations of the server.
    pub server: End,
    close: Close,
}

impl Group {
    /// Opens `count` sessions from a host to `to`, which leads to `server`. When this function
    /// returns, all are established end to end, without traffic.
    pub fn open(
        host: &Host,
        server: &Server,
        to: SocketAddr,
        count: usize,
        plan: &Plan,
    ) -> Result<Group> {
        let (phase, _) = watch::channel(Phase::Opened);
        let reading = [
            watch::channel(Reading::Fast).0,
            watch::channel(Reading::Fast).0,
        ];
        let runtime = host.runtime().handle().clone();
        let mut group = Group {
            phase,
            reading,
            sessions: Vec::with_capacity(count),
            runtime,
        };
        let mut opening = Vec::with_capacity(count);
        let turns = Arc::new(tokio::sync::Semaphore::new(64));
        for _ in 0..count {
            let (shared, end) = group.prepare(server, plan);
            let (turns, of) = (turns.clone(), shared.clone());
            let task = group.runtime.spawn(async move {
                let _turn = turns.acquire_owned().await;
                open(to, &of).await
            });
            opening.push((shared, end, task));
        }
        for (shared, server_end, task) in opening {
            let stream = on(&group.runtime, task)?
                .with_context(|| format!("a session failed to open; {:?}", server.troubles()))?;
            let local = stream.local_addr().context("a session has no address")?;
            let of = shared.clone();
            let client = group
                .runtime
                .spawn(async move { end::run(stream, &of, Side::Client).await });
            group.sessions.push(Session {
                shared,
                local,
                client,
                server: server_end,
            });
        }
        Ok(group)
    }

    fn prepare(&self, server: &Server, plan: &Plan) -> (Arc<Shared>, oneshot::Receiver<End>) {
        let (tell, end) = oneshot::channel();
        let shared = Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            plan: plan.clone(),
            phase: self.phase.subscribe(),
            reading: [self.reading[0].subscribe(), self.reading[1].subscribe()],
            received: Default::default(),
            sent: [const { AtomicU64::new(u64::MAX) }; 2],
            server_end: std::sync::Mutex::new(Some(tell)),
        });
        lock(&server.registry).insert(shared.id, shared.clone());
        (shared, end)
    }

    /// Lets all sessions begin to send.
    pub fn run(&self) {
        self.phase.send_replace(Phase::Running);
    }

    /// Lets all sessions end as planned.
    pub fn stop(&self) {
        self.phase.send_replace(Phase::Stopping);
    }

    /// Stops all sending until [`Group::run`] is called.
    pub fn pause(&self) {
        self.phase.send_replace(Phase::Resting);
    }

    /// Stops all sending, and waits until all data has arrived. It is needed before the end of
    /// sessions that HAProxy still relays: version 2.6 occasionally breaks off a session whose
    /// client closes while HAProxy holds data of it (about one of a thousand on busy processors),
    /// spliced or not, without any `dyscod`.
    pub fn rest(&self) -> Result<()> {
        self.pause();
        let on_their_way = || {
            let sides = [Side::Client, Side::Server];
            let arrived = |s: &&Session| sides.iter().all(|side| s.shared.has_arrived(*side));
            self.sessions.len() - self.sessions.iter().filter(arrived).count()
        };
        wait::until("all that was sent to come", PATIENCE, || {
            (on_their_way() == 0).then_some(())
        })
        .with_context(|| format!("{} sessions have not got all", on_their_way()))
    }

    /// Sets the reading mode of one end of every session.
    pub fn set_reading(&self, side: Side, reading: Reading) {
        self.reading[side as usize].send_replace(reading);
    }

    /// Addresses of the clients' ends.
    pub fn locals(&self) -> Vec<SocketAddr> {
        self.sessions.iter().map(|s| s.local).collect()
    }

    /// Number of bytes received and checked by all the ends of one side.
    pub fn received(&self, side: Side) -> u64 {
        self.sessions.iter().map(|s| s.shared.received(side)).sum()
    }

    /// Waits until each session has delivered this many more bytes in each direction.
    pub fn wait_progress(&self, bytes: u64) -> Result<()> {
        let at = |s: &Session| {
            [
                s.shared.received(Side::Client),
                s.shared.received(Side::Server),
            ]
        };
        let goals: Vec<_> = self
            .sessions
            .iter()
            .map(|s| at(s).map(|n| n + bytes))
            .collect();
        let behind = || {
            let of = self.sessions.iter().zip(&goals);
            of.filter(|(s, goal)| at(s).iter().zip(*goal).any(|(n, g)| n < g))
                .count()
        };
        wait::until("every session's progress", PATIENCE, || {
            (behind() == 0).then_some(())
        })
        .with_context(|| format!("{} of {} do not get on", behind(), goals.len()))
    }

    /// Waits until all sessions together have delivered this many more bytes.
    pub fn wait_more(&self, bytes: u64, limit: Duration) -> Result<()> {
        let got = || self.received(Side::Client) + self.received(Side::Server);
        let at = got();
        wait::until("data", limit, || (got() > at + bytes).then_some(()))
    }

    /// Number of bytes that each session will have delivered to one side after this many more
    /// bytes.
    pub fn goals(&self, side: Side, more: u64) -> Vec<u64> {
        let at = |s: &Session| s.shared.received(side) + more;
        self.sessions.iter().map(at).collect()
    }

    /// Waits until each session has delivered its goal to one side.
    pub fn wait_goals(&self, side: Side, goals: &[u64]) -> Result<()> {
        let behind = || {
            let of = self.sessions.iter().zip(goals);
            of.filter(|(s, goal)| s.shared.received(side) < **goal)
                .count()
        };
        wait::until("every session's progress", PATIENCE, || {
            (behind() == 0).then_some(())
        })
        .with_context(|| format!("{} of {} do not get on", behind(), goals.len()))
    }

    /// Stops all sessions, if that was not done, and waits for their ends.
    pub fn finish(mut self) -> Result<Vec<Outcome>> {
        self.stop();
        let sessions = std::mem::take(&mut self.sessions);
        sessions
            .into_iter()
            .map(|session| self.outcome(session))
            .collect()
    }

    fn outcome(&self, session: Session) -> Result<Outcome> {
        let Session {
            shared,
            local,
            client,
            server,
        } = session;
        let both = async move { (client.await, server.await) };
        let both = self
            .runtime
            .spawn(async move { timeout(PATIENCE, both).await });
        let Ok(ends) = on(&self.runtime, both)? else {
            let [c, s] = [Side::Client, Side::Server].map(|side| shared.received(side));
            bail!("the session from {local} does not end; {s} bytes went up and {c} down");
        };
        let client = ends.0.context("the client's end panicked")?;
        let server = ends.1.context("the server's end went without a word")?;
        Ok(Outcome {
            local,
            client,
            server,
            close: shared.plan.close,
        })
    }
}

/// Waits for a task from a thread outside the runtime.
fn on<T: Send + 'static>(runtime: &tokio::runtime::Handle, task: JoinHandle<T>) -> Result<T> {
    runtime
        .block_on(task)
        .context("a task of the traffic panicked")
}

async fn open(to: SocketAddr, shared: &Shared) -> Result<TcpStream> {
    let socket = if shared.plan.multipath {
        multipath(to)
    } else if to.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let socket = socket.context("failed to make a socket")?;
    if let Some(bytes) = shared.plan.receive_buffer {
        let bytes = bytes.try_into().unwrap_or(u32::MAX);
        socket
            .set_recv_buffer_size(bytes)
            .context("failed to set the receive buffer")?;
    }
    let opened = timeout(PATIENCE, async {
        let mut stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        greet::client(&mut stream, shared.id, shared.plan.web_socket)
            .await
            .map(|()| stream)
    });
    opened
        .await
        .context("no answer in time")?
        .with_context(|| format!("failed to reach {to}"))
}

/// Returns a socket that requests MPTCP.
fn multipath(to: SocketAddr) -> std::io::Result<TcpSocket> {
    let (domain, kind) = (
        Domain::for_address(to),
        Type::STREAM.nonblocking().cloexec(),
    );
    let socket = Socket::new(domain, kind, Some(Protocol::MPTCP))?;
    Ok(TcpSocket::from_std_stream(socket.into()))
}

impl Outcome {
    /// Fails unless every byte that was sent arrived, once and in order, and the session ended as
    /// planned. A reset may cut off the end of the data; the data that arrived must be correct.
    pub fn intact(&self) -> Result<()> {
        self.way("up", &self.client, &self.server)?;
        self.way("down", &self.server, &self.client)
    }

    fn way(&self, way: &str, from: &End, to: &End) -> Result<()> {
        let local = self.local;
        if let Some(at) = to.wrong_at {
            bail!("{local} {way}: byte {at} is wrong");
        }
        if let Close::Reset(_) = self.close {
            let (sent, received) = (from.sent, to.received);
            ensure!(
                received <= sent,
                "{local} {way}: {received} bytes came of {sent}"
            );
            return Ok(());
        }
        let (sent, received) = (from.sent, to.received);
        let errors: Vec<_> = [&from.error, &to.error]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let errors = errors.join(" and ");
        ensure!(
            errors.is_empty(),
            "{local} {way}: {errors} at {received} of {sent} bytes"
        );
        ensure!(
            sent == received,
            "{local} {way}: {sent} bytes were sent, {received} came"
        );
        ensure!(to.closed, "{local} {way}: the end was never heard");
        Ok(())
    }
}

/// Checks [`Outcome::intact`] for all sessions. Returns the number of bytes that arrived in both
/// directions, or the first failures.
pub fn all_intact(outcomes: &[Outcome]) -> Result<u64> {
    let failures: Vec<_> = outcomes.iter().filter_map(|o| o.intact().err()).collect();
    if !failures.is_empty() {
        let first: Vec<_> = failures.iter().take(5).map(|e| e.to_string()).collect();
        bail!(
            "{} of {} sessions failed: {}",
            failures.len(),
            outcomes.len(),
            first.join("; ")
        );
    }
    Ok(outcomes
        .iter()
        .map(|o| o.client.received + o.server.received)
        .sum())
}
