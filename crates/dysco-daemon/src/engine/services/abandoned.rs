//! Detours of sessions that their handler has reset. If the reset of the remote end is lost, that end
//! speaks to a handler that is gone, and hears nothing.
//!
//! Once the local socket is closed, the session's packets take their path without the detour. The kernel
//! has no socket for what the remote end sends, and resets it by the number that the end expects (RFC
//! 9293, 3.5.2).

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use dysco_common::FlowKey;
use dysco_proxy::diag;

use super::{Serviced, Services};
use crate::engine::Plane;

/// Time for which the local socket is looked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session that its handler has reset.
pub(super) struct Abandoned {
    slot: u32,
    created_ns: u64,
    key: FlowKey,
    since: Instant,
}

impl Abandoned {
    pub(super) fn new(slot: u32, one: &Serviced) -> Abandoned {
        Abandoned {
            slot,
            created_ns: one.created_ns,
            key: one.key,
            since: Instant::now(),
        }
    }

    /// Ends the detour, once the local socket is closed. Returns true if there is nothing more to do.
    fn follow(&self, plane: &Plane) -> bool {
        let s = plane.agent.session(self.slot);
        if s.created_ns != self.created_ns || !s.has_detour() || self.since.elapsed() > PATIENCE {
            return true;
        }
        let closed = diag::owner(&self.key).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if closed {
            plane.agent.abandon_detour(self.slot);
        }
        closed
    }
}

impl Services {
    /// Remembers a session whose handler has reset both of its connections.
    pub(super) fn abandon(&mut self, slot: u32) {
        if let Some(one) = self.sessions.get(&slot) {
            self.abandoned.push(Abandoned::new(slot, one));
        }
    }

    /// Ends the detours of sessions that were reset, and whose local sockets are closed.
    pub(super) fn follow_abandoned(&mut self, plane: &Plane) {
        self.abandoned.retain(|one| !one.follow(plane));
    }
}
