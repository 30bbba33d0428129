//! The handler process as the engine sees it: its start, its messages, its end.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use dysco_agent::{Agent, DetourLink, Routes, Start, links};
use dysco_common::Session;
use dysco_explain::{Cause, Explain};
use dysco_runner::protocol::{Client, Report, Request};
use dysco_scheduling::{spawn_heavy, spawn_long};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use super::done::{Done, Made};
use crate::engine::Answer;
use crate::engine::mtu::longest_between;
use crate::handlers::{self, Owner, Place, Process, Started, Wanted};

/// A handler that runs.
pub(super) struct Handler {
    pub place: Arc<Place>,
    process: Mutex<Process>,
    client: Arc<Client>,
    /// Version of its messages, once it has told it.
    version: OnceLock<u32>,
    /// Requests that the handler has not been sent, and their descriptors.
    queue: std::sync::mpsc::Sender<(Request, Vec<OwnedFd>)>,
}

impl Handler {
    /// Returns its pid.
    pub(super) fn pid(&self) -> i32 {
        self.process().pid().cast_signed()
    }

    /// Takes note of the version of its messages.
    pub(super) fn speaks(&self, version: u32) {
        self.version.get_or_init(|| version);
    }

    /// Returns true if its messages have at least this version. One that an earlier `dyscod` has
    /// started may be of an earlier release.
    pub(super) fn understands(&self, version: u32) -> bool {
        self.version.get().is_some_and(|own| *own >= version)
    }

    /// Kills it, unless it has ended.
    pub(super) fn kill(&self) {
        self.process().kill();
    }

    /// Lets it end: without a connection and sessions it does so by itself.
    pub(super) fn dismiss(self: Arc<Self>) {
        self.client.close();
        // A child has to be waited for.
        spawn_long(move || self.process().wait());
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Process> {
        // The value is valid after any panic.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request without descriptors, before this process ends.
    ///
    /// # Errors
    /// If the handler has ended, or takes no more requests at the moment.
    pub(super) fn send_now(&self, request: &Request) -> io::Result<()> {
        self.client.send(request, &[])
    }

    /// Sends a request, as soon as the handler takes it.
    ///
    /// # Errors
    /// If the handler has ended, or no more descriptors can be had.
    pub(super) fn send(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned);
        let fds = fds.collect::<io::Result<_>>()?;
        match self.queue.send((request, fds)) {
            Ok(()) => Ok(()),
            Err(_) => Err(io::Error::other("the handler has ended")),
        }
    }
}

/// Sends requests until all senders of the queue are gone.
fn speak(client: &Client, queue: &std::sync::mpsc::Receiver<(Request, Vec<OwnedFd>)>) {
    while let Ok((request, fds)) = queue.recv() {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        loop {
            match client.send(&request, &fds) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut ready = [PollFd::new(client.as_fd(), PollFlags::POLLOUT)];
                    // An error shows again at the next attempt.
                    let _ = poll(&mut ready, PollTimeout::NONE);
                }
                Err(error) => {
                    tracing::error!(%error, "a handler takes no request");
                    break;
                }
            }
        }
    }
}

