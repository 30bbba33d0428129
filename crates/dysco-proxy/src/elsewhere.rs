//! Proxies with sockets in another network namespace of this host, such as that of a container or
//! pod. The data plane of this namespace sees none of their packets.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dysco_api::{ListenAddress, ProcessName};
use dysco_common::FlowKey;

use super::listener::stands_for;
use super::loader::{self, Unloadable};
use super::network::{is_ours, namespace};
use super::proc_net;
use super::process::{Proc, comm};
use super::table::{self, CLOSED, Holders, LISTEN, Row};

pub use super::network::Elsewhere;

/// File name of the shim.
pub const SHIM_FILE: &str = "libdysco_splice_preload.so";

/// Returns the process with this name if it is in another network namespace.
pub fn named(name: &ProcessName, all: &HashMap<i32, Proc>) -> Option<Elsewhere> {
    let meant: Vec<i32> = match name {
        ProcessName::Listener(at) => return listening(at, all),
        ProcessName::Pid(pid) => vec![*pid],
        ProcessName::Unit(_) => return None,
        ProcessName::Named(comm) => super::process::of_name(comm, all),
    };
    let mut meant: Vec<&Proc> = meant.iter().filter_map(|pid| all.get(pid)).collect();
    meant.retain(|p| !is_ours(p.pid));
    // The result is the process that started the others.
    let started = |p: &Proc| meant.iter().any(|other| other.pid == p.parent);
    let first = meant.iter().filter(|p| !started(p)).min_by_key(|p| p.pid)?;
    Some(of(first))
}

/// Returns a process that listens on the port of this address in another network namespace. Beside
/// it, a container runtime's own process may listen at the published port in this one.
pub fn also_listening(at: &ListenAddress) -> Option<Elsewhere> {
    listening(at, &super::process::all().ok()?)
}

/// Returns a process if it is in another network namespace than the calling thread.
///
/// # Errors
/// If one of the two namespaces cannot be read.
pub fn process(pid: i32) -> io::Result<Option<Elsewhere>> {
    if namespace(&pid.to_string())? == namespace("thread-self")? {
        return Ok(None);
    }
    let name = super::process::comm(pid);
    Ok(Some(Elsewhere { pid, name }))
}

/// Returns one of these processes if none is in the network namespace of the calling thread.
pub(crate) fn all_of(pids: &[i32], all: &HashMap<i32, Proc>) -> Option<Elsewhere> {
    if pids.iter().any(|pid| is_ours(*pid)) {
        return None;
    }
    pids.iter().min().and_then(|pid| all.get(pid)).map(of)
}

fn of(process: &Proc) -> Elsewhere {
    Elsewhere {
        pid: process.pid,
        name: process.comm.clone(),
    }
}

/// Returns a process that listens on the port of this address in another network namespace. A
/// connection that is forwarded to a container arrives there at another address and, by default,
/// at the same port.
fn listening(at: &ListenAddress, all: &HashMap<i32, Proc>) -> Option<Elsewhere> {
    let mut spaces: Vec<Vec<&Proc>> = others(all).into_values().collect();
    // The first process is the oldest, as a rule.
    for processes in &mut spaces {
        processes.sort_unstable_by_key(|p| p.pid);
    }
    spaces.sort_unstable_by_key(|processes| processes.first().map(|p| p.pid));
    spaces.into_iter().find_map(|processes| {
        let listens = |r: &Row| r.state == LISTEN && r.key.local().port() == at.port;
        let rows = rows_of(processes.first()?.pid).into_iter().filter(listens);
        let inodes: HashSet<u64> = rows.map(|row| row.inode).collect();
        let holder = processes.into_iter().find(|p| holds(p.pid, &inodes));
        holder.map(of)
    })
}

/// Returns the processes of each other network namespace.
fn others(all: &HashMap<i32, Proc>) -> HashMap<PathBuf, Vec<&Proc>> {
    let mut spaces: HashMap<_, Vec<&Proc>> = HashMap::new();
    for process in all.values().filter(|p| !is_ours(p.pid)) {
        if let Ok(space) = namespace(&process.pid.to_string()) {
            spaces.entry(space).or_default().push(process);
        }
    }
    spaces
}

