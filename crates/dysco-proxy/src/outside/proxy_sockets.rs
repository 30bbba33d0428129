//! Sockets of a proxy's processes, as the kernel lists them.

use std::collections::{BTreeMap, HashMap, HashSet};

use dysco_api::ProcessName;
use dysco_common::FlowKey;

use crate::duplicate::Process;
use crate::elsewhere;
use crate::listener::stands_for;
use crate::process::{self, Proc, ProcessError};
use crate::sys::{of_our_network, protocol};
use crate::table::{self, CLOSED, Holder, Holders, LISTEN, Row};

/// A connected TCP socket of one of the processes.
#[derive(Clone, Debug)]
pub struct Socket {
    /// First process and descriptor that have the socket open.
    pub holder: Holder,
    /// Further processes and descriptors that have the socket open.
    pub shared: Vec<Holder>,
    /// Five-tuple; local is this host's end.
    pub key: FlowKey,
    /// True if the socket was accepted here, judged by the listening sockets.
    pub accepted: bool,
}

/// A proxy's processes and their sockets.
pub struct ProxySockets {
    /// Processes by pid.
    pub processes: BTreeMap<i32, Proc>,
    /// Connected sockets of the processes.
    pub sockets: Vec<Socket>,
    /// Pids of the processes that use an io_uring.
    pub uring: Vec<i32>,
    /// Number of TCP sockets of the processes in another network namespace.
    pub elsewhere: usize,
}

impl ProxySockets {
    /// Finds the processes of this name and their sockets. With `uid`, only that user's processes
    /// are allowed.
    pub fn look(name: &ProcessName, uid: Option<u32>) -> Result<ProxySockets, ProcessError> {
        let system = |what| move |source| ProcessError::System { what, source };
        let all = process::all()?;
        let rows = table::rows().map_err(system("the list of TCP sockets"))?;
        let holders = Holders::find().map_err(system("/proc"))?;
        let of_listener = |at: &dysco_api::ListenAddress| {
            let theirs = rows.iter().filter(|r| at.matches(r.key.local()));
            let held = theirs.filter_map(|r| holders.of.get(&r.inode));
            held.flatten().map(|h| h.pid).collect()
        };
        let pids = match process::resolve(name, &all, of_listener) {
            Err(ProcessError::None(name)) => {
                let found = elsewhere::named(&name, &all);
                return Err(found.map_or(ProcessError::None(name), ProcessError::Elsewhere));
            }
            pids => pids?,
        };
        // A thread may be in another namespace than its process, and a socket may have been
        // passed on.
        let ours: HashSet<u64> = rows.iter().map(|row| row.inode).collect();
        let held = holders.of.iter().filter(|(inode, _)| ours.contains(inode));
        let holds_ours = held
            .flat_map(|(_, held)| held)
            .any(|h| pids.contains(&h.pid));
        if let (false, Some(found)) = (holds_ours, elsewhere::all_of(&pids, &all)) {
            return Err(ProcessError::Elsewhere(found));
        }
        let processes: BTreeMap<i32, Proc> = pids
            .iter()
            .filter_map(|pid| Some((*pid, all.get(pid)?.clone())))
            .collect();
        let strange = |p: &&Proc| uid.is_some_and(|uid| p.uid != uid);
        if let Some(other) = processes.values().find(strange) {
            return Err(ProcessError::NotAllowed { pid: other.pid });
        }
        let mut proxy_sockets = ProxySockets {
            uring: pids
                .iter()
                .filter(|pid| holders.uring.contains(pid))
                .copied()
                .collect(),
            processes,
            sockets: Vec::new(),
            elsewhere: 0,
        };
        proxy_sockets.take(name, &rows, &holders);
        Ok(proxy_sockets)
    }

    fn take(&mut self, name: &ProcessName, rows: &[Row], holders: &Holders) {
        let listeners: Vec<_> = rows
            .iter()
            .filter(|r| r.state == LISTEN)
            .map(|r| r.key.local())
            .collect();
        let ours: HashMap<u64, &Row> = rows.iter().map(|r| (r.inode, r)).collect();
        for (inode, held) in &holders.of {
            let own = |h: &&Holder| self.processes.contains_key(&h.pid);
            let Some(holder) = held.iter().find(own).copied() else {
                continue;
            };
            let Some(row) = ours.get(inode) else {
                self.elsewhere += usize::from(is_elsewhere(holder));
                continue;
            };
            if row.state == LISTEN || CLOSED.contains(&row.state) {
                continue;
            }
            let local = row.key.local();
            self.sockets.push(Socket {
                holder,
                shared: held.iter().filter(|h| **h != holder).copied().collect(),
                key: row.key,
                accepted: listeners.iter().any(|l| stands_for(l, &local)),
            });
        }
        if let ProcessName::Listener(at) = name {
            // Opened sockets are kept as possible partners, and are not listed.
            let of_it = |s: &Socket| !s.accepted || at.matches(s.key.local());
            self.sockets.retain(of_it);
        }
        self.sockets.sort_by_key(|s| (s.holder.pid, s.holder.fd));
    }
}

/// Returns true if the descriptor is a TCP socket of another network namespace.
fn is_elsewhere(holder: Holder) -> bool {
    let fd = Process::open(holder.pid).and_then(|p| p.socket(holder.fd));
    fd.is_ok_and(|fd| {
        protocol(&fd).is_ok_and(|p| p == libc::IPPROTO_TCP)
            && of_our_network(&fd).is_ok_and(|ours| !ours)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ones_own_processes_are_shown_and_with_their_sockets() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let opened = std::net::TcpStream::connect(at).unwrap();
        let accepted = listener.accept().unwrap().0;
        let name = ProcessName::Pid(std::process::id() as i32);
        let own = nix::unistd::geteuid().as_raw();
        let other = ProxySockets::look(&name, Some(own + 1));
        assert!(matches!(other, Err(ProcessError::NotAllowed { .. })));

        let proxy_sockets = ProxySockets::look(&name, Some(own)).unwrap();
        let find = |local| {
            proxy_sockets
                .sockets
                .iter()
                .find(|s| s.key.local() == local)
        };
        assert!(!find(opened.local_addr().unwrap()).unwrap().accepted);
        let found = find(accepted.local_addr().unwrap()).unwrap();
        assert!(found.accepted && found.shared.is_empty());

        // A socket that is open twice cannot be closed in one place.
        let twice = accepted.try_clone().unwrap();
        let proxy_sockets = ProxySockets::look(&name, None).unwrap();
        let remote = accepted.peer_addr().unwrap();
        let found = proxy_sockets
            .sockets
            .iter()
            .find(|s| s.key.remote() == remote);
        assert_eq!(found.unwrap().shared.len(), 1);
        drop(twice);
    }
}
