//! The loop of a runner.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dysco_service::Event;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::control::{Control, Received, takes_requests};
use crate::host::Host;
use crate::protocol::{Reason, Report};
use crate::session::Session;
use crate::{Error, Registry, watchdog};

const CONTROL: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_SOCKET: u64 = 2;

/// Greatest number of events that are taken at a time.
const EVENTS: usize = 256;

/// Greatest number of requests that are handled before sessions have their turns.
const REQUESTS: usize = 32;

/// Runs services until the connection to `dyscod` is closed and no session is left. A later
/// `dyscod` connects to `listener`, which [`listen`] creates; its connection replaces the one
/// before.
///
/// # Errors
/// If the kernel refuses what the loop needs.
///
/// [`listen`]: crate::protocol::listen
pub fn run(control: OwnedFd, listener: Option<OwnedFd>) -> Result<(), Error> {
    run_with(Registry::builtin(), control, listener)
}

/// Runs the services of another registry, as [`run`] runs the built-in ones.
pub fn run_with(
    registry: Registry,
    control: OwnedFd,
    listener: Option<OwnedFd>,
) -> Result<(), Error> {
    let mut runner = Runner {
        registry,
        sessions: BTreeMap::new(),
        turns: VecDeque::new(),
        host: Host::new(FIRST_SOCKET)?,
        control: None,
        listener,
    };
    runner.connect(control)?;
    if let Some(listener) = &runner.listener {
        let token = EventData::new_u64(LISTENER);
        epoll::add(runner.host.epoll(), listener, token, EventFlags::IN)
            .map_err(Error::of("watch for dyscod"))?;
    }
    loop {
        runner.send_reports()?;
        if runner.control.is_none() && runner.sessions.is_empty() {
            return Ok(());
        }
        runner.round()?;
    }
}

pub(crate) struct Runner {
    pub registry: Registry,
    pub sessions: BTreeMap<u64, Session>,
    /// Sessions that have something to do, in order of their turns.
    turns: VecDeque<u64>,
    pub host: Host,
    control: Option<Control>,
    listener: Option<OwnedFd>,
}

impl Runner {
    /// Waits for events, and handles them.
    fn round(&mut self) -> Result<(), Error> {
        let mut asked = false;
        for event in self.wait()? {
            // The kernel's struct may be packed.
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                CONTROL => asked |= flags != EventFlags::OUT,
                LISTENER => self.accept()?,
                token => {
                    if let Some((id, place)) = self.host.place(token)
                        && let Some(session) = self.sessions.get_mut(&id)
                    {
                        session.ready(place, flags);
                        self.schedule(id);
                    }
                }
            }
        }
        self.fire_timers();
        for _ in 0..self.turns.len() {
            self.turn();
        }
        if asked {
            self.handle_requests();
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<epoll::Event>, Error> {
        let timeout = match self.turns.is_empty() {
            true => self.host.timers.next(),
            false => Some(Duration::ZERO),
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(EVENTS);
        let wait = || {
            epoll::wait(
                self.host.epoll(),
                spare_capacity(&mut events),
                timeout.as_ref(),
            )
        };
        match watchdog::waiting(wait) {
            Ok(_) | Err(Errno::INTR) => Ok(events),
            Err(error) => Err(Error::of("wait for sockets")(error)),
        }
    }

    /// Queues a session for a turn.
    pub(crate) fn schedule(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id)
            && !session.scheduled
        {
            session.scheduled = true;
            self.turns.push_back(id);
        }
    }

    fn turn(&mut self) {
        let Some(id) = self.turns.pop_front() else {
            return;
        };
        // The session may be gone.
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.scheduled = false;
        watchdog::turn();
        match session.turn(&mut self.host) {
            Ok(true) => self.schedule(id),
            Ok(false) => {}
            Err(reason) => self.end(id, reason),
        }
    }

    /// Calls a method of a session, which may end by it, and gives the session a turn.
    pub(crate) fn with<F>(&mut self, id: u64, apply: F)
    where
        F: FnOnce(&mut Session, &mut Host) -> Result<(), Reason>,
    {
        if let Some(session) = self.sessions.get_mut(&id) {
            watchdog::turn();
            match apply(session, &mut self.host) {
                Ok(()) => self.schedule(id),
                Err(reason) => self.end(id, reason),
            }
        }
    }

    fn end(&mut self, id: u64, reason: Reason) {
        if let Some(session) = self.sessions.remove(&id) {
            session.close(Some(&reason), &mut self.host);
            self.host.report(Report::Ended {
                session: id,
                reason,
            });
        }
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        while let Some((id, layer, timer)) = self.host.timers.pop(now) {
            self.with(id, |session, host| {
                session.timer(layer, Event::Timer(timer), host)
            });
        }
    }

    fn handle_requests(&mut self) {
        for _ in 0..REQUESTS {
            let Some(control) = &self.control else {
                return;
            };
            if !takes_requests(self.host.reports.len()) {
                return;
            }
            match control.receive() {
                Received::Request(request, fds) => self.handle(request, fds),
                Received::Invalid(cause) => self.host.report(Report::Invalid { cause }),
                Received::Nothing => return,
                Received::Closed => return self.disconnect(),
            }
        }
    }

    fn send_reports(&mut self) -> Result<(), Error> {
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        if !control.send(&mut self.host.reports) {
            self.disconnect();
            return Ok(());
        }
        let waiting = self.host.reports.len();
        control
            .watch(self.host.epoll(), CONTROL, waiting)
            .map_err(Error::of("watch the connection to dyscod"))
    }

    fn accept(&mut self) -> Result<(), Error> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(listener, flags) {
            Ok(socket) => self.connect(socket),
            // No descriptor is free, or the caller is gone. The caller can connect again.
            Err(_) => Ok(()),
        }
    }

    fn connect(&mut self, socket: OwnedFd) -> Result<(), Error> {
        self.disconnect();
        let reports = &mut self.host.reports;
        let mut waiting = std::mem::take(reports);
        let control = Control::new(socket, self.host.epoll(), CONTROL, &mut waiting);
        self.host.reports = waiting;
        self.control = Some(control.map_err(Error::of("watch the connection to dyscod"))?);
        Ok(())
    }

    fn disconnect(&mut self) {
        if let Some(control) = self.control.take() {
            control.close(self.host.epoll());
        }
    }
}
