//! The pairs known now, bounded, found by descriptor or by five-tuple.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use dysco_common::FlowKey;
use dysco_common::shim::{Report, ReportKind, report};
use tokio::sync::broadcast;

use super::ShimStats;
use super::held::gone;
use super::kernel::opened_here;
use super::pair::{Direction, End, Pair, PairEvent, PairId, Witness};
use super::sys::{Process, cookie, key, of_our_network};

/// Processes remembered at once.
const MAX_PROCESSES: usize = 1_024;
/// What counts have shown is to be shown again after this.
const SHOWN_FOR: Duration = Duration::from_secs(60);

/// Pairs and the processes they are of.
pub struct Registry {
    pairs: HashMap<PairId, Pair>,
    /// By the five-tuple of either side.
    by_key: HashMap<FlowKey, PairId>,
    processes: HashMap<i32, Process>,
    /// Pairs that counts have shown, and when.
    shown: HashMap<PairId, Instant>,
    max_pairs: usize,
    events: broadcast::Sender<PairEvent>,
    /// What was counted.
    pub stats: ShimStats,
}

impl Registry {
    /// An empty one.
    pub fn new(max_pairs: usize, events: broadcast::Sender<PairEvent>) -> Self {
        Registry {
            pairs: HashMap::new(),
            by_key: HashMap::new(),
            processes: HashMap::new(),
            shown: HashMap::new(),
            max_pairs,
            events,
            stats: ShimStats::default(),
        }
    }

    /// What was counted, and how many pairs there are.
    pub fn stats(&self) -> ShimStats {
        ShimStats {
            pairs: self.pairs.len() as u64,
            ..self.stats
        }
    }

    /// All pairs.
    pub fn pairs(&self) -> Vec<Pair> {
        self.pairs.values().copied().collect()
    }

    /// The newest word on a pair, if it still is of the same two sockets.
    pub fn newest(&self, pair: &Pair) -> Option<Pair> {
        let now = self.pairs.get(&pair.id)?;
        let same = now.a.cookie == pair.a.cookie && now.b.cookie == pair.b.cookie;
        same.then_some(*now)
    }

    /// The pair of a client's subsession.
    pub fn find(&self, client: &FlowKey) -> Option<Pair> {
        self.of(client).filter(|pair| pair.a.key == *client)
    }

    /// The pair that has a session on either side.
    pub fn of(&self, session: &FlowKey) -> Option<Pair> {
        self.pairs.get(self.by_key.get(session)?).copied()
    }

    /// Takes one report of process `pid`. The error is that of a report whose
    /// descriptors are not what it says.
    pub fn take(&mut self, pid: i32, r: &Report) -> io::Result<()> {
        self.stats.reports += 1;
        match ReportKind::from_word(r.kind) {
            Some(ReportKind::Hello) => {
                if self.known(pid)? {
                    self.stats.hellos += 1;
                }
                Ok(())
            }
            Some(ReportKind::Paired | ReportKind::Called) => self.claim(pid, r),
            Some(ReportKind::Revoked) => {
                let (one, two) = ((r.fd_in, r.cookie_in), (r.fd_out, r.cookie_out));
                self.revoke(pid, one, two);
                self.revoke(pid, two, one);
                Ok(())
            }
            None => {
                self.stats.malformed += 1;
                Ok(())
            }
        }
    }

    /// Has this process the shim loaded?
    pub fn has_shim(&self, pid: i32) -> bool {
        self.processes.get(&pid).is_some_and(|p| !p.ended())
    }

    /// Takes a pair that the counts have shown, for a while. The shim's word on
    /// the same sockets stands.
    pub fn show(&mut self, pair: Pair) {
        let old = self.pairs.get(&pair.id).copied();
        let same = |o: &Pair| o.a.cookie == pair.a.cookie && o.b.cookie == pair.b.cookie;
        match old {
            Some(o) if o.witness == Witness::Shim && same(&o) => return,
            Some(o) => self.remove(&o.id),
            None if self.pairs.len() >= self.max_pairs => {
                self.stats.no_room += 1;
                return;
            }
            None => {}
        }
        self.shown.insert(pair.id, Instant::now());
        self.insert(pair);
    }

    /// Takes the word back, of these descriptors and sockets.
    fn revoke(&mut self, pid: i32, a: (i32, u64), b: (i32, u64)) {
        let id = PairId {
            pid,
            fd_a: a.0,
            fd_b: b.0,
        };
        // A socket that the shim could not name any more may be any.
        let meant = |cookie: u64, end: &End| cookie == 0 || cookie == end.cookie;
        let pair = self.pairs.get(&id);
        if pair.is_some_and(|p| meant(a.1, &p.a) && meant(b.1, &p.b)) {
            self.remove(&id);
        }
    }

    fn claim(&mut self, pid: i32, r: &Report) -> io::Result<()> {
        let new = self.resolve(pid, r)?;
        let old = self.pairs.get(&new.id).copied();
        let old = match old {
            Some(o) if o.a.cookie == new.a.cookie && o.b.cookie == new.b.cookie => Some(o),
            Some(_) => {
                self.remove(&new.id);
                None
            }
            None => None,
        };
        let pair = merge(
            old,
            new,
            ReportKind::from_word(r.kind) == Some(ReportKind::Called),
        );
        match old {
            Some(old) if old == pair => return Ok(()),
            Some(_) => drop(self.events.send(PairEvent::Changed(pair))),
            None if self.pairs.len() >= self.max_pairs => {
                self.stats.no_room += 1;
                return Ok(());
            }
            None => drop(self.events.send(PairEvent::New(pair))),
        }
        self.shown.remove(&pair.id);
        self.insert(pair);
        Ok(())
    }

