//! Record of the socket options that were set, in memory and in a file that the next process
//! reads. An option that the file lacks cannot be put back after a restart.

use std::collections::HashMap;
use std::path::Path;

use dysco_api::{SessionId, TunedOption};
use dysco_proxy::tuning::Change;
use serde::{Deserialize, Serialize};

use crate::engine::line_file::{Content, LineFile};

/// Loss if the file cannot be written, for the log.
const LOSS: &str = "socket options that are set now cannot be put back after a restart";

/// Options that were set, and the file of them.
pub(in crate::engine) struct Tunings(LineFile<Entries>);

/// Options that were set, by session.
#[derive(Default)]
struct Entries(HashMap<SessionId, Entry>);

/// Options of one socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct Entry {
    /// Cookie of the socket: another one with the same addresses was not tuned.
    pub cookie: u64,
    /// Options with the values that the program gave them, and those of the last request.
    pub set: Vec<Change>,
}

/// Line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Tuned(SessionId, Entry),
    Over(SessionId),
    /// The session has the second name from here on.
    Renamed(SessionId, SessionId),
}

impl Entry {
    /// Returns the entry with these changes of the socket, or `None` if all options have the values
    /// that the program gave them.
    pub(crate) fn with(before: Option<&Entry>, cookie: u64, changes: &[Change]) -> Option<Entry> {
        let same = before.filter(|entry| entry.cookie == cookie);
        let mut set = same.map_or_else(Vec::new, |entry| entry.set.clone());
        for change in changes {
            match set.iter_mut().find(|known| known.option == change.option) {
                Some(known) if known.to == change.from => known.to = change.to.clone(),
                // The program has set it itself since.
                Some(known) => *known = change.clone(),
                None => set.push(change.clone()),
            }
        }
        set.retain(|change| change.from != change.to);
        (!set.is_empty()).then_some(Entry { cookie, set })
    }
}

impl Content for Entries {
    type Line = Line;

    fn apply(&mut self, line: Line) {
        match line {
            Line::Tuned(session, entry) => drop(self.0.insert(session, entry)),
            Line::Over(session) => drop(self.0.remove(&session)),
            Line::Renamed(session, now) => {
                if let Some(entry) = self.0.remove(&session) {
                    self.0.insert(now, entry);
                }
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        let all = self.0.iter();
        all.map(|(session, entry)| Line::Tuned(*session, entry.clone()))
    }
}

impl Tunings {
    /// Reads the file of a former process.
    pub(crate) fn open(path: &Path) -> Tunings {
        Tunings(LineFile::open(path, Entries::default(), LOSS))
    }

    /// Forgets all sessions but these, and rewrites the file.
    pub(crate) fn retain(&mut self, lives: impl Fn(SessionId) -> bool) {
        self.0
            .edit(|entries| entries.0.retain(|session, _| lives(*session)));
    }

    /// Returns the entry of a session.
    pub(crate) fn get(&self, session: SessionId) -> Option<&Entry> {
        self.0.content().0.get(&session)
    }

    /// Replaces the entry of a session.
    pub(crate) fn put(&mut self, session: SessionId, entry: Option<Entry>) {
        match entry {
            Some(entry) => self.0.add(Line::Tuned(session, entry)),
            None => self.forget(session),
        }
    }

    /// Forgets a session that is gone, or whose socket has its former options.
    pub(crate) fn forget(&mut self, session: SessionId) {
        if self.get(session).is_some() {
            self.0.add(Line::Over(session));
        }
    }

    /// Records that a session has another name.
    pub(crate) fn rename(&mut self, session: SessionId, now: SessionId) {
        if self.get(session).is_some() {
            self.0.add(Line::Renamed(session, now));
        }
    }

    /// Returns the options that a session's socket has by requests, for a listing.
    pub(crate) fn listed(&self, session: SessionId) -> Vec<TunedOption> {
        let set = self.get(session).map(|entry| &entry.set);
        set.into_iter().flatten().map(Change::report).collect()
    }

    /// Writes lines that wait. To be called from time to time.
    pub(crate) fn flush(&mut self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use dysco_api::SocketOption;
    use dysco_proxy::tuning::Value;

    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    fn congestion(from: &str, to: &str) -> Change {
        Change {
            option: SocketOption::Congestion,
            from: Value::Name(from.into()),
            to: Value::Name(to.into()),
        }
    }

    fn nodelay(from: u64, to: u64) -> Change {
        Change {
            option: SocketOption::Nodelay,
            from: Value::Number(from),
            to: Value::Number(to),
        }
    }

    #[test]
    fn the_values_before_the_first_request_are_kept() {
        let first = Entry::with(None, 7, &[congestion("cubic", "bbr"), nodelay(0, 1)]).unwrap();
        let second = Entry::with(Some(&first), 7, &[congestion("bbr", "reno")]).unwrap();
        assert_eq!(second.set, [congestion("cubic", "reno"), nodelay(0, 1)]);
        // Another request may put an option back.
        let third = Entry::with(Some(&second), 7, &[congestion("reno", "cubic")]).unwrap();
        assert_eq!(third.set, [nodelay(0, 1)]);
        assert_eq!(Entry::with(Some(&third), 7, &[nodelay(1, 0)]), None);
    }

    #[test]
    fn another_socket_begins_anew() {
        let first = Entry::with(None, 7, &[congestion("cubic", "bbr")]).unwrap();
        let other = Entry::with(Some(&first), 8, &[congestion("reno", "bbr")]).unwrap();
        assert_eq!(
            (other.cookie, other.set),
            (8, vec![congestion("reno", "bbr")])
        );
    }

    /// The value that the program has set itself is the one to put back.
    #[test]
    fn a_value_of_the_program_is_kept_as_well() {
        let first = Entry::with(None, 7, &[congestion("cubic", "bbr")]).unwrap();
        let second = Entry::with(Some(&first), 7, &[congestion("reno", "bbr")]).unwrap();
        assert_eq!(second.set, [congestion("reno", "bbr")]);
    }

    #[test]
    fn the_next_process_can_put_back_what_the_last_one_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tuned");
        let mut tunings = Tunings::open(&path);
        tunings.retain(|_| true);
        let entry = |cookie| Entry::with(None, cookie, &[congestion("cubic", "bbr")]);
        tunings.put(ONE, entry(1));
        tunings.put(TWO, entry(2));
        tunings.put(SessionId(4), entry(4));
        tunings.rename(ONE, SessionId(3));
        tunings.put(SessionId(4), None);
        tunings.flush();
        let mut next = Tunings::open(&path);
        next.retain(|session| session != TWO);
        assert_eq!(next.get(SessionId(3)), entry(1).as_ref());
        assert_eq!(
            next.listed(SessionId(3))[0].to_string(),
            "congestion cubic to bbr"
        );
        for gone in [ONE, TWO, SessionId(4)] {
            assert!(next.get(gone).is_none() && next.listed(gone).is_empty());
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
