//! Properties that must hold in the world.

use dysco_proto::{Progress, Report, Role};

use super::plane::State;
use super::world::World;

impl World {
    /// Checks that no host needs the middlebox any more when it is closed.
    pub(crate) fn check_close(&self, host: usize) {
        if self.session(host, host).state == State::Relay {
            return;
        }
        for (neighbour, link) in [(host - 1, host - 1), (host + 1, host)] {
            let session = &self.hosts[neighbour].plane.sessions[&self.links[link]];
            assert!(
                session.drained || session.gone,
                "closed before host {neighbour} has drained"
            );
            assert!(
                session.state == State::NewPath || session.gone,
                "closed while host {neighbour} is still in two paths"
            );
        }
    }

    /// Checks that neither anchor receives on the new path when a host takes the old path again.
    pub(crate) fn check_take_back(&self) {
        for (host, link) in [(0, 0), (2, 1)] {
            let s = self.session(host, link);
            let hears = s.state == State::TwoPaths && !s.muted;
            assert!(!hears, "taken back while host {host} hears the new path");
        }
    }

    /// Returns the ends of changes on a host.
    pub(crate) fn ends(&self, host: usize) -> Vec<(Role, Progress)> {
        let end = |r: &Report| match r {
            Report::Progress { role, progress, .. } if progress.is_end() => {
                Some((*role, progress.clone()))
            }
            _ => None,
        };
        self.hosts[host].reports.iter().filter_map(end).collect()
    }

    /// Checks that nothing is left over.
    pub(crate) fn quiet(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let machine = h.machine.as_ref().unwrap();
            let left: Vec<_> = machine.changes().collect();
            assert!(left.is_empty(), "host {i} still has {left:?}");
            assert_eq!(machine.poll_timeout(), None, "host {i} still waits");
            assert!(h.plane.locked.is_empty(), "host {i} still locks");
            assert!(h.plane.records.is_empty(), "host {i} still has records");
            for (rolled_back, cut) in h.plane.history.values() {
                assert!(!(rolled_back & cut), "host {i} cut and rolled back");
            }
        }
    }

    /// Checks that no host broke a rule or was accused of it.
    pub(crate) fn nobody_accused(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let accusation = |r: &&Report| matches!(r, Report::Violation { .. });
            assert_eq!(h.reports.iter().find(accusation), None, "by host {i}");
        }
    }

    /// Checks the final state after a removal by the middlebox's host alone. Returns true if the
    /// middlebox has left.
    pub(crate) fn settled_locally(&self, middle: usize) -> bool {
        self.quiet();
        let states = [middle - 1, middle].map(|l| self.session(middle, l).state);
        match states {
            [State::Relay, State::Relay] => true,
            [State::Tracked, State::Tracked] => false,
            other => panic!("one without the other: {other:?}"),
        }
    }

    /// Checks the final state: the anchors of the removal of `middle` agree, and nothing is left
    /// over. Returns true if the middlebox has left.
    pub(crate) fn settled(&self, middle: usize) -> bool {
        self.settled_from(State::Tracked, middle)
    }

    /// Checks the final state as `World::settled` does. `before` is the earlier state of the
    /// middle's two sessions.
    pub(crate) fn settled_from(&self, before: State, middle: usize) -> bool {
        self.quiet();
        let left = self.session(middle - 1, middle - 1);
        let right = self.session(middle + 1, middle);
        let at_middle = [middle - 1, middle].map(|l| self.session(middle, l).state);
        let states = (left.state, right.state);
        match states {
            (State::NewPath, State::NewPath) => {
                assert_eq!(at_middle, [State::Tombstone; 2]);
                true
            }
            (State::Tracked, State::Tracked) => {
                assert_eq!(at_middle, [before; 2]);
                assert!(
                    self.hosts[middle - 1].plane.ports.is_empty(),
                    "a port leaks"
                );
                false
            }
            other => panic!("the anchors disagree: {other:?}"),
        }
    }
}
