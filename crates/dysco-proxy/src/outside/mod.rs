//! Pairs of a proxy without a shim (a Go program, a static binary, or one that was started
//! without it). The kernel's counts show the pairs from outside.
//!
//! Counts can show that B repeatedly receives as many bytes as A, with data in between. They
//! cannot show that these are the same bytes, nor that this remains so: a proxy that terminates
//! TLS on both sides preserves the counts as well. A pair that was found here is therefore
//! removed only if the operator vouches for its listener.

mod judge;
pub mod pairing;
mod proxy_sockets;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod slow;
mod unpaired;
mod watch;
#[cfg(test)]
mod world;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dysco_api::ProcessName;
use dysco_common::FlowKey;
use dysco_explain::Cause;

use super::duplicate::Process;
use super::pair::{Direction, Pair, PairId, Witness};
use super::process::ProcessError;
use super::sys::{of_our_network, protocol};
use super::table::{Holder, Holders};
use pairing::Rules;
pub use proxy_sockets::{ProxySockets, Socket};
use watch::{Lost, Watch, Watched};

/// Duration and accuracy of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchRules {
    /// Evidence that a pair requires.
    pub proof: Rules,
    /// Maximum duration of a watch.
    pub limit: Duration,
}

impl Default for WatchRules {
    fn default() -> Self {
        WatchRules {
            proof: Rules {
                moments: 8,
                bytes: 16 << 10,
                window: Duration::from_millis(500),
            },
            limit: Duration::from_secs(5),
        }
    }
}

/// The data plane's knowledge of a session that it tracks.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// True if this host sent the SYN.
    pub opened_here: bool,
    /// Time of the session's start, on a clock common to all sessions, if known.
    pub born: Option<u64>,
}

/// Maximum number of sockets of one process that can be distinguished in reasonable time.
const MOST: usize = 4_000;
/// Maximum number of processes that are watched at once.
const TOGETHER: usize = 64;

/// A request to watch processes.
pub struct Ask {
    /// Name of the processes.
    pub name: ProcessName,
    /// Restriction to this user's processes.
    pub uid: Option<u32>,
    /// Sessions that may be changed.
    pub tracked: HashMap<FlowKey, Tracked>,
    /// Restriction to these sessions, if any are named.
    pub only: Option<HashSet<FlowKey>>,
    /// True if every session is requested, so that untracked ones are reported too.
    pub all: bool,
}

/// The tracked sessions that the processes have accepted, each with the basis of its removal.
pub type Sessions = Vec<(FlowKey, Result<Basis, Cause>)>;

/// Result of watching processes.
pub struct Found {
    /// Tracked sessions of the processes.
    pub sessions: Sessions,
    /// Accepted sessions that are not tracked, if all sessions were requested.
    pub untracked: Vec<FlowKey>,
}

/// Evidence that two sockets belong together.
#[derive(Clone, Copy, Debug)]
pub enum Basis {
    /// The pair is already known.
    Known,
    /// The counts have shown the pair.
    Counts(Pair),
}

/// Finds the pairs of the requested processes. Blocks for up to the limit.
pub fn find(
    ask: &Ask,
    rules: &WatchRules,
    is_known: impl Fn(&FlowKey) -> bool,
) -> Result<Found, ProcessError> {
    let proxy_sockets = ProxySockets::look(&ask.name, ask.uid)?;
    let mut sessions = Sessions::new();
    let mut left = Vec::new();
    let mut untracked = Vec::new();
    for socket in &proxy_sockets.sockets {
        let known = ask.tracked.get(&socket.key);
        let accepted = known.map_or(socket.accepted, |t| !t.opened_here);
        let wanted = ask.only.as_ref().is_none_or(|o| o.contains(&socket.key));
        if accepted && known.is_none() && ask.all {
            untracked.push(socket.key);
        }
        if !accepted || known.is_none() || !wanted {
            continue;
        }
        if is_known(&socket.key) {
            sessions.push((socket.key, Ok(Basis::Known)));
        } else if let Some(why) = barred(&proxy_sockets, socket) {
            sessions.push((socket.key, Err(why)));
        } else {
            left.push(socket.key);
        }
    }
    if !left.is_empty() {
        sessions.extend(by_counts(&proxy_sockets, ask, rules, left));
    }
    Ok(Found {
        sessions,
        untracked,
    })
}

