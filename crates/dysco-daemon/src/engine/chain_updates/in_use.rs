//! Sessions that pass this host by two paths, of which this host does not know which one is in use:
//! its daemon was away when a change of their chain ended. The host that opened a session knows,
//! and is asked. Until it has answered, both paths stay and carry what arrives on them. That host
//! is also asked whether a session that is silent here is over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_common::Session;
use dysco_common::transit::Keep;
use dysco_common::view::{Change, View};
use dysco_control::Incoming;
use dysco_proto::{ChangeId, Machine, Subsession};

use super::hosts::keys_of;
use super::opener::has_opened;
use crate::engine::chains::message::{InUse, MANY, Message, Passes};
use crate::engine::firewall::as_opened;
use crate::engine::{Answer, ChainUpdates, Plane, measure};

/// Time after which the opener is asked: a change that this process knows reports its end itself,
/// within this time or never.
const PATIENCE: Duration = Duration::from_secs(30);
/// Minimum interval between two questions to the host that opened a session.
const AGAIN: Duration = Duration::from_secs(2);

/// Sessions about which this host waits for an answer.
#[derive(Default)]
pub(super) struct Questions(HashMap<Subsession, Question>);

struct Question {
    paths: Vec<u32>,
    /// Change by which the session passes here, as far as this process knows.
    by: Option<ChangeId>,
    since: Instant,
    asked: Option<Instant>,
    /// Time at which the session was last seen here.
    seen: Instant,
}

impl Questions {
    /// Records that a session passes by these paths. Returns true if it is time to ask.
    fn see(&mut self, passes: &Passes, by: Option<ChangeId>, now: Instant) -> bool {
        self.forget_silent(now);
        if self.0.len() >= MANY && !self.0.contains_key(&passes.session) {
            // Its turn comes when others have been answered.
            return false;
        }
        let fresh = || Question {
            paths: passes.paths.clone(),
            by,
            since: now,
            asked: None,
            seen: now,
        };
        let question = self.0.entry(passes.session).or_insert_with(fresh);
        if (&question.paths, question.by) != (&passes.paths, by) {
            *question = fresh();
        }
        question.seen = now;
        let is_announced = by.is_some() && now - question.since < PATIENCE;
        let waits = question.asked.is_some_and(|at| now - at < AGAIN);
        if is_announced || waits {
            return false;
        }
        question.asked = Some(now);
        true
    }

    /// Makes room if there is none: a host that has vanished answers nothing.
    fn forget_silent(&mut self, now: Instant) {
        if self.0.len() >= MANY {
            self.0.retain(|_, question| now - question.seen < PATIENCE);
        }
    }

    /// Records that the host that opened a session is asked now. Returns false if there is no room.
    fn asks(&mut self, passes: &Passes, by: Option<ChangeId>, now: Instant) -> bool {
        self.forget_silent(now);
        if self.0.len() >= MANY && !self.0.contains_key(&passes.session) {
            return false;
        }
        let question = Question {
            paths: passes.paths.clone(),
            by,
            since: now,
            asked: Some(now),
            seen: now,
        };
        self.0.insert(passes.session, question);
        true
    }

    /// Removes the question that was answered. Returns true if nothing was learned about the
    /// session since.
    fn answered(&mut self, asked: &Passes, by: Option<ChangeId>) -> bool {
        let question = self.0.get(&asked.session);
        let same = |d: &Question| d.asked.is_some() && (&d.paths, d.by) == (&asked.paths, by);
        let is_its = question.is_some_and(same);
        if is_its {
            self.0.remove(&asked.session);
        }
        is_its
    }
}

/// Returns true if this entry is in use by a session that passes here, and has another beside it.
fn has_two(s: &Session) -> bool {
    let beside =
        matches!(s.view(), View::Changing(Change::Passing(route)) if route.other.is_some());
    beside && s.is_current()
}

impl ChainUpdates {
    /// Looks at an entry of the table: asks about the session if it passes by two paths.
    pub(in crate::engine) fn check_paths(&mut self, plane: &Plane, s: &Session) {
        if !has_two(s) {
            return;
        }
        let session = match s.life.opened_here {
            0 => measure::accepted(&s.name()),
            _ => measure::opened(&s.name()),
        };
        self.ask_in_use(plane, session);
    }

    /// Asks which paths of a session are in use.
    pub(super) fn ask_in_use(&mut self, plane: &Plane, session: Subsession) {
        let passes = plane.passes_by(session);
        let by = self.passing.by(&session);
        let now = Instant::now();
        if self.questions.see(&passes, by, now) {
            plane.send_about_chains(session.left.ip(), &Message::WhichPath(passes));
        }
    }

