//! Directories of instances: those of a namespace that is gone, or that another one has replaced.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use dysco_config::{Places, private};

/// File that names the namespace that a directory was made for.
const IDENTITY: &str = "identity";
/// `SO_NETNS_COOKIE`, which libc does not name.
const SO_NETNS_COOKIE: i32 = 71;

/// Removes the directories of all instances whose namespace does not exist any more. `there` has the
/// inodes of those that do.
pub(crate) fn remove_gone(all: &Places, there: &HashSet<u64>) {
    for above in [&all.run, &all.pins] {
        for entry in fs::read_dir(above).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let inode = name.to_str().and_then(|name| name.parse::<u64>().ok());
            let Some(inode) = inode.filter(|inode| !there.contains(inode)) else {
                continue;
            };
            match remove(&entry.path()) {
                Ok(()) => {
                    tracing::info!(inode, path = %entry.path().display(), "removed what a namespace has left")
                }
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot remove what a namespace has left")
                }
            }
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Prepares the directories of this namespace's instance. The inode of a namespace is used again
/// after its end: what another namespace has left under it is removed.
///
/// # Errors
/// If a directory cannot be made or removed.
pub(super) fn take(places: &Places) -> io::Result<()> {
    take_as(places, &identity()?)
}

fn take_as(places: &Places, identity: &str) -> io::Result<()> {
    fs::create_dir_all(&places.run)?;
    // The group of [api] must reach the sockets with any umask.
    for dir in [Some(places.run.as_path()), places.run.parent()] {
        dir.map_or(Ok(()), |dir| {
            fs::set_permissions(dir, Permissions::from_mode(0o755))
        })?;
    }
    let file = places.run.join(IDENTITY);
    if fs::read_to_string(&file).is_ok_and(|kept| kept == identity) {
        return Ok(());
    }
    remove(&places.pins)?;
    remove(&places.state())?;
    private::write(&file, identity.as_bytes())
}

/// Returns a text that no other network namespace has, of this boot or another.
fn identity() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {}\n", boot.trim(), cookie()?))
}

/// Returns the kernel's cookie of this process's network namespace.
fn cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a local integer of that size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places {
            run: dir.join("run/7"),
            pins: dir.join("pins/7"),
        }
    }

    #[test]
    fn what_another_namespace_has_left_under_the_inode_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        take_as(&places, "one").unwrap();
        let (pin, change) = (
            places.pins.join("v5/SESSIONS"),
            places.state().join("changes"),
        );
        for file in [&pin, &change] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        take_as(&places, "one").unwrap();
        assert!(pin.exists() && change.exists());
        take_as(&places, "other").unwrap();
        assert!(!pin.exists() && !change.exists());
    }

    #[test]
    fn only_what_belongs_to_no_namespace_goes() {
        let dir = tempfile::tempdir().unwrap();
        let all = Places {
            run: dir.path().join("run"),
            pins: dir.path().join("pins"),
        };
        let made = ["run/7/state", "run/8", "pins/7/v5", "pins/9", "run/other"];
        for name in made {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        remove_gone(&all, &HashSet::from([7]));
        let left = made.map(|name| dir.path().join(name).exists());
        assert_eq!(left, [true, false, true, false, true]);
    }

    #[test]
    fn a_namespace_has_one_identity() {
        let [one, same] = [identity().unwrap(), identity().unwrap()];
        assert_eq!(one, same);
        assert_ne!(cookie().unwrap(), 0);
        let other = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            identity().unwrap()
        });
        assert_ne!(other.join().unwrap(), one);
    }
}
