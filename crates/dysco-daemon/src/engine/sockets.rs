//! Sessions whose socket is gone without a FIN or reset passing (a peer that
//! died, a time-out): looked for from time to time, so that their entries go.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use dysco_common::{FlowKey, State};

use super::{Answer, Engine, collect};
use crate::proxy::table;
use crate::scheduling::spawn_long;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(30);
/// A session younger than this may not have its socket listed yet.
const YOUNG: Duration = Duration::from_secs(10);

/// What the last look found.
#[derive(Default)]
pub(super) struct Sockets {
    last: Option<Instant>,
    /// They have been listed.
    ever: bool,
    /// Slots and sessions that had a socket, some time. Others never do: where
    /// addresses are translated, or the socket is in another namespace.
    seen: HashSet<(u32, u64)>,
    /// Those of them without one, the last time.
    missing: HashSet<(u32, u64)>,
}

impl Sockets {
    /// Could this host's sockets be listed?
    pub fn are_listed(&self) -> bool {
        self.ever
    }

    /// Had this session a socket, some time?
    pub fn had_one(&self, slot: u32, created_ns: u64) -> bool {
        self.seen.contains(&(slot, created_ns))
    }

    /// Had this session a socket when it was last looked?
    pub fn listed(&self, slot: u32, created_ns: u64) -> bool {
        let session = (slot, created_ns);
        self.seen.contains(&session) && !self.missing.contains(&session)
    }
}

impl Engine {
    /// Collects sessions that had no socket the last two times.
    pub(super) fn sweep_sockets(&mut self) {
        if self.sockets.last.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.sockets.last = Some(Instant::now());
        let answers = self.answers.clone();
        // Milliseconds on a host with a large table: not in the engine's time.
        spawn_long(move || {
            let open = table::rows().map(|rows| rows.iter().map(|r| r.key).collect());
            let _ = answers.send(Answer::Sockets(open));
        });
    }

    /// Goes on with what was listed.
    pub(super) fn sockets_listed(&mut self, open: io::Result<HashSet<FlowKey>>) {
        let mut open = match open {
            Ok(open) => open,
            Err(error) => return tracing::warn!(%error, "cannot list this host's sockets"),
        };
        self.sockets.ever = true;
        let sessions = self.agent.sessions();
        self.hold_missing_ports(&sessions, &open);
        // Those are no session's.
        for connection in self.ports.connections() {
            open.remove(connection);
        }
        let now = collect::boot_time();
        let (mut seen, mut missing) = (HashSet::new(), HashSet::new());
        for (slot, s) in sessions {
            let session = (slot, s.created_ns);
            let age = now.saturating_sub(Duration::from_nanos(s.created_ns));
            let ours = matches!(
                State::from_word(s.state),
                Some(State::Tracked | State::Adopted | State::NewPath | State::Return)
            );
            if !ours || age < YOUNG {
                continue;
            }
            let listed = open.contains(&s.key);
            if listed || self.sockets.seen.contains(&session) {
                seen.insert(session);
            }
            if !listed && seen.contains(&session) {
                missing.insert(session);
            }
        }
        for (slot, created) in self.sockets.missing.intersection(&missing) {
            let s = self.agent.session(*slot);
            if s.created_ns == *created {
                self.collector.abandoned(*slot, &s);
            }
        }
        self.sockets.missing = missing;
        self.sockets.seen = seen;
    }
}