/// Returns the processes of other network namespaces that have sockets with these addresses.
pub(crate) fn with_sockets(keys: &[FlowKey]) -> HashMap<FlowKey, Elsewhere> {
    let mut found = HashMap::new();
    if keys.is_empty() {
        return found;
    }
    let all = super::process::all().unwrap_or_default();
    let wanted: HashSet<&FlowKey> = keys.iter().collect();
    for processes in others(&all).into_values() {
        let rows = processes.first().map(|p| rows_of(p.pid));
        let rows = rows.into_iter().flatten();
        let sockets = rows.filter(|r| wanted.contains(&r.key));
        let mut sockets: HashMap<u64, FlowKey> = sockets.map(|r| (r.inode, r.key)).collect();
        // The descriptors of a process are looked through once, for all sockets.
        for process in processes {
            if sockets.is_empty() {
                break;
            }
            for inode in Holders::of_process(process.pid).of.into_keys() {
                let key = sockets.remove(&inode);
                found.extend(key.map(|key| (key, of(process))));
            }
        }
    }
    found
}

fn holds(pid: i32, inodes: &HashSet<u64>) -> bool {
    !inodes.is_empty()
        && Holders::of_process(pid)
            .of
            .keys()
            .any(|inode| inodes.contains(inode))
}

fn rows_of(pid: i32) -> Vec<Row> {
    let dir = format!("/proc/{pid}/net");
    proc_net::rows_in(Path::new(&dir)).unwrap_or_default()
}

/// Relation of a process to the shim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shim {
    /// The shim of the process reports to this daemon.
    Reports,
    /// The process has loaded the shim, which has not reported to this daemon yet.
    Silent,
    /// The process has not loaded the shim.
    Absent,
    /// The process has not loaded the shim, and cannot.
    Unloadable(Unloadable),
}

/// Connections of a process that is a proxy or may be one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Process that has the connections.
    pub process: Elsewhere,
    /// Relation of the process to the shim.
    pub shim: Shim,
    /// True if the process is in another network namespace.
    pub elsewhere: bool,
    /// Connections of the process. The flag is true if a socket in its network namespace listens
    /// at the local address, so that the process seems to have accepted the connection.
    pub connections: Vec<(FlowKey, bool)>,
}

/// Returns the connections of a process, as its own network namespace lists them.
pub fn held(pid: i32) -> Held {
    Held {
        process: Elsewhere {
            pid,
            name: comm(pid),
        },
        shim: Shim::Reports,
        elsewhere: !is_ours(pid),
        connections: connections(pid, &rows_of(pid)),
    }
}

/// Returns the connections of a process among these sockets. The flag is true if the process
/// seems to have accepted the connection.
fn connections(pid: i32, rows: &[Row]) -> Vec<(FlowKey, bool)> {
    let own = Holders::of_process(pid).of;
    let listeners: Vec<_> = rows.iter().filter(|r| r.state == LISTEN).collect();
    let open = rows.iter().filter(|row| {
        row.state != LISTEN && !CLOSED.contains(&row.state) && own.contains_key(&row.inode)
    });
    let accepted = |row: &Row| {
        let local = row.key.local();
        listeners.iter().any(|l| stands_for(&l.key.local(), &local))
    };
    open.map(|row| (row.key, accepted(row))).collect()
}

/// Returns the connections of processes in this network namespace that may be proxies, because
/// they have both accepted and opened connections. Processes under the shim (`shims`) are
/// omitted.
pub fn unproven(shims: &[i32]) -> Vec<Held> {
    let own = std::process::id().cast_signed();
    let rows = table::rows().unwrap_or_default();
    let pids = table::pids().unwrap_or_default().into_iter();
    let others = pids.filter(|pid| *pid != own && !shims.contains(pid) && is_ours(*pid));
    let held = others.filter_map(|pid| {
        let connections = connections(pid, &rows);
        let both =
            [true, false].map(|way| connections.iter().any(|(_, accepted)| *accepted == way));
        (both == [true; 2]).then(|| Held {
            process: Elsewhere {
                pid,
                name: comm(pid),
            },
            shim: match has_loaded_shim(pid) {
                true => Shim::Silent,
                false => loader::of_process(pid).map_or(Shim::Absent, Shim::Unloadable),
            },
            elsewhere: false,
            connections,
        })
    });
    held.collect()
}

