//! The trait that a service implements.

use std::net::SocketAddr;

use dysco_explain::Cause;

use crate::{Event, Out};

/// A handler of a session's bytes. `docs/write-a-service.md` is a tutorial.
pub trait Service: Send + 'static {
    /// Name on the command line, such as `crypt`.
    fn name(&self) -> &str;

    /// Returns the needs of the service in this session.
    ///
    /// # Errors
    /// If the service cannot work there. The session continues without it.
    fn needs(&self, session: &Session) -> Result<Needs, Cause> {
        let _ = session;
        Ok(Needs::default())
    }

    /// Returns true while the session loses nothing without the service. If all services at both
    /// ends are idle, they are taken out of the session, and put in again some time later to try.
    fn is_idle(&self) -> bool {
        false
    }

    /// Handles one event. It must not block.
    fn on(&mut self, event: Event, out: &mut Out) {
        event.pass_on(out);
    }
}

/// A session as a service sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// The end that opened it.
    pub opener: SocketAddr,
    /// The other end.
    pub other: SocketAddr,
    /// True if the hosts of both ends run `dyscod`.
    pub both_ends: bool,
}

/// Needs of a service, of the session and its hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The ends at which the service has to be.
    pub ends: Ends,
    /// Name of the congestion control of the socket towards the network; `None` for the host's
    /// default.
    pub congestion: Option<String>,
    /// True if the service passes each byte of the session on, unchanged and in order, and adds
    /// none. If its process dies after it has passed on everything that it has read, the session
    /// continues without the service.
    pub keeps_bytes: bool,
    /// True if the service acts on the first bytes of a session: it does not come into one that is
    /// open.
    pub from_start: bool,
}

impl Needs {
    /// Returns the needs of a service that keeps the session's bytes as they are.
    pub fn of_observer() -> Needs {
        Needs {
            keeps_bytes: true,
            ..Needs::default()
        }
    }
}

/// The ends of a session at which a service has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// One end suffices. The other end does not notice.
    #[default]
    One,
    /// Both ends, from the same byte on.
    Pair,
}