    /// What the report says, in terms of the kernel's sockets. That the sender
    /// has them is proven by taking them from the sender; that it means these and
    /// not those that had the numbers before, by their cookies.
    fn resolve(&mut self, pid: i32, r: &Report) -> io::Result<Pair> {
        self.known(pid)?;
        let process = self.processes.get(&pid).ok_or_else(no_process)?;
        let opened = r.flags & report::IN_ACCEPTED == 0;
        let one = end(process, r.fd_in, r.cookie_in, opened)?;
        let two = end(process, r.fd_out, r.cookie_out, true)?;
        if one.cookie == two.cookie {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "one socket twice",
            ));
        }
        let way = |bit, delta, pipe: i32| Direction {
            endless: r.flags & bit != 0,
            declared: false,
            delta,
            pipe: (pipe >= 0).then_some(pipe),
        };
        let out = way(report::FORWARD_ENDLESS, r.delta_forward, r.pipe_forward);
        let back = way(report::REVERSE_ENDLESS, r.delta_reverse, r.pipe_reverse);
        let id = |fd_a, fd_b| PairId { pid, fd_a, fd_b };
        let keep = match (one.opened_here, two.opened_here) {
            (false, true) => true,
            (true, false) => false,
            _ => r.fd_in < r.fd_out,
        };
        Ok(if keep {
            Pair {
                id: id(r.fd_in, r.fd_out),
                a: one,
                b: two,
                forward: out,
                reverse: back,
                witness: Witness::Shim,
            }
        } else {
            Pair {
                id: id(r.fd_out, r.fd_in),
                a: two,
                b: one,
                forward: back,
                reverse: out,
                witness: Witness::Shim,
            }
        })
    }

    /// Makes sure of a handle on the process; true if it is a new one.
    fn known(&mut self, pid: i32) -> io::Result<bool> {
        if self.processes.get(&pid).is_some_and(|p| !p.ended()) {
            return Ok(false);
        }
        self.forget(pid);
        if self.processes.len() >= MAX_PROCESSES {
            self.sweep();
        }
        if self.processes.len() >= MAX_PROCESSES {
            return Err(io::Error::other("too many processes have the shim loaded"));
        }
        self.processes.insert(pid, Process::open(pid)?);
        Ok(true)
    }

    /// Removes what ended without a word.
    pub fn sweep(&mut self) {
        let ended: Vec<i32> = self
            .processes
            .iter()
            .filter_map(|(pid, p)| p.ended().then_some(*pid))
            .collect();
        for pid in ended {
            self.forget(pid);
        }
        let shown = self.shown.iter();
        let old: Vec<PairId> = shown
            .filter_map(|(id, at)| (at.elapsed() > SHOWN_FOR).then_some(*id))
            .collect();
        for id in old {
            self.remove(&id);
        }
    }

    fn forget(&mut self, pid: i32) {
        if self.processes.remove(&pid).is_some() {
            let of_it: Vec<PairId> = self
                .pairs
                .keys()
                .filter(|id| id.pid == pid)
                .copied()
                .collect();
            for id in of_it {
                self.remove(&id);
            }
        }
    }

    fn insert(&mut self, pair: Pair) {
        self.pairs.insert(pair.id, pair);
        for key in [pair.a.key, pair.b.key] {
            self.by_key.insert(key, pair.id);
        }
    }

    /// Removes a pair, if it is known.
    pub fn remove(&mut self, id: &PairId) {
        self.shown.remove(id);
        if let Some(pair) = self.pairs.remove(id) {
            for key in [pair.a.key, pair.b.key] {
                // Another pair may have the five-tuple by now.
                if self.by_key.get(&key) == Some(id) {
                    self.by_key.remove(&key);
                }
            }
            drop(self.events.send(PairEvent::Gone(pair)));
        }
    }
}

fn no_process() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

fn end(process: &Process, fd: i32, meant: u64, opened: bool) -> io::Result<End> {
    let fd = gone(process.fd(fd))?.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    let cookie = cookie(&fd)?;
    if cookie != meant {
        let why = "the descriptor is of another socket now than the one reported";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if !of_our_network(&fd)? {
        let why = "a socket of another network namespace than dyscod's";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(End {
        key: key(&fd)?,
        cookie,
        opened_here: opened_here(&fd)?.unwrap_or(opened),
    })
}

/// The new claim, with what the program itself had declared before.
fn merge(old: Option<Pair>, new: Pair, called: bool) -> Pair {
    let mut pair = new;
    if let Some(old) = &old {
        // Known better then: a closing socket does not tell any more.
        (pair.a, pair.b) = (old.a, old.b);
    }
    let before = |d: fn(&Pair) -> Direction| old.as_ref().map(d);
    for (now, was) in [
        (&mut pair.forward, before(|p| p.forward)),
        (&mut pair.reverse, before(|p| p.reverse)),
    ] {
        if called && now.endless {
            now.declared = true;
        } else if let Some(was) = was
            && (called || was.declared)
        {
            *now = was;
        }
    }
    pair
}