    /// Asks whether a silent session that passes here lives. Its end may have passed by another
    /// path.
    pub(in crate::engine) fn ask_whether_over(&mut self, plane: &Plane, s: &Session) {
        let session = measure::accepted(&s.name());
        let passes = plane.passes_by(session);
        let by = self.passing.by(&session);
        if self.questions.asks(&passes, by, Instant::now()) {
            plane.send_about_chains(session.left.ip(), &Message::WhichPath(passes));
        }
    }

    /// Handles the opener's answer which paths of a session are in use.
    pub(in crate::engine) fn in_use_answered(
        &mut self,
        plane: &mut Plane,
        answer: &InUse,
        incoming: &Incoming,
    ) {
        let session = answer.asked.session;
        let by = self.passing.by(&session);
        let speaks = incoming.from.holds(session.left.ip());
        if !speaks
            || plane.passes_by(session) != answer.asked
            || !self.questions.answered(&answer.asked, by)
        {
            return;
        }
        match &answer.now {
            Some(paths) => {
                let keep = Keep::InUse {
                    paths,
                    until: u32::MAX,
                };
                let left = plane.agent.keep_one_path(&keys_of(&session), keep);
                tracing::info!(
                    %session, ?paths, given_up = left.len(),
                    "the host that opened a session has reported the session's paths here"
                );
                for slot in left {
                    self.tombstone_path(plane, Some(slot));
                }
            }
            None => {
                tracing::info!(
                    %session,
                    "a session is forgotten: the host that opened it reports that it is over, or \
                     has left this host"
                );
                let known = plane.known_to_firewall(&as_opened(&session));
                self.passing.left(&session);
                self.tombstone_transit(plane, &session);
                plane.remove_all_state(known, Answer::Removed);
            }
        }
    }
}

impl Plane {
    fn passes_by(&self, session: Subsession) -> Passes {
        let entries = self.agent.passing_entries(&keys_of(&session));
        let mut paths = self.numbers_of(&entries);
        paths.sort_unstable();
        paths.dedup();
        Passes { session, paths }
    }

    /// Answers a host that asks which paths of a session are in use, once no change of the session
    /// is in progress. Before that, the change itself notifies the host.
    pub(in crate::engine) fn tell_in_use(
        &self,
        asked: Passes,
        incoming: &Incoming,
        machine: &Machine,
    ) {
        let Some(slot) = self.find(&asked.session) else {
            // The session is over, and its entry is gone.
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
        let opened_here = has_opened(&s) && measure::opened(&s.name()) == asked.session;
        let given = self.given(slot, &s);
        // The paths are of a former session with the same name.
        let of_another = asked.paths.iter().all(|number| *number > given.highest);
        let waits = machine.is_changing(&asked.session) && !of_another;
        if !opened_here || waits {
            return;
        }
        let chain = self.chain_now(slot, &s);
        let passes =
            !of_another && !s.has_ended() && chain.iter().any(|e| incoming.from.holds(e.host()));
        let now = passes.then(|| given.paths().to_vec());
        let answer = InUse { asked, now };
        self.send_about_chains(incoming.via, &Message::InUse(answer));
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
        let (mut questions, now) = (Questions::default(), Instant::now());
        assert!(questions.see(&passes(&[0, 1]), None, now));
        assert!(!questions.see(&passes(&[0, 1]), None, now + AGAIN / 2));
        assert!(questions.see(&passes(&[0, 1]), None, now + AGAIN));

        let mut questions = Questions::default();
        assert!(!questions.see(&passes(&[0, 1]), CHANGE, now));
        assert!(!questions.see(&passes(&[0, 1]), CHANGE, now + PATIENCE / 2));
        assert!(questions.see(&passes(&[0, 1]), CHANGE, now + PATIENCE));
        // With other paths it is another question.
        assert!(!questions.see(&passes(&[1, 2]), CHANGE, now + PATIENCE));
    }

    #[test]
    fn an_answer_counts_as_long_as_nothing_else_was_heard_of_the_session() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let asked = passes(&[0, 1]);
        assert!(!questions.answered(&asked, None), "nobody has asked");
        questions.see(&asked, None, now);
        assert!(!questions.answered(&passes(&[1, 2]), None));
        assert!(!questions.answered(&asked, CHANGE));
        assert!(questions.answered(&asked, None));
        assert!(!questions.answered(&asked, None), "it comes twice");
    }
}
