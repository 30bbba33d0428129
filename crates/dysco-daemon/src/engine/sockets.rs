//! Sessions whose socket vanished without a FIN or reset (a peer that died, a time-out). They are
//! looked for from time to time, so that their entries are collected.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use dysco_common::{FlowKey, Session, View};
use dysco_proxy::table;
use dysco_scheduling::spawn_long;

use super::{Answer, Plane, ThisHost, clock};

/// Interval between looks.
const EVERY: Duration = Duration::from_secs(30);
/// Age below which a session's socket may not be listed yet.
const YOUNG: Duration = Duration::from_secs(10);

/// Result of the last look.
#[derive(Default)]
pub(super) struct Sockets {
    last: Option<Instant>,
    /// True if the sockets have been listed.
    ever: bool,
    /// Slots and sessions that once had a socket. Others never have one: addresses are translated,
    /// or the socket is in another namespace.
    seen: HashSet<(u32, u64)>,
    /// Sessions of `seen` that had no socket at the last look.
    missing: HashSet<(u32, u64)>,
}

impl Sockets {
    /// Returns true if this host's sockets could be listed.
    pub(crate) fn are_listed(&self) -> bool {
        self.ever
    }

    /// Returns true if this session once had a socket.
    pub(crate) fn had_one(&self, slot: u32, created_ns: u64) -> bool {
        self.seen.contains(&(slot, created_ns))
    }

    /// Returns true if this session had a socket at the last look.
    pub(super) fn listed(&self, slot: u32, created_ns: u64) -> bool {
        let session = (slot, created_ns);
        self.seen.contains(&session) && !self.missing.contains(&session)
    }

    /// Records which sockets are open at a time since boot. Returns the slots of the sessions that
    /// had a socket and have none, for the second time.
    fn look(
        &mut self,
        sessions: &[(u32, Session)],
        open: &HashSet<FlowKey>,
        now: Duration,
    ) -> Vec<u32> {
        self.ever = true;
        let (mut seen, mut missing) = (HashSet::new(), HashSet::new());
        let mut gone = Vec::new();
        for (slot, s) in sessions {
            let session = (*slot, s.created_ns);
            let age = now.saturating_sub(Duration::from_nanos(s.created_ns));
            let view = s.view();
            if !view.takes_one_path() || age < YOUNG {
                continue;
            }
            let listed = open.contains(&s.key);
            // An adopted session was found by its socket, and may never be heard: its packets may
            // take another interface.
            let adopted = view == View::Adopted;
            let had_one = listed || adopted || self.seen.contains(&session);
            if had_one {
                seen.insert(session);
            }
            if had_one && !listed {
                missing.insert(session);
                gone.extend(self.missing.contains(&session).then_some(*slot));
            }
        }
        (self.seen, self.missing) = (seen, missing);
        gone
    }
}

impl Sockets {
    /// Collects sessions that had no socket at the last two looks.
    pub(super) fn sweep_sockets(&mut self, plane: &Plane) {
        if self.last.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let answers = plane.answers.clone();
        // Takes milliseconds on a host with a large table: not on the engine's thread.
        spawn_long(move || {
            let open = table::rows().map(|rows| rows.iter().map(|r| r.key).collect());
            let _ = answers.send(Answer::Sockets(open));
        });
    }
}

impl ThisHost {
    /// Continues with the listed sockets.
    pub(super) fn sockets_listed(&mut self, open: io::Result<HashSet<FlowKey>>) {
        let mut open = match open {
            Ok(open) => open,
            Err(error) => return tracing::warn!(%error, "cannot list this host's sockets"),
        };
        let sessions = self.plane.agent.sessions();
        self.ports.hold_missing_ports(&sessions, &open);
        // These sockets are no session's.
        for connection in self.ports.connections() {
            open.remove(connection);
        }
        let gone = self.sockets.look(&sessions, &open, clock::boot_time());
        for slot in gone {
            self.plane
                .collector
                .abandoned(slot, &self.plane.agent.session(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;
    use std::net::SocketAddr;

    fn session(state: State) -> Session {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        Session {
            state: state as u32,
            key: FlowKey::new(at("10.0.1.1:40000"), at("10.0.2.1:9000")),
            created_ns: 1,
            ..Session::default()
        }
    }

    #[test]
    fn a_session_goes_when_its_socket_was_missed_twice() {
        let all = [(3, session(State::Tracked))];
        let open = HashSet::from([all[0].1.key]);
        let mut sockets = Sockets::default();
        let mut look = |open: &HashSet<FlowKey>, now| sockets.look(&all, open, now);
        let none = HashSet::new();
        // Its socket may be another host's, or not be listed yet.
        assert!(look(&none, 2 * YOUNG).is_empty() && look(&none, 2 * YOUNG).is_empty());
        assert!(look(&open, 2 * YOUNG).is_empty());
        assert!(look(&none, 2 * YOUNG).is_empty());
        assert_eq!(look(&none, 2 * YOUNG), [3]);
    }

    #[test]
    fn one_that_was_adopted_had_a_socket() {
        let all = [(3, session(State::Adopted))];
        let none = HashSet::new();
        let mut sockets = Sockets::default();
        assert!(sockets.look(&all, &none, YOUNG / 2).is_empty());
        assert!(sockets.look(&all, &none, 2 * YOUNG).is_empty());
        assert_eq!(sockets.look(&all, &none, 2 * YOUNG), [3]);
    }
}
