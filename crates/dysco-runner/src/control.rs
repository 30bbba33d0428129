//! The connection to `dyscod`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use dysco_explain::Cause;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::host::MANY;
use crate::protocol::{Report, Request, VERSION, receive, send};

/// A connection to `dyscod`. Its readiness is level-triggered.
pub(crate) struct Control {
    socket: OwnedFd,
    watched: EventFlags,
}

/// Input from `dyscod`.
pub(crate) enum Received {
    Request(Request, Vec<OwnedFd>),
    /// A message that is no request.
    Invalid(Cause),
    /// Nothing for now.
    Nothing,
    /// The connection is gone.
    Closed,
}

impl Control {
    /// Takes over a connection. The first report is [`Report::Ready`]; answers to requests of an
    /// earlier connection are dropped.
    pub(crate) fn new(
        socket: OwnedFd,
        epoll: &OwnedFd,
        token: u64,
        reports: &mut VecDeque<Report>,
    ) -> rustix::io::Result<Control> {
        let watched = EventFlags::IN;
        epoll::add(epoll, &socket, EventData::new_u64(token), watched)?;
        reports.retain(is_news);
        reports.push_front(Report::Ready { version: VERSION });
        Ok(Control { socket, watched })
    }

    /// Returns the next request.
    pub(crate) fn receive(&self) -> Received {
        match receive::<Request>(&self.socket) {
            Ok(Some((request, fds))) => Received::Request(request, fds),
            Ok(None) => Received::Closed,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Received::Invalid(Cause::new(error))
            }
            Err(_) => Received::Closed,
        }
    }

    /// Sends reports, as far as the connection takes them. Returns false if it is gone.
    pub(crate) fn send(&self, reports: &mut VecDeque<Report>) -> bool {
        while let Some(report) = reports.front() {
            match send(&self.socket, report, &[]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                // Texts and answers were cut before, so that every report fits.
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => {}
                Err(_) => return false,
            }
            reports.pop_front();
        }
        true
    }

    /// Watches the connection: for requests, unless many reports wait, and for room if reports
    /// wait.
    pub(crate) fn watch(
        &mut self,
        epoll: &OwnedFd,
        token: u64,
        reports: usize,
    ) -> rustix::io::Result<()> {
        let mut wanted = EventFlags::empty();
        if takes_requests(reports) {
            wanted |= EventFlags::IN;
        }
        if reports > 0 {
            wanted |= EventFlags::OUT;
        }
        if wanted != self.watched {
            epoll::modify(epoll, &self.socket, EventData::new_u64(token), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Stops watching the connection.
    pub(crate) fn close(self, epoll: &OwnedFd) {
        let _ = epoll::delete(epoll, &self.socket);
    }
}

/// True if requests are read while this number of reports waits.
pub(crate) fn takes_requests(reports: usize) -> bool {
    reports < MANY
}

/// True for a report that no request asked for.
fn is_news(report: &Report) -> bool {
    matches!(
        report,
        Report::Left { .. } | Report::Ended { .. } | Report::Notify { .. }
    )
}
