//! The cgroup of a run.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dysco_agent::groups::{self, PROCESSES, RUNS};
use dysco_api::ServiceSpec;
use dysco_explain::Cause;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Run;
use crate::api::Caller;
use crate::handlers::Owner;

/// Attribute of a cgroup: the services, one a line.
const ATTRIBUTE: &str = "trusted.dysco.services";
/// Attribute of a cgroup: the user who runs the program, by number. Root's have none.
const USER: &str = "trusted.dysco.user";
/// Longest value of the attribute, in bytes.
const LONGEST: usize = 4096;
/// Attempts to find a name for a cgroup that is not taken.
const NAMES: u32 = 100;

/// Returns the services as the attribute of a cgroup has them.
pub(super) fn text_of(services: &[ServiceSpec]) -> Result<String, Cause> {
    let lines: Vec<String> = services.iter().map(ToString::to_string).collect();
    let text = lines.join("\n");
    if text.len() > LONGEST {
        let why = format!(
            "the services have {} bytes, and {LONGEST} are the most",
            text.len()
        );
        return Err(Cause::new(why).hint("leave some out"));
    }
    Ok(text)
}

/// Returns the cgroups below which a run of the caller can be, the best one first. Below its present
/// one, the program keeps to the limits there, and to the rules about that cgroup.
pub(super) fn places(state: &Path, caller: &Caller) -> Result<Vec<PathBuf>, Cause> {
    let root = groups::root(state).map_err(failed("find the cgroup hierarchy"))?;
    let apart = root.join(RUNS);
    let present = groups::of(caller.pid).map_err(failed("find the program's cgroup"))?;
    match present {
        Some(present) if present.as_os_str().is_empty() => Ok(vec![apart]),
        Some(present) if caller.is_root() => Ok(vec![root.join(present), apart]),
        Some(present) => Ok(vec![root.join(present)]),
        None if caller.is_root() => Ok(vec![apart]),
        None => Err(Cause::new(
            "dyscod does not see the program's cgroup, whose limits it is to keep",
        )
        .hint("run as root")),
    }
}

impl Run {
    /// Makes a cgroup for the process of a caller, below another one.
    pub(super) fn make(place: &Path, text: &str, caller: &Caller) -> Result<Run, Cause> {
        let folder = new_folder(place, caller.pid).map_err(failed("make a cgroup"))?;
        let noted = note(&folder, text, Owner::of(caller.uid));
        let made = noted.and_then(|()| {
            let run = Run::of(&folder);
            run.ok_or_else(|| Cause::new("the services of its cgroup cannot be read"))
        });
        if made.is_err() {
            // No process is in it.
            let _ = fs::remove_dir(&folder);
        }
        made
    }

    /// Returns the run of a cgroup, unless it is another's.
    pub(super) fn of(folder: &Path) -> Option<Run> {
        let text = attribute(folder, ATTRIBUTE).ok()?;
        let owner = match attribute(folder, USER) {
            Ok(uid) => Owner::of(uid.parse().ok()?),
            Err(Errno::NODATA) => Owner::System,
            Err(_) => return None,
        };
        let services = text.lines().map(|line| line.parse().ok());
        Some(Run {
            services: services.collect::<Option<_>>()?,
            owner,
            group: id(folder).ok()?,
            folder: folder.to_owned(),
            contested: None,
        })
    }

    /// Moves the process of a caller into the cgroup. The kernel takes the process by its number, which
    /// is the caller's if the caller lives afterwards.
    pub(super) fn enter(&self, caller: &Caller) -> Result<(), Cause> {
        let file = self.folder.join(PROCESSES);
        let moved = fs::write(file, caller.pid.to_string());
        moved.map_err(failed("move the program to its cgroup"))?;
        caller.is_there()
    }

    /// Removes the cgroup, which the program has not entered.
    pub(super) fn give_up(&self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "the cgroup of a run that has failed stays");
        }
    }
}

/// Returns the id of a cgroup: the inode of its folder (`kernfs_id`, fs/kernfs).
pub(super) fn id(folder: &Path) -> io::Result<u64> {
    Ok(fs::metadata(folder)?.ino())
}

fn new_folder(place: &Path, pid: i32) -> io::Result<PathBuf> {
    if place.ends_with(RUNS) {
        fs::create_dir_all(place)?;
    }
    let mut names = (0..NAMES).map(|number| place.join(groups::name(place, pid, number)));
    let made = names.find_map(|folder| match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
        made => Some(made.map(|()| folder)),
    });
    made.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
}

fn note(folder: &Path, text: &str, owner: Owner) -> Result<(), Cause> {
    let note = |name: &str, value: &str| {
        let noted = rustix::fs::setxattr(folder, name, value.as_bytes(), XattrFlags::CREATE);
        noted.map_err(|error| failed("note the services of a cgroup")(error.into()))
    };
    if let Owner::User(uid) = owner {
        note(USER, &uid.to_string())?;
    }
    // The last one: it makes a cgroup a run.
    note(ATTRIBUTE, text)
}

/// Reads an attribute of a cgroup.
fn attribute(folder: &Path, name: &str) -> Result<String, Errno> {
    let mut text = [0; LONGEST];
    let length = rustix::fs::getxattr(folder, name, &mut text)?;
    let text = std::str::from_utf8(&text[..length]);
    text.map(str::to_owned).map_err(|_| Errno::INVAL)
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Cause {
    move |error| {
        let hint = match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                "under systemd, set ProtectControlGroups=no and CAP_SYS_ADMIN, as \
                 /usr/share/dysco/dyscod-services.conf does"
            }
            _ => "run it from another cgroup, such as that of another login, or as root",
        };
        Cause::new(format!("cannot {what}: {error}")).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_the_attribute_has_no_room_for_are_refused() {
        let long = format!("split=congestion={}", "a".repeat(1000));
        let one: ServiceSpec = long.parse().unwrap();
        assert!(text_of(&vec![one.clone(); 4]).is_ok());
        assert!(text_of(&vec![one; 5]).is_err());
    }

    #[test]
    fn a_run_that_cannot_be_noted_leaves_no_cgroup() {
        let place = tempfile::tempdir().unwrap();
        let caller = Caller {
            pid: 7,
            uid: 0,
            gids: vec![],
            process: None,
        };
        // The attribute is written, if this process may, and cannot be read.
        let long = "a".repeat(LONGEST + 1);
        assert!(Run::make(place.path(), &long, &caller).is_err());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_that_are_taken_do_not_cost_much() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..NAMES {
            let name = groups::name(place.path(), 7, number);
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let error = new_folder(place.path(), 7).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(new_folder(place.path(), 8).is_ok());
    }
}
