//! The directory of the pinned maps and links, which one process at a time may use.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use crate::error::AgentError;

/// Layout of the pinned maps: the name of their directory below that of all pins. Another layout
/// has another name. Programs of two layouts are never on a host together.
pub const LAYOUT: &str = "v8";

/// Returns an error if the data plane of another layout is pinned here. Its programs would run
/// beside the new ones, and both would claim every SYN.
pub fn refuse_others(pin_dir: &Path) -> Result<(), AgentError> {
    let found = fs::read_dir(pin_dir).into_iter().flatten().flatten();
    let mut others = found.filter(|entry| {
        let name = entry.file_name();
        name != LAYOUT && name.to_str().is_some_and(is_layout)
    });
    match others.next() {
        None => Ok(()),
        Some(other) => Err(AgentError::Layout { path: other.path() }),
    }
}

/// True if a directory of a layout has this name.
pub(crate) fn is_layout(name: &str) -> bool {
    let digits = name.strip_prefix('v');
    digits.is_some_and(|digits| digits.parse::<u32>().is_ok())
}

/// Time that a killed process may take to end.
const DYING: Duration = Duration::from_secs(2);

/// Makes the directory `dir`, and locks it as [`alone`] does.
pub(crate) fn make_and_lock(dir: &Path) -> Result<Flock<File>, AgentError> {
    fs::create_dir_all(dir).map_err(|source| AgentError::PinDirectory {
        path: dir.to_owned(),
        source,
    })?;
    alone(dir)
}

/// Locks the pins of `dir` for this process, for as long as the lock is held or the process
/// lives. Two processes would each put their own rules in force, and interfere with each other's
/// changes.
fn alone(dir: &Path) -> Result<Flock<File>, AgentError> {
    let unusable = |source| AgentError::PinDirectory {
        path: dir.to_owned(),
        source,
    };
    let mut open = File::open(dir).map_err(unusable)?;
    let until = Instant::now() + DYING;
    loop {
        match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
            Ok(alone) => return Ok(alone),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < until => open = file,
            Err((file, Errno::EWOULDBLOCK)) => {
                return Err(AgentError::Taken {
                    path: dir.to_owned(),
                    by: holder_of(&file).map_err(unusable)?,
                });
            }
            Err((_, error)) => return Err(unusable(error.into())),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Process that holds the lock of a file, as far as can be seen.
pub(crate) fn holder_of(file: &File) -> io::Result<Option<u32>> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let meta = file.metadata()?;
    Ok(holder(&locks, meta.dev(), meta.ino()))
}

/// Process that holds the lock of a file, by the lines of `/proc/locks`:
/// `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn holder(locks: &str, dev: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(dev), minor(dev));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let its = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file.as_str());
        // 0 for a process of another PID namespace.
        let pid = words.get(4).filter(|_| its)?.parse::<u32>().ok()?;
        (pid > 0).then_some(pid)
    })
}

/// Beginning of the names of links to interfaces.
const LINK: &str = "link_";
/// Beginning of the names of programs that filters of interfaces have.
const FILTER: &str = "filter_";

/// Returns the path of the pinned link of a program on an interface.
pub(crate) fn pin_path(dir: &Path, interface: &str, program: &str) -> PathBuf {
    named(dir, LINK, interface, program)
}

/// Returns the path of the pinned program of a filter on an interface. The pin has no effect on the
/// filter: it tells that the filter is of this data plane.
pub(crate) fn filter_path(dir: &Path, interface: &str, program: &str) -> PathBuf {
    named(dir, FILTER, interface, program)
}

/// A BPF file system has no names with a dot, and no interface has a name with a colon.
fn named(dir: &Path, kind: &str, interface: &str, program: &str) -> PathBuf {
    let interface = interface.replace('.', ":");
    dir.join(format!("{kind}{interface}_{program}"))
}

/// Returns the interfaces of the pinned links, with their programs.
pub(crate) fn links_in(dir: &Path) -> Vec<(String, String)> {
    of_kind(dir, LINK)
}

/// Returns the interfaces of the pinned programs of filters, with these programs.
pub(crate) fn filters_in(dir: &Path) -> Vec<(String, String)> {
    of_kind(dir, FILTER)
}

fn of_kind(dir: &Path, kind: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pins = names.filter_map(|name| {
        let (interface, program) = name.strip_prefix(kind)?.split_once("_dysco_")?;
        Some((interface.replace(':', "."), format!("dysco_{program}")))
    });
    pins.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_layout_is_refused_by_its_name() {
        let pins = tempfile::tempdir().unwrap();
        fs::create_dir(pins.path().join(LAYOUT)).unwrap();
        fs::create_dir(pins.path().join("verbose")).unwrap();
        refuse_others(pins.path()).unwrap();
        let other = pins.path().join("v1");
        fs::create_dir(&other).unwrap();
        let reported = refuse_others(pins.path()).unwrap_err().to_string();
        assert!(
            reported.contains(&other.display().to_string())
                && reported.contains("uninstall --force"),
            "{reported}"
        );
    }

    #[test]
    fn a_pin_names_its_interface_and_its_program() {
        let pins = tempfile::tempdir().unwrap();
        let link = pin_path(pins.path(), "eth0.5", "dysco_ingress");
        let filter = filter_path(pins.path(), "eth0.5", "dysco_serve_in");
        for path in [link, filter] {
            assert!(!path.file_name().unwrap().to_str().unwrap().contains('.'));
            fs::write(path, "").unwrap();
        }
        let of = |program: &str| vec![("eth0.5".to_owned(), program.to_owned())];
        assert_eq!(links_in(pins.path()), of("dysco_ingress"));
        assert_eq!(filters_in(pins.path()), of("dysco_serve_in"));
    }

    #[test]
    fn one_that_ends_is_waited_for_and_one_that_stays_is_named() {
        let pins = tempfile::tempdir().unwrap();
        let first = alone(pins.path()).unwrap();
        match alone(pins.path()) {
            // Some file systems show another device than /proc/locks.
            Err(AgentError::Taken { by, .. }) => {
                assert!(by.is_none_or(|pid| pid == std::process::id()), "{by:?}");
            }
            other => panic!("{other:?}"),
        }
        let dies = thread::spawn(move || {
            thread::sleep(DYING / 4);
            drop(first);
        });
        alone(pins.path()).unwrap();
        dies.join().unwrap();
    }

    #[test]
    fn who_holds_a_lock_is_found_by_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:1c:55 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 00:1c:551 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 00:1c:55 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 00:1c:56 0 EOF\n";
        let dev = nix::sys::stat::makedev(0, 0x1c);
        assert_eq!(holder(locks, dev, 55), Some(9));
        assert_eq!(holder(locks, dev, 56), None, "it cannot be seen");
        assert_eq!(holder(locks, dev, 57), None);
    }
}
