//! The hierarchy of cgroups, and the place in it of programs that run with services.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// File of a cgroup with its processes.
pub const PROCESSES: &str = "cgroup.procs";
/// Folder of the cgroups of runs, below the root of the hierarchy.
pub const RUNS: &str = "dysco";
/// Beginning of the name of a run's cgroup.
pub const RUN: &str = "run-";

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
