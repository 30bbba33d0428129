//! Removal of sessions that do not pass here any more from this host's firewall. An entry that a
//! look-up finds is removed at once. If there is none, the whole table has to be searched for other
//! zones, which may take the kernel tens of milliseconds: one search at a time, for all waiting
//! sessions, under the usual scheduling policy.

use dysco_firewall::{self as state, FiveTuple, StateError};
use dysco_scheduling::{spawn_long, spawn_short};

use crate::engine::{Answer, ChainUpdates, Plane};

/// Session that the firewall has to forget, and the answer that is sent then.
pub(in crate::engine) struct Cleared {
    known: FiveTuple,
    then: Answer,
}

/// Sessions that are searched for.
#[derive(Default)]
pub(super) struct Clearing {
    waiting: Vec<Cleared>,
    searching: bool,
}

impl Clearing {
    /// Returns the sessions to search for next, if no search is running.
    fn next(&mut self) -> Option<Vec<Cleared>> {
        if self.searching || self.waiting.is_empty() {
            return None;
        }
        self.searching = true;
        Some(std::mem::take(&mut self.waiting))
    }
}

impl Plane {
    /// Makes the firewall forget a session that has left, and then sends the answer.
    pub(super) fn remove_all_state(&self, known: FiveTuple, then: Answer) {
        let answers = self.answers.clone();
        spawn_short(move || {
            let answer = match state::remove_known(&known) {
                Ok(true) => then,
                Ok(false) => Answer::Unknown(Box::new(Cleared { known, then })),
                Err(error) => {
                    not_removed(&error);
                    then
                }
            };
            // The engine may have ended.
            let _ = answers.send(answer);
        });
    }
}

impl ChainUpdates {
    /// Queues a session for the search, after a look-up has found no entry of it.
    pub(in crate::engine) fn search_state(&mut self, plane: &Plane, session: Cleared) {
        self.clearing.waiting.push(session);
        self.search_next(plane);
    }

    /// Records that a search has ended.
    pub(in crate::engine) fn search_ended(&mut self) {
        self.clearing.searching = false;
    }

    /// Begins the next search, unless one is running.
    pub(in crate::engine) fn search_next(&mut self, plane: &Plane) {
        let Some(batch) = self.clearing.next() else {
            return;
        };
        let answers = plane.answers.clone();
        spawn_long(move || {
            let sessions: Vec<_> = batch.iter().map(|cleared| cleared.known).collect();
            if let Err(error) = state::remove_many(&sessions) {
                not_removed(&error);
            }
            let then = batch.into_iter().map(|cleared| cleared.then).collect();
            let _ = answers.send(Answer::Searched(then));
        });
    }
}

fn not_removed(error: &StateError) {
    tracing::warn!(%error, "what the firewall knows of a session that has left is not removed");
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn what_comes_during_a_search_waits_for_one_more_for_all() {
        let cleared = |port| Cleared {
            known: FiveTuple {
                source: SocketAddr::from(([10, 0, 0, 1], port)),
                destination: SocketAddr::from(([10, 0, 0, 2], 80)),
            },
            then: Answer::PolicyWritten,
        };
        let ports = |batch: Option<Vec<Cleared>>| {
            let all = batch.into_iter().flatten();
            all.map(|c| c.known.source.port()).collect::<Vec<_>>()
        };
        let mut clearing = Clearing::default();
        assert!(clearing.next().is_none());
        clearing.waiting.push(cleared(1));
        assert_eq!(ports(clearing.next()), [1]);
        clearing.waiting.extend([cleared(2), cleared(3)]);
        assert!(clearing.next().is_none());
        clearing.searching = false;
        assert_eq!(ports(clearing.next()), [2, 3]);
    }
}
