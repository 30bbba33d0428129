//! Resources that sessions share: the poller, timers, and a queue of reports.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dysco_service::{FlowId, LayerId};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::Error;
use crate::protocol::Report;
use crate::timers::Timers;

/// Number of reports from which on no notices are queued.
pub(crate) const MANY: usize = 1024;

/// Number of bytes that one system call reads.
const SCRATCH: usize = 64 * 1024;

/// Events of a socket, edge-triggered.
const WATCHED: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::RDHUP)
    .union(EventFlags::OUT)
    .union(EventFlags::ET);

/// Place of a socket in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The socket towards the opener (0) or the other end (1).
    Session(usize),
    /// A connection of a service.
    Own(LayerId, FlowId),
}

/// Resources that sessions share.
pub(crate) struct Host {
    epoll: OwnedFd,
    places: HashMap<u64, (u64, Place)>,
    next: u64,
    begun: Instant,
    pub timers: Timers,
    /// Reports that `dyscod` has not received.
    pub reports: VecDeque<Report>,
    pub scratch: Box<[u8]>,
}

impl Host {
    /// Creates the resources. Sockets of sessions get tokens from `first` on.
    pub(crate) fn new(first: u64) -> Result<Host, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Host {
            epoll: epoll.map_err(Error::of("create the poller"))?,
            places: HashMap::new(),
            next: first,
            begun: Instant::now(),
            timers: Timers::default(),
            reports: VecDeque::new(),
            scratch: vec![0; SCRATCH].into(),
        })
    }

    /// Time of the services.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The poller.
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Watches a socket of a session, edge-triggered. Returns its token.
    pub(crate) fn watch(
        &mut self,
        socket: impl AsFd,
        session: u64,
        place: Place,
    ) -> rustix::io::Result<u64> {
        let token = self.next;
        epoll::add(&self.epoll, socket, EventData::new_u64(token), WATCHED)?;
        self.next += 1;
        self.places.insert(token, (session, place));
        Ok(token)
    }

    /// Stops watching a socket. Closing it is not enough while `dyscod` has a duplicate.
    pub(crate) fn unwatch(&mut self, socket: impl AsFd, token: u64) {
        self.places.remove(&token);
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Returns the session of a token, and the place of the socket in it.
    pub(crate) fn place(&self, token: u64) -> Option<(u64, Place)> {
        self.places.get(&token).copied()
    }

    /// Queues a report. Notices are dropped while `dyscod` reads none.
    pub(crate) fn report(&mut self, report: Report) {
        if self.reports.len() < MANY || !matches!(report, Report::Notify { .. }) {
            self.reports.push_back(report);
        }
    }
}
