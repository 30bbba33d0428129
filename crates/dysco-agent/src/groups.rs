//! The hierarchy of cgroups, and the place in it of programs that run with services.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// File of a cgroup with its processes.
pub const PROCESSES: &str = "cgroup.procs";
/// Folder of the cgroups of runs that are below no cgroup of a program, below the root of the hierarchy.
pub const RUNS: &str = "dysco";
/// Beginning of the name of a run's cgroup in that folder.
const RUN: &str = "run-";
/// Beginning of the name of a run's cgroup elsewhere.
const RUN_ELSEWHERE: &str = "dysco-run-";

/// Returns the name of a run's cgroup below another one, for the process that runs.
pub fn name(place: &Path, pid: i32, number: u32) -> String {
    let begin = if place.ends_with(RUNS) {
        RUN
    } else {
        RUN_ELSEWHERE
    };
    format!("{begin}{pid}-{number}")
}

/// Returns true if a cgroup has the name of a run's.
fn is_run(path: &Path) -> bool {
    let in_runs = path.parent().is_some_and(|place| place.ends_with(RUNS));
    let name = path.file_name().map(|name| name.as_encoded_bytes());
    name.is_some_and(|name| {
        name.starts_with(RUN_ELSEWHERE.as_bytes()) || in_runs && name.starts_with(RUN.as_bytes())
    })
}

/// Returns the cgroups of runs in a hierarchy: each after those below it, in the order of their names.
///
/// # Errors
/// If a cgroup cannot be read.
pub fn runs(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // Folders to read, and cgroups whose folders have been read.
    let mut stack = vec![(root.to_owned(), false)];
    while let Some((folder, read)) = stack.pop() {
        if read {
            found.push(folder);
            continue;
        }
        let below = match below(&folder) {
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            below => below?,
        };
        if is_run(&folder) {
            stack.push((folder, true));
        }
        stack.extend(below.into_iter().rev().map(|path| (path, false)));
    }
    Ok(found)
}

/// Returns the cgroups directly below one, in the order of their names.
///
/// # Errors
/// If it cannot be read.
pub fn below(group: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.push(entry.path());
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Returns the cgroup of a process, relative to the root of the hierarchy of version 2; `None` if it is
/// outside of the namespace of this process.
///
/// # Errors
/// If the process has ended, or the kernel has no such hierarchy.
pub fn of(pid: i32) -> io::Result<Option<PathBuf>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = Path::new(path.ok_or(io::ErrorKind::NotFound)?);
    let inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    Ok(inside.then(|| path.to_owned()))
}

/// Returns the root of the version 2 hierarchy of cgroups. A host may hide the usual one by another
/// `/sys`: then it is mounted in the folder of the state.
///
/// # Errors
/// If it is not mounted, and cannot be.
pub fn root(state: &Path) -> io::Result<PathBuf> {
    if let Some(seen) = mounted()? {
        return Ok(seen);
    }
    let own = state.join("cgroup");
    fs::create_dir_all(&own)?;
    let kind = Some("cgroup2");
    mount(kind, &own, kind, MsFlags::empty(), None::<&str>)?;
    Ok(own)
}

/// Returns the root of the version 2 hierarchy of cgroups, if it is mounted. Mounts nothing.
///
/// # Errors
/// If the mounts cannot be read.
pub fn mounted() -> io::Result<Option<PathBuf>> {
    let mounts = procfs::process::Process::myself().and_then(|own| own.mountinfo());
    let mounts = mounts.map_err(io::Error::other)?.into_iter();
    let mut roots = mounts.filter(|mount| mount.fs_type == "cgroup2" && mount.root == "/");
    let seen = roots.find(|mount| mount.mount_point.join(PROCESSES).exists());
    Ok(seen.map(|seen| seen.mount_point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_wherever_they_are() {
        let root = tempfile::tempdir().unwrap();
        let all = [
            "dysco/run-7-0/dysco-run-9-0",
            "dysco/run-7-0",
            "user.slice/user-1000.slice/session-3.scope/dysco-run-8-0",
        ];
        let others = ["dysco/theirs", "system.slice/run-u5.service", "run-1-0"];
        for group in all.iter().chain(&others) {
            fs::create_dir_all(root.path().join(group)).unwrap();
        }
        assert_eq!(
            runs(root.path()).unwrap(),
            all.map(|group| root.path().join(group))
        );
    }

    #[test]
    fn a_run_has_the_name_by_which_it_is_found() {
        for place in ["/sys/fs/cgroup/dysco", "/sys/fs/cgroup/a.slice/b.scope"] {
            let place = Path::new(place);
            assert!(is_run(&place.join(name(place, 7, 1))));
        }
    }

    #[test]
    fn a_process_has_a_cgroup_in_the_hierarchy() {
        let own = of(std::process::id().cast_signed()).unwrap().unwrap();
        assert!(own.is_relative());
        assert!(of(-1).is_err());
    }
}
