//! Record of the socket options that were set, in memory and in a file that the next process
//! reads. An option that the file lacks cannot be put back after a restart.

use std::collections::HashMap;
use std::path::Path;

use dysco_api::{SessionId, SocketOption, TunedOption};
use dysco_proxy::tuning::{Change, Tuned};
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
    pub set: Vec<Tuned>,
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
    /// Returns the entry for changes that are about to be made. Until they are settled, the socket
    /// may have the value of this request or that of the one before.
    pub(super) fn planned(before: Option<&Entry>, cookie: u64, changes: &[Change]) -> Entry {
        let mut entry = Entry::of(before, cookie);
        for change in changes {
            entry.note(change).or = Some(change.from.clone());
        }
        entry
    }

    /// Returns the entry with these changes of the socket, or `None` if all options have the values
    /// that the program gave them.
    pub(super) fn settled(
        before: Option<&Entry>,
        cookie: u64,
        changes: &[Change],
    ) -> Option<Entry> {
        let mut entry = Entry::of(before, cookie);
        for change in changes {
            entry.note(change).or = None;
        }
        let is_set = |tuned: &Tuned| tuned.or.is_some() || tuned.from != tuned.to;
        entry.set.retain(is_set);
        entry.kept()
    }

    /// Returns the entry of the options that could not be put back.
    pub(super) fn left(mut self, failed: impl Fn(SocketOption) -> bool) -> Option<Entry> {
        self.set.retain(|tuned| failed(tuned.option));
        self.kept()
    }

    /// Returns the entry of this socket. One with the same addresses may have been there before.
    fn of(before: Option<&Entry>, cookie: u64) -> Entry {
        let same = before.filter(|entry| entry.cookie == cookie);
        let set = same.map_or_else(Vec::new, |entry| entry.set.clone());
        Entry { cookie, set }
    }

    /// Notes the value of a change.
    fn note(&mut self, change: &Change) -> &mut Tuned {
        let known = self.set.iter().position(|t| t.option == change.option);
        let at = known.unwrap_or(self.set.len());
        match self.set.get_mut(at) {
            Some(known) if known.has_set(&change.from) => known.to = change.to.clone(),
            // The program has set it itself since.
            Some(known) => *known = change.clone().into(),
            None => self.set.push(change.clone().into()),
        }
        &mut self.set[at]
    }

    fn kept(self) -> Option<Entry> {
        (!self.set.is_empty()).then_some(self)
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
        set.into_iter().flatten().map(Tuned::report).collect()
    }

    /// Writes lines that wait. To be called from time to time.
    pub(crate) fn flush(&mut self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let first = Entry::settled(None, 7, &[congestion("cubic", "bbr"), nodelay(0, 1)]).unwrap();
        let second = Entry::settled(Some(&first), 7, &[congestion("bbr", "reno")]).unwrap();
        let set = [congestion("cubic", "reno"), nodelay(0, 1)];
        assert_eq!(second.set, set.map(Tuned::from));
        // Another request may put an option back.
        let third = Entry::settled(Some(&second), 7, &[congestion("reno", "cubic")]).unwrap();
        assert_eq!(third.set, [nodelay(0, 1).into()]);
        assert_eq!(Entry::settled(Some(&third), 7, &[nodelay(1, 0)]), None);
    }

    #[test]
    fn another_socket_begins_anew() {
        let first = Entry::settled(None, 7, &[congestion("cubic", "bbr")]).unwrap();
        let other = Entry::settled(Some(&first), 8, &[congestion("reno", "bbr")]).unwrap();
        assert_eq!(
            (other.cookie, other.set),
            (8, vec![congestion("reno", "bbr").into()])
        );
    }

    /// The value that the program has set itself is the one to put back.
    #[test]
    fn a_value_of_the_program_is_kept_as_well() {
        let first = Entry::settled(None, 7, &[congestion("cubic", "bbr")]).unwrap();
        let second = Entry::settled(Some(&first), 7, &[congestion("reno", "bbr")]).unwrap();
        assert_eq!(second.set, [congestion("reno", "bbr").into()]);
    }

    /// A daemon may die before the sockets of a request are reached, and after.
    #[test]
    fn both_values_of_a_request_in_progress_are_the_daemons() {
        let first = Entry::settled(None, 7, &[congestion("cubic", "bbr"), nodelay(0, 1)]).unwrap();
        let changes = [congestion("bbr", "reno"), nodelay(1, 0)];
        let planned = Entry::planned(Some(&first), 7, &changes);
        let values = |text: &str| Value::Name(text.into());
        let [of_congestion, of_nodelay] = &planned.set[..] else {
            panic!("{planned:?}");
        };
        assert_eq!(of_congestion.from, values("cubic"));
        for value in ["bbr", "reno"] {
            assert!(of_congestion.has_set(&values(value)), "{value}");
        }
        // It is about to get the program's value, and has another one as yet.
        assert!(of_nodelay.has_set(&Value::Number(1)));
        assert_eq!(of_nodelay.report().to_string(), "nodelay off to on");
        let line = serde_json::to_string(&planned).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), planned);
        // The next request finds either value.
        for from in ["bbr", "reno"] {
            let third = Entry::settled(Some(&planned), 7, &[congestion(from, "vegas")]).unwrap();
            assert_eq!(third.set[0], congestion("cubic", "vegas").into());
            assert!(third.set.contains(of_nodelay));
        }
        let settled = Entry::settled(Some(&first), 7, &changes).unwrap();
        assert_eq!(settled.set, [congestion("cubic", "reno").into()]);
    }

    #[test]
    fn what_could_not_be_put_back_is_kept() {
        let entry = Entry::settled(None, 7, &[congestion("cubic", "bbr"), nodelay(0, 1)]).unwrap();
        let left = entry.clone().left(|option| option == SocketOption::Nodelay);
        assert_eq!(left.unwrap().set, [nodelay(0, 1).into()]);
        assert_eq!(entry.left(|_| false), None);
    }

    /// The file of an earlier release has no second value.
    #[test]
    fn a_line_of_an_earlier_release_is_read() {
        let line = r#"{"cookie":7,"set":[{"option":"nodelay","from":0,"to":1}]}"#;
        let entry: Entry = serde_json::from_str(line).unwrap();
        assert_eq!(Some(entry), Entry::settled(None, 7, &[nodelay(0, 1)]));
    }

    #[test]
    fn the_next_process_can_put_back_what_the_last_one_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tuned");
        let mut tunings = Tunings::open(&path);
        tunings.retain(|_| true);
        let entry = |cookie| Entry::settled(None, cookie, &[congestion("cubic", "bbr")]);
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
        // `dyscoctl uninstall` counts these lines.
        assert!(text.starts_with("{\"tuned\":["), "{text}");
    }
}
