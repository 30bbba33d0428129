//! Drops privileges and resources of the process for good: services handle bytes of strangers.

mod syscalls;

use std::io;
use std::path::Path;

use caps::CapSet;
use dysco_explain::Explanation;
use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, chdir, chroot, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::system::sysinfo;

use crate::Error;

/// Greatest number of open files: two sockets for each session, and connections of services.
const FILES: u64 = 16 * 1024;

/// Share of the host's memory that the process can use: one part of so many.
const SHARE: u64 = 2;

/// Confines the process: no new privileges, no capabilities, an unprivileged user and group, an
/// empty folder as root if one is given, at most half of the host's memory, no access to files (Landlock), and only the system calls
/// that [`run`] needs (seccomp). A call that is not among them fails with `EPERM`.
///
/// Returns the steps that failed: on a kernel without Landlock, or in a process without
/// privileges. The caller decides whether to continue.
///
/// # Errors
/// If the process has several threads. Some steps would then apply to only one of them.
///
/// [`run`]: crate::run
pub fn confine(uid: u32, gid: u32, root: Option<&Path>) -> Result<Vec<Explanation>, Error> {
    only_thread().map_err(Error::of("confine the process"))?;
    let mut failed = Vec::new();
    let mut step = |what: &str, result: Result<(), String>| {
        failed.extend(result.err().map(|why| Explanation::new(what, why)));
    };
    step(
        "forbid new privileges",
        text(rustix::thread::set_no_new_privs(true)),
    );
    step("limit the process", text(limit()));
    // This needs a capability of the user root.
    step("empty the bounding set", text(empty(&[CapSet::Bounding])));
    if let Some(root) = root {
        step("change the root folder", text(enter(root)));
    }
    step("drop all groups", text(setgroups(&[])));
    let gid = Gid::from_raw(gid);
    step("change the group", text(setresgid(gid, gid, gid)));
    let uid = Uid::from_raw(uid);
    step("change the user", text(setresuid(uid, uid, uid)));
    let sets = [
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Effective,
        CapSet::Permitted,
    ];
    step("drop all capabilities", text(empty(&sets)));
    step("give up access to files", give_up_files());
    // The last step: it forbids the others.
    step("limit system calls", syscalls::limit());
    Ok(failed)
}

fn text<E: ToString>(result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}

/// Fails if the process has several threads.
fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        n => Err(io::Error::other(format!("it has {n} threads, and not one"))),
    }
}

/// Limits open files and memory, forbids core dumps, and hides the memory from other processes of
/// the user.
fn limit() -> io::Result<()> {
    let files = getrlimit(Resource::Nofile);
    let files = files.maximum.map_or(FILES, |most| most.min(FILES));
    // A service that floods its memory ends its own handler, and no other process of the host.
    let host = sysinfo();
    let memory = host.totalram.saturating_mul(u64::from(host.mem_unit)) / SHARE;
    let memory = getrlimit(Resource::Data)
        .maximum
        .map_or(memory, |most| most.min(memory));
    let limits = [
        (Resource::Nofile, files),
        (Resource::Data, memory),
        (Resource::Core, 0),
    ];
    for (resource, most) in limits {
        let most = Some(most);
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(resource, limit)?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

fn empty(sets: &[CapSet]) -> Result<(), caps::errors::CapsError> {
    sets.iter().try_for_each(|set| caps::clear(None, *set))
}

fn enter(root: &Path) -> io::Result<()> {
    chroot(root)?;
    chdir("/")?;
    Ok(())
}

/// Denies everything that this kernel's Landlock can deny and the loop does not need.
fn give_up_files() -> Result<(), String> {
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V6))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::AbstractUnixSocket)?
            .scope(Scope::Signal)?
            .create()?;
        Ok(rules.restrict_self()?.ruleset)
    };
    match restrict() {
        Ok(RulesetStatus::NotEnforced) => Err(no_landlock()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns why Landlock denies nothing. The library takes every error for a kernel without Landlock.
fn no_landlock() -> String {
    /// `LANDLOCK_CREATE_RULESET_VERSION`: the call returns the version, and makes nothing.
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag, the call reads no memory of this process.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if version >= 0 => "Landlock denies none of these accesses".into(),
        Some(libc::ENOSYS) => "the kernel has no Landlock".into(),
        Some(libc::EOPNOTSUPP) => "Landlock is disabled at boot (lsm=)".into(),
        Some(libc::EPERM) => {
            "a filter forbids the system calls of Landlock, such as SystemCallFilter= of the unit"
                .into()
        }
        _ => error.to_string(),
    }
}