/// Returns the pair of two sockets that one process has open, whichever end opened them. The
/// result serves only to close the sockets.
pub fn holder_of(a: FlowKey, b: FlowKey) -> Option<Pair> {
    let rows = super::table::rows().ok()?;
    let inode = |key| rows.iter().find(|r| r.key == key).map(|r| r.inode);
    let holders = Holders::find().ok()?;
    let of = |key| holders.of.get(&inode(key)?);
    let (of_a, of_b) = (of(a)?, of(b)?);
    let both = of_a.iter().find_map(|x| {
        let y = of_b.iter().find(|y| y.pid == x.pid)?;
        Some((*x, *y))
    });
    let (x, y) = both?;
    let process = Process::open(x.pid).ok()?;
    let watched = |holder: Holder, opened| {
        let end = watch::end(&process, holder.fd, opened).ok()??;
        let born = None;
        Some(Watched { holder, end, born })
    };
    let own = [watched(x, false)?, watched(y, true)?];
    let found = pairing::Found {
        a: 0,
        b: 1,
        forward: 0,
        reverse: 0,
    };
    (own[0].end.key == a && own[1].end.key == b).then(|| pair(&own, &found))
}

/// Returns the reason why a socket cannot be watched, or `None`.
fn barred(proxy_sockets: &ProxySockets, socket: &Socket) -> Option<Cause> {
    let pid = socket.holder.pid;
    if proxy_sockets.uring.contains(&pid) {
        let why = format!(
            "process {pid} uses an io_uring, which may hold sockets and bytes that cannot be seen from outside"
        );
        return Some(Cause::new(why).hint("let it call dysco_splice"));
    }
    if is_multipath(socket.holder) {
        let why = format!(
            "the socket of process {pid} is of MPTCP, and the session one of several that it may have"
        );
        return Some(Cause::new(why).hint("switch MPTCP off for this listener, or keep the proxy"));
    }
    if let Some(other) = socket.shared.first() {
        let why = match other.pid == pid {
            true => format!(
                "process {pid} has its socket twice (descriptors {} and {})",
                socket.holder.fd, other.fd
            ),
            false => format!(
                "its socket is shared by the processes {pid} and {}: closing it in one would not close it",
                other.pid
            ),
        };
        return Some(why.into());
    }
    None
}

/// Returns true if the descriptor is a socket of MPTCP. The kernel lists the subflows of such a
/// socket as TCP, and the descriptor is none of them.
fn is_multipath(holder: Holder) -> bool {
    let fd = Process::open(holder.pid).and_then(|p| p.socket(holder.fd));
    fd.is_ok_and(|fd| protocol(&fd).is_ok_and(|p| p == libc::IPPROTO_MPTCP))
}

