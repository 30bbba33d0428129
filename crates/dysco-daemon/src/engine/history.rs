//! History of sessions, in memory and in a file that the next process reads: one JSON object a
//! line, appended. An event that the file lacks is missing in listings of sessions, and nowhere
//! else.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use dysco_api::{HistoryEntry, SessionId, WayChange};
use serde::{Deserialize, Serialize};

use super::clock::boot_time;
use super::line_file::{Content, LineFile};

/// Maximum number of entries of a session's history.
const ENTRIES: usize = 16;
/// Loss if the file cannot be written, for the log.
const LOSS: &str = "what happens to sessions is not written down";

/// Histories of a limited number of sessions.
pub(super) struct History {
    sessions: usize,
    file: LineFile<Events>,
    /// True if a session has taken another path, and the file may lack it.
    changed: bool,
}

/// Events by session, oldest first.
#[derive(Default)]
struct Events(HashMap<SessionId, VecDeque<PastEvent>>);

/// Origin of an event.
#[derive(Clone, Default)]
pub(super) struct Origin {
    /// Initiator, in the words of a session's history.
    pub by: Option<String>,
    /// Id of the change that the event is a part of, which all hosts of the change share.
    pub change_id: Option<String>,
}

impl Origin {
    /// Returns the origin of an event that somebody asked for.
    pub(super) fn by(by: Option<String>) -> Origin {
        Origin {
            by,
            change_id: None,
        }
    }
}

/// Event of a session's past.
#[derive(Clone, Serialize, Deserialize)]
struct PastEvent {
    /// Milliseconds since the machine began.
    at: u64,
    what: String,
    /// Initiator of the event. That of a change of the way is in the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change: Option<WayChange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change_id: Option<String>,
}

/// Line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Happened(SessionId, PastEvent),
    /// The session has the second name from here on.
    Renamed(SessionId, SessionId),
}

impl Content for Events {
    type Line = Line;

    fn apply(&mut self, line: Line) {
        match line {
            Line::Happened(session, past) => {
                let entries = self.0.entry(session).or_default();
                if entries.len() == ENTRIES {
                    entries.pop_front();
                }
                entries.push_back(past);
            }
            Line::Renamed(session, now) => {
                if let Some(past) = self.0.remove(&session) {
                    self.0.insert(now, past);
                }
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        self.0.iter().flat_map(|(session, entries)| {
            let line = |past: &PastEvent| Line::Happened(*session, past.clone());
            entries.iter().map(line)
        })
    }
}

/// Returns the words before the text of an event of this kind, if the text does not say what
/// happened. A monitor shows the kind.
pub(super) fn verb(kind: &str) -> &'static str {
    match kind {
        "services-put" => "services put in: ",
        "services-taken" => "services taken out: ",
        "tuned" => "tuned: ",
        "untuned" => "put back: ",
        _ => "",
    }
}

impl History {
    /// Reads the file of a former process. Keeps the histories of `sessions` sessions at most.
    pub(super) fn open(path: &Path, sessions: usize) -> History {
        let file = LineFile::open(path, Events::default(), LOSS);
        History {
            sessions,
            file,
            changed: false,
        }
    }

    /// Forgets all sessions but these, and rewrites the file.
    pub(super) fn retain(&mut self, lives: impl Fn(SessionId) -> bool) {
        self.file
            .edit(|events| events.0.retain(|session, _| lives(*session)));
    }

    /// Adds an event of this origin.
    pub(super) fn add(&mut self, session: SessionId, what: &str, origin: Origin) {
        let past = PastEvent {
            at: boot_time().as_millis() as u64,
            what: what.to_owned(),
            by: origin.by,
            change: None,
            change_id: origin.change_id,
        };
        self.push(session, past);
    }

    /// Adds that another path was taken, by a change of this id.
    pub(super) fn changed(
        &mut self,
        session: SessionId,
        change: WayChange,
        change_id: Option<String>,
    ) {
        let past = PastEvent {
            at: boot_time().as_millis() as u64,
            what: format!("{} to {}", change.from, change.to),
            by: None,
            change: Some(change),
            change_id,
        };
        self.push(session, past);
        self.changed = true;
    }

