//! Sessions that pass this host by two paths, where nobody has said which one is in use: this
//! daemon was away when a change of their chain ended. The host that opened a session knows,
//! and is asked. Until it has answered both paths stay, and carry whatever comes by them.
//! Of a session that is silent here it is asked as well, whether that is over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_common::session::part;
use dysco_common::transit::Keep;
use dysco_common::{Session, State};
use dysco_control::Incoming;
use dysco_proto::{ChangeId, Subsession};
use serde::{Deserialize, Serialize};

use super::hosts::keys_of;
use crate::engine::chains::{MANY, Message};
use crate::engine::firewall::as_opened;
use crate::engine::{Answer, Engine, measure};

/// A change that this process has heard of says itself how it ends. It takes no longer, or
/// has given up saying so.
const PATIENCE: Duration = Duration::from_secs(30);
/// The host that opened a session is asked this often at most.
const AGAIN: Duration = Duration::from_secs(2);

/// A session that passes a host, and the numbers of the paths by which it does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct Passes {
    /// As the host has it that opened it.
    session: Subsession,
    /// In order, each once.
    paths: Vec<u32>,
}

/// What the host that opened it says: no change of it is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct InUse {
    /// What it was asked.
    asked: Passes,
    /// Numbers of the paths in use; none if who asked is no host of its chain.
    now: Option<Vec<u32>>,
}

/// What this host waits to be told.
#[derive(Default)]
pub(super) struct Doubts(HashMap<Subsession, Doubt>);

struct Doubt {
    paths: Vec<u32>,
    /// The change by which the session passes here, as far as this process has heard.
    by: Option<ChangeId>,
    since: Instant,
    asked: Option<Instant>,
    /// Seen since the last look for those that are over.
    seen: Instant,
}

impl Doubts {
    /// Takes in that a session passes by these paths. Is it time to ask?
    fn see(&mut self, passes: &Passes, by: Option<ChangeId>, now: Instant) -> bool {
        if self.0.len() >= MANY {
            self.0.retain(|_, doubt| now - doubt.seen < PATIENCE);
            if self.0.len() >= MANY && !self.0.contains_key(&passes.session) {
                // Its turn comes when others have been answered.
                return false;
            }
        }
        let fresh = || Doubt {
            paths: passes.paths.clone(),
            by,
            since: now,
            asked: None,
            seen: now,
        };
        let doubt = self.0.entry(passes.session).or_insert_with(fresh);
        if (&doubt.paths, doubt.by) != (&passes.paths, by) {
            *doubt = fresh();
        }
        doubt.seen = now;
        let is_told = by.is_some() && now - doubt.since < PATIENCE;
        let waits = doubt.asked.is_some_and(|at| now - at < AGAIN);
        if is_told || waits {
            return false;
        }
        doubt.asked = Some(now);
        true
    }

    /// Takes in that the host that opened a session is asked now.
    fn asks(&mut self, passes: &Passes, by: Option<ChangeId>, now: Instant) -> bool {
        if self.0.len() >= MANY && !self.0.contains_key(&passes.session) {
            return false;
        }
        let doubt = Doubt {
            paths: passes.paths.clone(),
            by,
            since: now,
            asked: Some(now),
            seen: now,
        };
        self.0.insert(passes.session, doubt);
        true
    }

    /// Takes out what was asked about, if nothing has been heard of the session since.
    fn answered(&mut self, asked: &Passes, by: Option<ChangeId>) -> bool {
        let doubt = self.0.get(&asked.session);
        let same = |d: &Doubt| d.asked.is_some() && (&d.paths, d.by) == (&asked.paths, by);
        let is_its = doubt.is_some_and(same);
        if is_its {
            self.0.remove(&asked.session);
        }
        is_its
    }
}

/// Is this entry in use by a session that passes here, and has another beside it?
fn has_two(s: &Session) -> bool {
    s.state == State::Passing as u32 && s.two.part == part::CURRENT && s.other_path().is_some()
}

impl Engine {
    /// Looks at an entry of the table: asks about the session if it passes by two paths.
    pub(in crate::engine) fn doubt_paths(&mut self, s: &Session) {
        if !has_two(s) {
            return;
        }
        let session = match s.life.opened_here {
            0 => measure::accepted(&s.name()),
            _ => measure::opened(&s.name()),
        };
        self.ask_in_use(session);
    }

    /// Asks which paths of a session are in use.
    pub(super) fn ask_in_use(&mut self, session: Subsession) {
        let passes = self.passes_by(session);
        let by = self.rechain.passing.by(&session);
        let now = Instant::now();
        if self.rechain.doubts.see(&passes, by, now) {
            self.send_about_chains(session.left.ip(), &Message::WhichPath(passes));
        }
    }