fn by_counts(
    proxy_sockets: &ProxySockets,
    ask: &Ask,
    rules: &WatchRules,
    wanted: Vec<FlowKey>,
) -> Sessions {
    let mut processes = HashMap::new();
    for pid in proxy_sockets.processes.keys() {
        if let Ok(process) = Process::open(*pid) {
            processes.insert(*pid, process);
        }
    }
    // The list has all sockets of the processes, tracked or not, because each may receive the
    // bytes.
    let watched: Vec<Watched> = proxy_sockets
        .sockets
        .iter()
        .filter_map(|s| watched(s, ask, &processes))
        .collect();
    let index: Vec<usize> = wanted
        .iter()
        .filter_map(|key| watched.iter().position(|w| w.end.key == *key))
        .collect();
    // A process pairs only its own sockets.
    let mut of_pid: HashMap<i32, Vec<usize>> = HashMap::new();
    for i in &index {
        of_pid.entry(watched[*i].holder.pid).or_default();
    }
    for (i, w) in watched.iter().enumerate() {
        if let Some(own) = of_pid.get_mut(&w.holder.pid) {
            own.push(i);
        }
    }
    let mut results: HashMap<FlowKey, Result<Basis, Cause>> = HashMap::new();
    let sets: Vec<Vec<Watched>> = of_pid
        .values()
        .map(|own| own.iter().map(|i| watched[*i]).collect())
        .collect();
    let (sets, too_many): (Vec<_>, Vec<_>) = sets.into_iter().partition(|s| s.len() <= MOST);
    for own in too_many.iter().flatten() {
        let why = format!(
            "its process has more than {MOST} sessions, too many to be told apart by their counts"
        );
        results.insert(own.end.key, Err(why.into()));
    }
    for some in sets.chunks(TOGETHER) {
        std::thread::scope(|scope| {
            let (processes, wanted) = (&processes, &wanted);
            let watch = |own: &'_ Vec<Watched>| one_process(own, processes, rules, wanted);
            let running: Vec<_> = some
                .iter()
                .map(|own| scope.spawn(move || watch(own)))
                .collect();
            let ended = running.into_iter().filter_map(|w| w.join().ok());
            results.extend(ended.flatten());
        });
    }
    let ended = || {
        Err(Cause::new(
            "its socket was closed, or its process ended, meanwhile",
        ))
    };
    let result = |key: FlowKey| (key, results.remove(&key).unwrap_or_else(ended));
    wanted.into_iter().map(result).collect()
}

fn watched(s: &Socket, ask: &Ask, processes: &HashMap<i32, Process>) -> Option<Watched> {
    let process = processes.get(&s.holder.pid)?;
    let known = ask.tracked.get(&s.key);
    let opened_here = known.map_or(!s.accepted, |t| t.opened_here);
    let end = watch::end(process, s.holder.fd, opened_here).ok()??;
    let fd = process.socket(s.holder.fd).ok()?;
    (end.key == s.key && of_our_network(&fd).ok()?).then_some(Watched {
        holder: s.holder,
        end,
        born: known.and_then(|t| t.born),
    })
}

fn one_process(
    own: &[Watched],
    processes: &HashMap<i32, Process>,
    rules: &WatchRules,
    wanted: &[FlowKey],
) -> Vec<(FlowKey, Result<Basis, Cause>)> {
    let of_interest: Vec<usize> = (0..own.len())
        .filter(|i| wanted.contains(&own[*i].end.key))
        .collect();
    let watch = Watch::new(processes, own);
    let (verdicts, lost) = watch.run(&rules.proof, rules.limit, &of_interest);
    let name = |i: usize| {
        let key = own[i].end.key;
        format!("{} > {}", key.local(), key.remote())
    };
    let gone = |i: usize| lost[i];
    let result = |(a, verdict): (usize, Result<pairing::Found, unpaired::Unpaired>)| {
        let basis = match verdict {
            Ok(found) => match gone(a).or(gone(found.b)) {
                None => Ok(Basis::Counts(pair(own, &found))),
                Some(lost) => Err(words(lost)),
            },
            Err(unpaired) => Err(match gone(a) {
                Some(lost) => words(lost),
                None => unpaired.cause(&rules.proof, name),
            }),
        };
        (own[a].end.key, basis)
    };
    verdicts.into_iter().map(result).collect()
}

fn words(lost: Lost) -> Cause {
    match lost {
        Lost::Gone => "its socket was closed, or its process ended, while it was watched".into(),
        Lost::Changed => "its descriptor became another socket's while it was watched".into(),
    }
}

fn pair(own: &[Watched], found: &pairing::Found) -> Pair {
    let (a, b) = (&own[found.a], &own[found.b]);
    let Holder { pid, fd: fd_a } = a.holder;
    let way = |delta| Direction {
        endless: true,
        declared: false,
        delta,
        pipe: None,
    };
    Pair {
        id: PairId {
            pid,
            fd_a,
            fd_b: b.holder.fd,
        },
        a: a.end,
        b: b.end,
        forward: way(found.forward),
        reverse: way(found.reverse),
        witness: Witness::Counts,
    }
}
