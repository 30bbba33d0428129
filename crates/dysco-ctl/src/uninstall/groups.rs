//! The cgroups of programs that have run with services.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dysco_agent::groups::{self, PROCESSES, RUNS, mounted};
use serde::Serialize;

/// Number of processes that a line names.
const FEW: usize = 5;

/// Cgroups of runs on this host.
#[derive(Default)]
pub(super) struct Groups {
    /// Those that can be removed, each after those below it, and their folder as the last one.
    pub empty: Vec<PathBuf>,
    pub stays: Vec<Staying>,
}

/// Something of Dysco that stays on this host.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Staying {
    pub what: String,
    pub why: String,
}

impl Groups {
    /// Lists the cgroups. A hierarchy that this process does not see has none for it.
    pub(super) fn find() -> Groups {
        let root = mounted().ok().flatten();
        root.map(|root| Groups::below(&root)).unwrap_or_default()
    }

    fn below(root: &Path) -> Groups {
        let mut groups = Groups::default();
        for run in groups::runs(root).unwrap_or_default() {
            groups.sort_in(run);
        }
        let folder = root.join(RUNS);
        // A run that stays in it is the reason for which its folder does.
        let needed = groups
            .stays
            .iter()
            .any(|one| Path::new(&one.what).starts_with(&folder));
        if folder.is_dir() && !needed {
            groups.sort_in(folder);
        }
        groups
    }

    fn sort_in(&mut self, path: PathBuf) {
        match occupied(&path, &self.empty) {
            None => self.empty.push(path),
            Some(why) => self.stays.push(Staying::new(&path, why)),
        }
    }

    /// Removes the cgroups that can be. Returns those that are gone, and what stays: a process may
    /// have entered one meanwhile.
    pub(super) fn remove(self) -> (Vec<PathBuf>, Vec<Staying>) {
        let (mut gone, mut stays) = (Vec::new(), self.stays);
        for path in self.empty {
            match fs::remove_dir(&path) {
                Ok(()) => gone.push(path),
                // A dyscod that stops may have removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => stays.push(Staying::new(&path, error.to_string())),
            }
        }
        (gone, stays)
    }
}

impl Staying {
    fn new(path: &Path, why: String) -> Staying {
        Staying {
            what: path.display().to_string(),
            why,
        }
    }
}

/// Returns the reason for which the kernel would keep a cgroup although the `removed` ones are gone.
fn occupied(group: &Path, removed: &[PathBuf]) -> Option<String> {
    let text = fs::read_to_string(group.join(PROCESSES)).unwrap_or_default();
    let processes: Vec<&str> = text.lines().collect();
    match processes.as_slice() {
        [] => {}
        [one] => return Some(format!("process {one} is in it")),
        few if few.len() <= FEW => {
            return Some(format!("processes {} are in it", few.join(", ")));
        }
        many => return Some(format!("{} processes are in it", many.len())),
    }
    let mut others = groups::below(group).unwrap_or_default().into_iter();
    let other = others.find(|path| !removed.contains(path))?;
    Some(format!("the cgroup {} is in it", other.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a folder that looks like a hierarchy with these cgroups below that of the runs.
    fn hierarchy(groups: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for group in groups {
            fs::create_dir_all(root.path().join(RUNS).join(group)).unwrap();
        }
        root
    }

    #[test]
    fn empty_cgroups_go_and_their_folder() {
        let root = hierarchy(&["run-7-0", "run-8-0"]);
        let groups = Groups::below(root.path());
        let folder = root.path().join(RUNS);
        let expected = [folder.join("run-7-0"), folder.join("run-8-0"), folder];
        assert_eq!(groups.empty, expected);
        let (gone, stays) = groups.remove();
        assert_eq!((gone.as_slice(), stays.len()), (expected.as_slice(), 0));
        assert!(!root.path().join(RUNS).exists());
        assert!(Groups::below(root.path()).empty.is_empty());
    }

    #[test]
    fn a_cgroup_with_a_process_stays_with_the_reason() {
        let root = hierarchy(&["run-7-0", "run-8-0", "run-9-0/inner"]);
        let folder = root.path().join(RUNS);
        fs::write(folder.join("run-7-0").join(PROCESSES), "7\n12\n").unwrap();
        let (gone, stays) = Groups::below(root.path()).remove();
        assert_eq!(gone, [folder.join("run-8-0")]);
        let of = |group: &str, why: &str| Staying::new(&folder.join(group), why.into());
        let inner = folder.join("run-9-0/inner");
        let expected = [
            of("run-7-0", "processes 7, 12 are in it"),
            of(
                "run-9-0",
                &format!("the cgroup {} is in it", inner.display()),
            ),
        ];
        assert_eq!(stays, expected);
        assert!(folder.join("run-7-0").exists() && inner.exists());
    }

    #[test]
    fn cgroups_below_those_of_programs_go_as_well() {
        let root = hierarchy(&["run-7-0/dysco-run-9-0"]);
        let session = root.path().join("user.slice/session-3.scope");
        let [busy, empty] = ["dysco-run-7-0", "dysco-run-8-0"].map(|run| session.join(run));
        for run in [&busy, &empty] {
            fs::create_dir_all(run).unwrap();
        }
        fs::write(busy.join(PROCESSES), "7\n").unwrap();
        let (gone, stays) = Groups::below(root.path()).remove();
        let folder = root.path().join(RUNS);
        let runs = ["run-7-0/dysco-run-9-0", "run-7-0"].map(|run| folder.join(run));
        assert_eq!(
            gone,
            [&runs[0], &runs[1], &empty, &folder].map(Clone::clone)
        );
        assert_eq!(stays, [Staying::new(&busy, "process 7 is in it".into())]);
        assert!(session.exists());
    }

    #[test]
    fn cgroups_of_others_stay() {
        let root = hierarchy(&["theirs", "run-7-0"]);
        let folder = root.path().join(RUNS);
        let (gone, stays) = Groups::below(root.path()).remove();
        assert_eq!(gone, [folder.join("run-7-0")]);
        assert_eq!(stays.len(), 1);
        assert!(stays[0].why.contains("theirs"), "{stays:?}");
        assert!(folder.join("theirs").exists());
    }
}