    /// A session that passes here is silent: asks whether it lives. Its end may have gone by
    /// another path.
    pub(in crate::engine) fn ask_whether_over(&mut self, s: &Session) {
        let session = measure::accepted(&s.name());
        let passes = self.passes_by(session);
        let by = self.rechain.passing.by(&session);
        if self.rechain.doubts.asks(&passes, by, Instant::now()) {
            self.send_about_chains(session.left.ip(), &Message::WhichPath(passes));
        }
    }

    fn passes_by(&self, session: Subsession) -> Passes {
        let entries = self.agent.passing_entries(&keys_of(&session));
        let mut paths = self.numbers_of(&entries);
        paths.sort_unstable();
        paths.dedup();
        Passes { session, paths }
    }

    /// A host asks which paths of a session are in use. It is told once no change of it is
    /// under way; before, the change itself tells.
    pub(in crate::engine) fn tell_in_use(&self, asked: Passes, incoming: &Incoming) {
        let Some(slot) = self.find(&asked.session) else {
            // It is over, and its entry has gone.
            if self
                .config
                .host
                .addresses
                .contains(&asked.session.left.ip())
            {
                self.send_about_chains(incoming.via, &Message::InUse(InUse { asked, now: None }));
            }
            return;
        };
        let s = self.agent.session(slot);
        let opened_here = super::has_opened(&s) && measure::opened(&s.name()) == asked.session;
        let given = self.given(slot, &s);
        // Paths of a session before, which had the same name.
        let of_another = asked.paths.iter().all(|number| *number > given.highest);
        let waits = self.machine.is_changing(&asked.session) && !of_another;
        if !opened_here || waits {
            return;
        }
        let chain = self.chain_now(slot, &s);
        let passes =
            !of_another && !s.has_ended() && chain.iter().any(|host| incoming.from.holds(*host));
        let now = passes.then(|| given.paths().to_vec());
        let told = InUse { asked, now };
        self.send_about_chains(incoming.via, &Message::InUse(told));
    }

    /// The host that opened a session says which of its paths are in use.
    pub(in crate::engine) fn told_in_use(&mut self, told: &InUse, incoming: &Incoming) {
        let session = told.asked.session;
        let by = self.rechain.passing.by(&session);
        let speaks = incoming.from.holds(session.left.ip());
        if !speaks
            || self.passes_by(session) != told.asked
            || !self.rechain.doubts.answered(&told.asked, by)
        {
            return;
        }
        match &told.now {
            Some(paths) => {
                let keep = Keep::InUse {
                    paths,
                    until: u32::MAX,
                };
                let left = self.agent.keep_one_path(&keys_of(&session), keep);
                tracing::info!(%session, ?paths, given_up = left.len(), "the host that opened a session has said by which path it passes here");
                for slot in left {
                    self.entomb_path(Some(slot));
                }
            }
            None => {
                tracing::info!(%session, "a session is over, or has left this host: the host that opened it says so");
                let known = self.known_to_firewall(&as_opened(&session));
                self.rechain.passing.left(&session);
                self.entomb_passed(&session);
                self.remove_all_state(known, Answer::Removed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: Option<ChangeId> = Some(ChangeId([1; 16]));

    fn passes(paths: &[u32]) -> Passes {
        let session = Subsession {
            left: ([10, 0, 0, 1], 40_000).into(),
            right: ([10, 0, 0, 2], 80).into(),
        };
        let paths = paths.to_vec();
        Passes { session, paths }
    }

    #[test]
    fn who_was_away_asks_at_once_and_who_was_told_of_a_change_only_when_it_is_overdue() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        assert!(doubts.see(&passes(&[0, 1]), None, now));
        assert!(!doubts.see(&passes(&[0, 1]), None, now + AGAIN / 2));
        assert!(doubts.see(&passes(&[0, 1]), None, now + AGAIN));

        let mut doubts = Doubts::default();
        assert!(!doubts.see(&passes(&[0, 1]), CHANGE, now));
        assert!(!doubts.see(&passes(&[0, 1]), CHANGE, now + PATIENCE / 2));
        assert!(doubts.see(&passes(&[0, 1]), CHANGE, now + PATIENCE));
        // By other paths it is another question.
        assert!(!doubts.see(&passes(&[1, 2]), CHANGE, now + PATIENCE));
    }

    #[test]
    fn an_answer_counts_as_long_as_nothing_else_was_heard_of_the_session() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        let asked = passes(&[0, 1]);
        assert!(!doubts.answered(&asked, None), "nobody has asked");
        doubts.see(&asked, None, now);
        assert!(!doubts.answered(&passes(&[1, 2]), None));
        assert!(!doubts.answered(&asked, CHANGE));
        assert!(doubts.answered(&asked, None));
        assert!(!doubts.answered(&asked, None), "it comes twice");
    }
}
