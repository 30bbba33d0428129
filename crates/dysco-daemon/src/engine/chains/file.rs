//! Decides when the policy's file is read: at once after a complete write, and otherwise when two
//! looks have seen the same file. A file that an editor is about to rewrite is therefore not taken
//! for removed, and a file that cannot be watched is read too.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

/// Attributes of a file that can be seen without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    /// Device and inode.
    file: (u64, u64),
    size: u64,
    /// Time of the change, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            file: (file.dev(), file.ino()),
            size: file.size(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// Policy file, with what was seen of it.
#[derive(Default)]
pub(super) struct PolicyFile {
    /// Stamp at the last read; none if the file was absent.
    read: Option<Stamp>,
    /// Stamp at the last look.
    seen: Option<Stamp>,
    watcher: Option<RecommendedWatcher>,
}

impl PolicyFile {
    /// Records that the file is about to be read.
    pub(super) fn reads(&mut self, path: &Path) {
        self.read_as(Stamp::of(path));
    }

    /// Looks at the file. Returns true if it has to be read.
    pub(super) fn look(&mut self, path: &Path) -> bool {
        self.sees(Stamp::of(path))
    }

    fn read_as(&mut self, now: Option<Stamp>) {
        (self.read, self.seen) = (now, now);
    }

    fn sees(&mut self, now: Option<Stamp>) -> bool {
        let settled = std::mem::replace(&mut self.seen, now) == now;
        settled && self.read != now
    }

    /// Calls `written` when a file was completely written at this path.
    pub(super) fn watch(
        &mut self,
        path: &Path,
        written: impl Fn() + Send + 'static,
    ) -> notify::Result<()> {
        let name = path.to_owned();
        let tell = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|e| is_whole(e.kind) && e.paths.contains(&name)) {
                written();
            }
        };
        let mut watcher = notify::recommended_watcher(tell)?;
        let dir = path.parent().unwrap_or(path);
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        self.watcher = Some(watcher);
        Ok(())
    }
}

/// Returns true if the file may be read after this event. A file that is being written may be
/// empty, which is a valid policy; so may the new file of an editor that renames the old one.
fn is_whole(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(RenameMode::To))
    )
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, RemoveKind};

    use super::*;

    fn stamp(size: u64) -> Option<Stamp> {
        Some(Stamp {
            file: (1, 1),
            size,
            changed: (0, 0),
        })
    }

    /// Returns how often the file is read while these stamps are seen.
    fn reads(looks: &[Option<Stamp>]) -> usize {
        let mut file = PolicyFile::default();
        file.read_as(stamp(10));
        let due = looks.iter().filter(|look| {
            let due = file.sees(**look);
            if due {
                file.read_as(**look);
            }
            due
        });
        due.count()
    }

    #[test]
    fn what_two_looks_have_seen_is_read_once() {
        let (before, after) = (stamp(10), stamp(20));
        assert_eq!(reads(&[before, before]), 0);
        assert_eq!(reads(&[after, after, after]), 1);
        assert_eq!(reads(&[stamp(0), after, stamp(21)]), 0);
        // Another file takes its place, or it is removed.
        assert_eq!(reads(&[None, after, after]), 1);
        assert_eq!(reads(&[None, before, before]), 0);
        assert_eq!(reads(&[None, None, None]), 1);
        assert_eq!(reads(&[None, None, after, after]), 2);
    }

    #[test]
    fn one_that_was_renamed_or_removed_is_not_read() {
        let renamed = |mode| EventKind::Modify(ModifyKind::Name(mode));
        assert!(is_whole(renamed(RenameMode::To)));
        for kind in [
            renamed(RenameMode::From),
            renamed(RenameMode::Both),
            EventKind::Remove(RemoveKind::File),
            EventKind::Create(CreateKind::File),
        ] {
            assert!(!is_whole(kind), "{kind:?}");
        }
    }

    #[test]
    fn a_file_that_is_written_anew_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.toml");
        let mut file = PolicyFile::default();
        file.reads(&path);
        assert!(!file.look(&path) && !file.look(&path));
        fs::write(&path, "a").unwrap();
        assert!(!file.look(&path) && file.look(&path));
        file.reads(&path);
        // As an editor does that keeps the old file.
        fs::rename(&path, dir.path().join("policy.toml~")).unwrap();
        assert!(!file.look(&path));
        fs::write(&path, "b").unwrap();
        assert!(!file.look(&path) && file.look(&path));
    }
}
