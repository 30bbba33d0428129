//! The hierarchy of cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// File of a cgroup with its processes.
pub(crate) const PROCESSES: &str = "cgroup.procs";

/// Returns the root of the version 2 hierarchy of cgroups. A host may hide the usual one by another
/// `/sys`: then it is mounted in the folder of the state.
///
/// # Errors
/// If it is not mounted, and cannot be.
pub(crate) fn root(state: &Path) -> io::Result<PathBuf> {
    let mounts = procfs::process::Process::myself().and_then(|own| own.mountinfo());
    let mounts = mounts.map_err(io::Error::other)?.into_iter();
    let mut roots = mounts.filter(|mount| mount.fs_type == "cgroup2" && mount.root == "/");
    let seen = roots.find(|mount| mount.mount_point.join(PROCESSES).exists());
    if let Some(seen) = seen {
        return Ok(seen.mount_point);
    }
    let own = state.join("cgroup");
    fs::create_dir_all(&own)?;
    let kind = Some("cgroup2");
    mount(kind, &own, kind, MsFlags::empty(), None::<&str>)?;
    Ok(own)
}