    /// Writes the paths that were taken since the last call.
    pub(super) fn write(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.file.flush();
        }
    }

    fn push(&mut self, session: SessionId, past: PastEvent) {
        let known = &self.file.content().0;
        if known.len() >= self.sessions && !known.contains_key(&session) {
            return;
        }
        self.file.add(Line::Happened(session, past));
    }

    /// Records that a session has another name.
    pub(super) fn rename(&mut self, session: SessionId, now: SessionId) {
        self.file.add(Line::Renamed(session, now));
    }

    /// Forgets a session that is gone.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.file.content_mut().0.remove(&session);
    }

    /// Returns the history of a session, oldest entry first.
    pub(super) fn of(&self, session: SessionId) -> Vec<HistoryEntry> {
        let now = boot_time();
        let entries = self.file.content().0.get(&session);
        let entries = entries.into_iter().flatten();
        let ago = |past: &PastEvent| now.saturating_sub(Duration::from_millis(past.at));
        let by_change = |past: &PastEvent| past.change.as_ref().map(|change| change.by.clone());
        entries
            .map(|past| HistoryEntry {
                ago_s: ago(past).as_secs_f64(),
                what: past.what.clone(),
                by: past.by.clone().or_else(|| by_change(past)),
                change: past.change.clone(),
                change_id: past.change_id.clone(),
            })
            .collect()
    }

    /// Writes lines that wait. To be called from time to time.
    pub(super) fn flush(&mut self) {
        self.file.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use dysco_api::Way;

    use super::super::line_file::LONG;
    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    fn whats(history: &History, session: SessionId) -> Vec<String> {
        history.of(session).into_iter().map(|e| e.what).collect()
    }

    fn to_local() -> WayChange {
        WayChange {
            from: Way::Middlebox,
            to: Way::Local,
            by: "root on this host (process 7)".into(),
        }
    }

    #[test]
    fn the_next_process_knows_what_the_last_one_did() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut history = History::open(&path, 10);
        history.retain(|_| true);
        let by = Some("root on this host (process 8)".to_owned());
        history.add(ONE, "adopted", Origin::by(by.clone()));
        history.changed(ONE, to_local(), Some("c1".into()));
        history.add(TWO, "gone by the next start", Origin::default());
        history.rename(ONE, SessionId(3));
        history.flush();
        // A process that is killed leaves half a line.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"happened\":[\"").unwrap();

        let mut next = History::open(&path, 10);
        next.retain(|session| session != TWO);
        assert_eq!(
            whats(&next, SessionId(3)),
            ["adopted", "middlebox to local"]
        );
        let entry = &next.of(SessionId(3))[1];
        assert_eq!(entry.change, Some(to_local()));
        assert_eq!(entry.change_id.as_deref(), Some("c1"));
        assert_eq!(entry.by, Some(to_local().by));
        assert_eq!(next.of(SessionId(3))[0].by, by);
        assert!(whats(&next, ONE).is_empty() && whats(&next, TWO).is_empty());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn the_file_does_not_grow_with_the_past() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut history = History::open(&path, 10);
        history.retain(|_| true);
        for session in 0..40_000 {
            history.add(
                SessionId(session),
                "it came, and it went as all of them do",
                Origin::default(),
            );
            history.forget(SessionId(session));
            history.flush();
        }
        assert!(fs::metadata(&path).unwrap().len() < 2 * LONG);
    }

    #[test]
    fn only_so_many_sessions_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(&dir.path().join("history"), 1);
        for (session, what) in [(ONE, "first"), (TWO, "one too many"), (ONE, "second")] {
            history.add(session, what, Origin::default());
        }
        assert_eq!(whats(&history, ONE), ["first", "second"]);
        assert!(whats(&history, TWO).is_empty());
    }

    #[test]
    fn services_that_come_are_told_from_those_that_leave() {
        assert_ne!(verb("services-put"), verb("services-taken"));
        assert!(verb("closed").is_empty());
    }
}