/// Passes the reports of the handler of an owner, with this pid, to the engine until it ends.
fn listen(owner: Owner, pid: i32, client: &Client, answers: &mpsc::UnboundedSender<Answer>) {
    let tell = |report| {
        let answer = Answer::Service(Box::new(Done::Report(owner, pid, report)));
        answers.send(answer).is_ok()
    };
    loop {
        let mut ready = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
        let polled = poll(&mut ready, PollTimeout::NONE);
        if polled.is_err_and(|error| error != Errno::EINTR) {
            break;
        }
        match client.recv() {
            Ok(Some(report)) => {
                if !tell(Some(report)) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::error!(%error, "a report of the handler cannot be read");
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => break,
        }
    }
    // The engine may have ended.
    let _ = tell(None);
}

/// Loads the programs for sessions with handlers, for the first of them. The kernel takes up to a
/// second of a processor to verify them.
pub(super) fn preload(agent: Arc<Agent>) {
    spawn_heavy(move || {
        if let Err(error) = agent.load_handlers() {
            tracing::error!("no session can have a handler: {}", error.explain().cause());
        }
    });
}

/// Starts the handler of an owner, and lets packets come from there. The engine does not wait while
/// the kernel verifies the programs.
pub(super) async fn start_handler(
    folder: &Path,
    agent: Arc<Agent>,
    owner: Owner,
) -> Result<Started, Cause> {
    let started = handlers::start(folder, owner).await;
    let started = started.map_err(|failed| failed.explain().cause())?;
    // The kernel verifies the programs first, unless they are loaded.
    let attach = spawn_heavy(move || {
        agent
            .attach_handler(&started.place.link)
            .map(|()| started)
            .map_err(|error| error.explain().cause())
    });
    attach.await.map_err(Cause::new)?
}

/// Begins to exchange messages with a handler.
pub(super) fn speaking(started: Started, answers: mpsc::UnboundedSender<Answer>) -> Handler {
    let client = Arc::new(started.client);
    let (queue, requests) = std::sync::mpsc::channel();
    let (speaks, listens) = (client.clone(), client.clone());
    let (owner, pid) = (started.place.owner, started.process.pid().cast_signed());
    // Threads that the end of this process does not wait for.
    thread::spawn(move || speak(&speaks, &requests));
    thread::spawn(move || listen(owner, pid, &listens, &answers));
    Handler {
        place: started.place,
        process: Mutex::new(started.process),
        client,
        version: OnceLock::new(),
        queue,
    }
}

/// Makes the sockets for a session: the near one, and the far one if it is wanted.
pub(super) async fn make(
    handler: &Handler,
    routes: &Routes,
    s: &Session,
    start: Start,
    far: bool,
) -> Result<Made, Cause> {
    let (local, remote): (IpAddr, IpAddr) = (s.key.local().ip(), s.key.remote().ip());
    if s.view().new_path().is_some() {
        address_of(s.ifindex)?;
    }
    let route = routes
        .get(local, remote)
        .await
        .map_err(|error| error.explain().cause())?;
    let link = DetourLink {
        handler: handler.place.index,
        interface: route.ifindex,
        address: address_of(route.ifindex)?,
    };
    // The local end's socket may know of a narrow path by now, and other sockets of the new path.
    let path = s.view().new_path().is_some();
    let path = path.then(|| longest_between(s.path.local().ip(), s.path.remote().ip()));
    let longest = longest_between(local, remote).min(path.unwrap_or(u16::MAX));
    let wanted = Wanted::new(s, start, far.then_some(longest));
    let sockets = handler.place.sockets(wanted).await;
    let sockets = sockets
        .map_err(|error| Cause::new(format!("its handler gets no sockets for it: {error}")))?;
    Ok(Made {
        sockets,
        start,
        link,
    })
}

/// Returns the number up to which the remote end has acknowledged, as the local end's socket has it.
///
/// # Errors
/// If there is no such socket.
pub(super) fn acknowledged(s: &Session) -> Result<u32, Cause> {
    let first = s.local.isn.wrapping_add(u32::from(s.life.opened_here == 0));
    let acked = dysco_proxy::acknowledged(&s.key).map_err(Cause::new)?;
    let acked = acked.ok_or_else(|| Cause::new("its socket is not in this network namespace"))?;
    Ok(first.wrapping_add(acked))
}

/// Returns the Ethernet address of an interface that can lead packets to a handler.
fn address_of(index: u32) -> Result<[u8; 6], Cause> {
    let all = links::links().map_err(Cause::new)?;
    let link = all.iter().find(|link| link.index == index);
    let link =
        link.ok_or_else(|| Cause::new("the interface that leads to its other end is gone"))?;
    if link.header != links::Header::Ethernet || link.name == "lo" {
        return Err(Cause::new(format!(
            "its packets take {}, an interface without an Ethernet header",
            link.name
        )));
    }
    // `/sys` may show another network namespace than this one.
    let address = link.address;
    address.ok_or_else(|| Cause::new(format!("{} has no Ethernet address", link.name)))
}

/// Returns the two sockets in the order of the handler: the one towards the opener first.
///
/// # Errors
/// If there is no connection to the other handler.
pub(super) fn in_order(
    sockets: &handlers::Sockets,
    opened_here: bool,
) -> Result<[BorrowedFd<'_>; 2], Cause> {
    let far = sockets.far();
    let far = far.ok_or_else(|| Cause::new("its handler has no connection to the other host"))?;
    let near = sockets.near.as_fd();
    Ok(if opened_here {
        [near, far]
    } else {
        [far, near]
    })
}

/// Returns the request that passes a session to the handler.
pub(super) fn offer(slot: u32, one: &super::Serviced) -> Result<Request, Cause> {
    let (local, remote) = (one.key.local(), one.key.remote());
    let (opener, other) = if one.opened_here {
        (local, remote)
    } else {
        (remote, local)
    };
    // Bytes of a session whose handler has died pass unchanged.
    let orphaned = matches!(one.stage, super::Stage::Orphaned(_));
    let mut services = if orphaned {
        Vec::new()
    } else {
        one.services.clone()
    };
    mirror(&mut services, one.paired.is_some(), one.opened_here);
    let services = services.iter().map(super::choice::spec);
    Ok(Request::Put {
        session: u64::from(slot),
        opener,
        other,
        pair: one
            .paired
            .as_ref()
            .map(|pair| pair.for_handler(one.opened_here)),
        services: services.collect::<Result<_, _>>()?,
    })
}

/// Changes the order of services between that of a request and that of the handler, which begins
/// with the end that opened the session. At both ends, the first is next to the program on each host,
/// and the last next to the other host.
pub(super) fn mirror(services: &mut [dysco_api::ServiceSpec], paired: bool, opened_here: bool) {
    if paired && !opened_here {
        services.reverse();
    }
}

/// Returns the slot of a session as the handler names it.
pub(super) fn slot_of(session: u64) -> u32 {
    // It has named none but those that it was given.
    session as u32
}

/// True for a report about a session.
pub(super) fn session_of(report: &Report) -> Option<u32> {
    match report {
        Report::Put { session, .. }
        | Report::Added { session, .. }
        | Report::Joined { session, .. }
        | Report::Parted { session, .. }
        | Report::Idle { session, .. }
        | Report::Left { session, .. }
        | Report::Released { session, .. }
        | Report::Ended { session, .. }
        | Report::Notify { session, .. } => Some(slot_of(*session)),
        _ => None,
    }
}
