//! Resolution of a proxy's name to its processes.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::linux::fs::MetadataExt;

use dysco_api::{ListenAddress, ProcessName};
use dysco_explain::{Cause, tame};

use super::network::{Elsewhere, is_ours};
use super::table;

/// Number of bytes that the kernel keeps of a process's name.
const COMM: usize = 15;

/// Reason why a name selects no process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has the name.
    None(ProcessName),
    /// Several processes have the name, and none of them started the others.
    Ambiguous {
        /// The name.
        name: ProcessName,
        /// The processes.
        pids: Vec<i32>,
    },
    /// The process is in another network namespace.
    Elsewhere(Elsewhere),
    /// The process belongs to another user.
    NotAllowed {
        /// Pid of the process.
        pid: i32,
    },
    /// `/proc` cannot be read.
    System {
        /// Part of `/proc` that was read.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl ProcessError {
    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            ProcessError::None(name) => {
                Cause::new(format!("no process of this host's network is '{name}'"))
                    .hint("see 'ps' for processes, and 'ss -ltnp' for who listens")
            }
            ProcessError::Ambiguous { name, pids } => Cause::new(format!(
                "{} processes are '{name}': {}",
                pids.len(),
                numbers(pids)
            ))
            .hint("name one by its number"),
            ProcessError::Elsewhere(process) => process.cause(),
            ProcessError::NotAllowed { pid } => {
                Cause::new(format!("process {pid} is not the caller's own")).hint("run as root")
            }
            ProcessError::System { what, source } => {
                Cause::new(format!("cannot read {what}: {source}"))
                    .hint("give dyscod /proc, and CAP_SYS_PTRACE")
            }
        }
    }
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

fn numbers(pids: &[i32]) -> String {
    let all: Vec<String> = pids.iter().map(i32::to_string).collect();
    all.join(", ")
}

/// A process, as `/proc` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proc {
    /// Pid of the process.
    pub pid: i32,
    /// Pid of the process that started or adopted this one.
    pub parent: i32,
    /// Name of the process, of at most 15 bytes before it is tamed.
    pub comm: String,
    /// Effective user id of the process.
    pub uid: u32,
}

/// Returns the name of a process, or nothing if it has ended. A process may give itself any bytes
/// for a name, and a terminal must not obey them.
pub(crate) fn comm(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    tame(name.strip_suffix('\n').unwrap_or(&name))
}