/// True if the shim is in the memory of a process (proc_pid_maps(5)).
fn has_loaded_shim(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| names_shim(&maps))
}

/// True if a map of memory names the shim's file. The file may have been replaced since.
fn names_shim(maps: &str) -> bool {
    maps.lines().any(|line| {
        let file = line.trim_end_matches(" (deleted)");
        file.ends_with(SHIM_FILE)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::super::process;
    use super::*;

    /// Processes of other network namespaces end often, and may have the proxy's name.
    #[test]
    fn a_process_that_ends_is_in_no_network() {
        assert!(is_ours(std::process::id() as i32));
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        assert!(!is_ours(pid));
    }

    /// A process in its own network namespace, which ends when this value is dropped.
    struct Container(Child);

    impl Container {
        fn start() -> Container {
            let mut sleep = Command::new("sleep");
            sleep.arg("600").stdin(Stdio::null());
            // SAFETY: the closure makes one system call and touches no data of this process.
            unsafe {
                sleep.pre_exec(|| {
                    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
                    Ok(())
                });
            }
            Container(sleep.spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }
    }

    impl Drop for Container {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_of_another_namespace_is_known_by_number_and_name() {
        let container = Container::start();
        let pid = container.pid();
        assert!(is_ours(std::process::id().cast_signed()) && !is_ours(pid));
        let all = process::all().unwrap();
        let found = named(&ProcessName::Pid(pid), &all).unwrap();
        assert_eq!((found.pid, found.name.as_str()), (pid, "sleep"));
        let reported = found.cause().to_string();
        assert!(reported.contains("another network namespace"), "{reported}");
        assert!(
            reported.contains(&format!("nsenter -t {pid} -n")),
            "{reported}"
        );
        let theirs = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let inode = found.network().unwrap();
        assert_eq!(theirs.to_str(), Some(format!("net:[{inode}]").as_str()));
        assert_eq!(all_of(&[pid], &all), Some(found));
        let own = std::process::id().cast_signed();
        assert_eq!(named(&ProcessName::Pid(own), &all), None);
        assert_eq!(all_of(&[own, pid], &all), None);
        assert!(held(pid).elsewhere && held(pid).connections.is_empty());
    }

    #[test]
    fn a_loaded_shim_is_seen_in_the_map_of_memory() {
        let line = |file: &str| format!("7f00-7f10 r-xp 00000000 08:01 77    /usr/lib/{file}\n");
        let maps = |file: &str| line("libc.so.6") + &line(file) + "7f20-7f30 rw-p 0 00:00 0\n";
        assert!(names_shim(&maps(SHIM_FILE)));
        assert!(names_shim(&maps(&format!("{SHIM_FILE} (deleted)"))));
        assert!(!names_shim(&maps("libdysco.so")));
        assert!(!has_loaded_shim(std::process::id().cast_signed()));
    }

    #[test]
    fn what_this_process_has_accepted_is_listed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let opened = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let held = held(std::process::id().cast_signed());
        let key =
            |s: &std::net::TcpStream| FlowKey::new(s.local_addr().unwrap(), s.peer_addr().unwrap());
        assert!(!held.elsewhere && held.shim == Shim::Reports);
        let pid = std::process::id().cast_signed();
        // The result never contains dyscod itself.
        assert!(unproven(&[]).iter().all(|held| held.process.pid != pid));
        assert!(held.connections.contains(&(key(&accepted), true)));
        assert!(held.connections.contains(&(key(&opened), false)));
    }
}
