//! Leaving the machine's network and mounts, for the calling thread only.

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Fails with what to do unless the process may make namespaces.
pub fn require_root() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces need root: run this again as root, for example with sudo -E"
    );
    Ok(())
}

/// Moves the calling thread into a network and mount namespace of its own,
/// with the places where a host keeps state made anew: `/run`, `/sys` and
/// `/sys/fs/bpf`.
pub(crate) fn isolate() -> Result<()> {
    require_root()?;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("failed to unshare")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("failed to make the mounts private")?;
    // A sysfs shows the devices of the network namespace it was mounted in.
    fresh("sysfs", "/sys")?;
    fresh("bpf", "/sys/fs/bpf")?;
    fresh("tmpfs", "/run")
}

fn fresh(kind: &str, at: &str) -> Result<()> {
    mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("failed to mount a {kind} on {at}"))
}