fn proc(pid: i32) -> Option<Proc> {
    let dir = format!("/proc/{pid}");
    let stat = fs::read(format!("{dir}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // `pid (name) state parent …`; the name may contain any bytes.
    let (before, after) = stat.rsplit_once(')')?;
    let mut rest = after.split_whitespace();
    // A process that has ended and was not waited for has no network namespace.
    if matches!(rest.next()?, "Z" | "X") {
        return None;
    }
    Some(Proc {
        pid,
        parent: rest.next()?.parse().ok()?,
        comm: tame(before.split_once('(')?.1),
        uid: fs::metadata(&dir).ok()?.st_uid(),
    })
}

/// Maximum number of threads that are examined. A process with more is never considered asleep.
const THREADS: usize = 128;

/// Returns true if each thread of a process waits for an event. A stopped thread does not count
/// as asleep, because it has work that it cannot do.
pub(crate) fn sleeps(pid: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let asleep = |task: fs::DirEntry| {
        let stat = fs::read(task.path().join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // `tid (name) state …`; the name may contain any bytes.
        let state = stat.rsplit_once(')')?.1.split_whitespace().next()?;
        (state == "S").then_some(())
    };
    let mut threads = 0;
    for task in tasks {
        threads += 1;
        if threads > THREADS || task.ok().and_then(asleep).is_none() {
            return false;
        }
    }
    threads > 0
}

/// Returns all visible processes by pid.
pub(crate) fn all() -> Result<HashMap<i32, Proc>, ProcessError> {
    let pids = table::pids().map_err(|source| ProcessError::System {
        what: "/proc",
        source,
    })?;
    Ok(pids
        .into_iter()
        .filter_map(|pid| Some((pid, proc(pid)?)))
        .collect())
}

/// Returns the processes that a name selects. `holders` returns those of a listener.
pub(crate) fn resolve(
    name: &ProcessName,
    all: &HashMap<i32, Proc>,
    holders: impl Fn(&ListenAddress) -> Vec<i32>,
) -> Result<Vec<i32>, ProcessError> {
    let mut found = match name {
        ProcessName::Pid(pid) => with_children(&[*pid], all),
        ProcessName::Listener(at) => holders(at),
        ProcessName::Unit(unit) => of_unit(unit, all),
        ProcessName::Named(comm) => match one_of(name, &named(comm, all), all)? {
            Some(root) => with_children(&[root], all),
            None => of_unit(&format!("{comm}.service"), all),
        },
    };
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => Err(ProcessError::None(name.clone())),
        false => Ok(found),
    }
}

/// Returns the processes of a name in this network namespace. Those in other namespaces serve
/// other networks.
fn named(comm: &str, all: &HashMap<i32, Proc>) -> Vec<i32> {
    let mut fits = of_name(comm, all);
    fits.retain(|pid| is_ours(*pid));
    fits
}

/// Returns the processes of a name in any network namespace of this host.
pub(crate) fn of_name(comm: &str, all: &HashMap<i32, Proc>) -> Vec<i32> {
    let short = tame(comm.get(..COMM).unwrap_or(comm));
    let fits = all.values().filter(|p| p.comm == short);
    fits.map(|p| p.pid).collect()
}

/// Returns the process that all others descend from.
fn one_of(
    name: &ProcessName,
    fits: &[i32],
    all: &HashMap<i32, Proc>,
) -> Result<Option<i32>, ProcessError> {
    let started = |pid: &&i32| all.get(pid).is_some_and(|p| fits.contains(&p.parent));
    let mut roots: Vec<i32> = fits.iter().filter(|p| !started(p)).copied().collect();
    roots.sort_unstable();
    match roots[..] {
        [] => Ok(None),
        [root] => Ok(Some(root)),
        _ => Err(ProcessError::Ambiguous {
            name: name.clone(),
            pids: roots,
        }),
    }
}

/// Returns these processes and all their descendants.
fn with_children(roots: &[i32], all: &HashMap<i32, Proc>) -> Vec<i32> {
    let mut found: Vec<i32> = roots
        .iter()
        .filter(|p| all.contains_key(p))
        .copied()
        .collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = all.values().filter(|p| p.parent == parent);
        let new: Vec<i32> = children
            .map(|p| p.pid)
            .filter(|p| !found.contains(p))
            .collect();
        found.extend(new);
        next += 1;
    }
    found
}

fn of_unit(unit: &str, all: &HashMap<i32, Proc>) -> Vec<i32> {
    let inside = |pid: &&i32| {
        let groups = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        is_inside(&groups, unit)
    };
    all.keys().filter(inside).copied().collect()
}

/// True if one of these control groups is in a unit. Names of groups are bytes, not text.
fn is_inside(groups: &[u8], unit: &str) -> bool {
    let mut parts = groups.split(|byte| matches!(byte, b'/' | b'\n'));
    parts.any(|part| part == unit.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program may give itself any bytes for a name.
    #[test]
    fn a_name_does_not_control_a_terminal_and_hides_no_process() {
        let named = std::thread::spawn(|| {
            let name = c"a\x1b[2J\n\xff)";
            // SAFETY: the calls name this thread, and return its number.
            let tid = unsafe {
                libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                libc::gettid()
            };
            (comm(tid), proc(tid).map(|proc| proc.comm))
        });
        let (name, of_proc) = named.join().unwrap();
        assert_eq!(name, "a\\u{1b}[2J\\n\u{fffd})");
        assert_eq!(of_proc.as_deref(), Some(name.as_str()));
    }

    #[test]
    fn a_group_whose_name_is_no_text_is_in_its_unit() {
        let groups = b"1:name=systemd:/other.service\n0::/system.slice/a.service/\xff\n";
        assert!(is_inside(groups, "a.service") && is_inside(groups, "other.service"));
        assert!(!is_inside(groups, "service") && !is_inside(b"", "a.service"));
    }

    fn tree(rows: &[(i32, i32, &str)]) -> HashMap<i32, Proc> {
        let proc = |(pid, parent, comm): &(i32, i32, &str)| Proc {
            pid: *pid,
            parent: *parent,
            comm: (*comm).to_owned(),
            uid: 0,
        };
        rows.iter().map(|r| (r.0, proc(r))).collect()
    }

    #[test]
    fn names_are_distinguished() {
        let of = |s: &str| s.parse::<ProcessName>().unwrap();
        assert_eq!(of("12"), ProcessName::Pid(12));
        assert!(matches!(of(":8080"), ProcessName::Listener(_)));
        assert!(matches!(of("[::1]:80"), ProcessName::Listener(_)));
        assert_eq!(of("a.service"), ProcessName::Unit("a.service".into()));
        assert_eq!(of("haproxy"), ProcessName::Named("haproxy".into()));
        for bad in ["", "0", "a/b", ":0", "99999999999", "a b"] {
            assert!(bad.parse::<ProcessName>().is_err(), "{bad}");
        }
        for same in ["12", ":8080", "a.service", "haproxy"] {
            assert_eq!(of(same).to_string(), same);
        }
    }

    #[test]
    fn a_process_comes_with_what_it_started() {
        let all = tree(&[
            (1, 0, "init"),
            (5, 1, "m"),
            (6, 5, "w"),
            (7, 6, "x"),
            (8, 1, "m"),
        ]);
        let of = |name: &str| resolve(&name.parse().unwrap(), &all, |_| vec![7]);
        assert_eq!(of("5").unwrap(), [5, 6, 7]);
        assert_eq!(of(":80").unwrap(), [7]);
        assert!(matches!(of("9"), Err(ProcessError::None(_))));
        assert!(matches!(of("no.service"), Err(ProcessError::None(_))));
    }

    #[test]
    fn a_name_of_two_trees_is_ambiguous_and_of_one_is_not() {
        let all = tree(&[(5, 1, "m"), (6, 5, "m"), (8, 1, "m")]);
        let name = ProcessName::Named("m".into());
        let error = one_of(&name, &[5, 6, 8], &all).unwrap_err().to_string();
        assert!(error.contains("5, 8"), "{error}");
        assert_eq!(one_of(&name, &[5, 6], &all).unwrap(), Some(5));
        assert_eq!(one_of(&name, &[], &all).unwrap(), None);
    }

    #[test]
    fn only_one_that_waits_sleeps() {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        while !sleeps(pid) {
            std::thread::yield_now();
        }
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        while sleeps(pid) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!sleeps(pid), "it is no more");
        assert!(!sleeps(std::process::id() as i32), "this thread runs");
    }

    #[test]
    fn this_process_is_found_as_it_is() {
        let own = std::process::id() as i32;
        let all = all().unwrap();
        let me = &all[&own];
        assert_eq!(me.uid, nix::unistd::geteuid().as_raw());
        assert!(named(&me.comm, &all).contains(&own));
    }
}
