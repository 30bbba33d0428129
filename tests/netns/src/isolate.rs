//! Isolates the calling thread from the machine's network and mounts.

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Returns an error with instructions unless the process may create namespaces.
pub fn require_root() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces need root: run this again as root, for example with sudo -E"
    );
    Ok(())
}

/// Moves the calling thread into its own network and mount namespaces, with new instances of the
/// places where a host keeps state: `/run`, `/sys` and `/sys/fs/bpf`.
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
