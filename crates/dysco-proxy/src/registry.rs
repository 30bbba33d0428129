//! The known pairs, bounded in number, which can be found by descriptor or five-tuple.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dysco_common::FlowKey;
use dysco_common::shim::Report;
use tokio::sync::broadcast;

use super::ShimStats;
use super::duplicate::Process;
use super::error::Refused;
use super::pair::{Direction, End, Pair, PairEvent, PairId, Witness};
use super::receipts::Receipts;
use super::sender::Sender;

/// Maximum number of processes.
const MAX_PROCESSES: usize = 1_024;
/// Time after which counts must show a pair again.
const OBSERVED_FOR: Duration = Duration::from_secs(60);

/// A process whose shim has reported, and its user.
struct Reporting {
    process: Arc<Process>,
    uid: u32,
}

/// A pair, and the user of the shim that reported it.
#[derive(Clone, Copy)]
struct Kept {
    pair: Pair,
    uid: Option<u32>,
}

/// Pairs and their processes. The engine queries the registry, so that no function here makes a
/// system call.
pub(crate) struct Registry {
    pairs: BTreeMap<PairId, Kept>,
    /// Number of pairs of each user.
    of_user: HashMap<u32, usize>,
    /// Pairs by the five-tuple of either side.
    by_key: HashMap<FlowKey, PairId>,
    processes: HashMap<i32, Reporting>,
    /// Pairs that counts have shown, and the time.
    observed: HashMap<PairId, Instant>,
    /// Those of them that removals need, and the time at which this was last said.
    needed: HashMap<PairId, Instant>,
    max_pairs: usize,
    events: broadcast::Sender<PairEvent>,
    /// Counters.
    pub stats: ShimStats,
    receipts: Arc<Receipts>,
    /// Ends of removed pairs, which may still be watched.
    gone: Vec<End>,
}

impl Registry {
    /// Returns an empty registry.
    pub(crate) fn new(max_pairs: usize, events: broadcast::Sender<PairEvent>) -> Self {
        Registry {
            pairs: BTreeMap::new(),
            of_user: HashMap::new(),
            by_key: HashMap::new(),
            processes: HashMap::new(),
            observed: HashMap::new(),
            needed: HashMap::new(),
            max_pairs,
            events,
            stats: ShimStats::default(),
            receipts: Arc::new(Receipts::new(max_pairs)),
            gone: Vec::new(),
        }
    }

    /// Returns the kernel's record of receiving calls.
    pub(crate) fn receipts(&self) -> Arc<Receipts> {
        Arc::clone(&self.receipts)
    }

    /// Returns the cookies of the sockets that belonged to pairs since the last call, and belong
    /// to none now.
    pub(crate) fn take_gone(&mut self) -> Vec<u64> {
        let gone = std::mem::take(&mut self.gone);
        let stays = |end: &End| {
            let pair = self.of(&end.key);
            pair.is_some_and(|p| [p.a.cookie, p.b.cookie].contains(&end.cookie))
        };
        let gone = gone.iter().filter(|end| !stays(end));
        gone.map(|end| end.cookie).collect()
    }

    /// Returns the counters, and the numbers of processes and pairs.
    pub(crate) fn stats(&self) -> ShimStats {
        ShimStats {
            processes: self.processes.len() as u64,
            pairs: self.pairs.len() as u64,
            ..self.stats
        }
    }

    /// Returns all pairs.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        self.pairs.values().map(|k| k.pair).collect()
    }

    /// Returns the newest claim about a pair, if it still has the same two sockets.
    pub(crate) fn newest(&self, pair: &Pair) -> Option<Pair> {
        let now = self.get(&pair.id)?;
        let same = now.a.cookie == pair.a.cookie && now.b.cookie == pair.b.cookie;
        same.then_some(now)
    }

    fn get(&self, id: &PairId) -> Option<Pair> {
        Some(self.pairs.get(id)?.pair)
    }

    /// Returns the pair of a client's subsession.
    pub(crate) fn find(&self, client: &FlowKey) -> Option<Pair> {
        self.of(client).filter(|pair| pair.a.key == *client)
    }

    /// Returns the pair that has a session on either side.
    pub(crate) fn of(&self, session: &FlowKey) -> Option<Pair> {
        self.get(self.by_key.get(session)?)
    }

    /// Returns true if this client's subsession need not be watched: a shim reports it, or counts
    /// have shown its pair so recently that this outlasts a watch of others.
    pub(crate) fn is_sure(&self, client: &FlowKey) -> bool {
        self.find(client).is_some_and(|pair| {
            let observed = self.observed.get(&pair.id);
            observed.is_none_or(|at| at.elapsed() < OBSERVED_FOR / 2)
        })
    }

    /// Counts a report and its result.
    pub(crate) fn count(&mut self, taken: &Result<(), Refused>) {
        self.stats.reports += 1;
        match taken {
            Ok(()) => {}
            Err(Refused::Descriptors(_)) => self.stats.refused += 1,
            Err(Refused::Share { .. }) => self.stats.over_share += 1,
            Err(Refused::NoRoom) => self.stats.no_room += 1,
        }
    }

    /// Returns the process, if its shim has reported.
    pub(crate) fn process(&self, pid: i32) -> Option<Arc<Process>> {
        Some(Arc::clone(&self.processes.get(&pid)?.process))
    }

    /// Returns all processes whose shims have reported.
    pub(crate) fn processes(&self) -> HashMap<i32, Arc<Process>> {
        let all = self.processes.iter();
        all.map(|(pid, p)| (*pid, Arc::clone(&p.process))).collect()
    }

    /// Adds a reporting process that was unknown, or that has the pid of an ended one.
    pub(crate) fn meet(&mut self, from: Sender, process: &Arc<Process>) -> Result<(), Refused> {
        self.forget(from.pid);
        let own = self.processes.values().filter(|p| p.uid == from.uid);
        share(
            "processes",
            from.uid,
            own.count(),
            self.processes.len(),
            MAX_PROCESSES,
        )?;
        let process = Reporting {
            process: Arc::clone(process),
            uid: from.uid,
        };
        self.processes.insert(from.pid, process);
        Ok(())
    }

    /// Stores a pair that the counts have shown, for a while. A shim's report about the same
    /// sockets takes precedence.
    pub(crate) fn observe(&mut self, pair: Pair) {
        let old = self.get(&pair.id);
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
        self.observed.insert(pair.id, Instant::now());
        self.insert(pair, None);
    }

    /// Removes the pair of a report that a shim has revoked.
    pub(crate) fn revoked(&mut self, pid: i32, r: &Report) {
        let (one, two) = ((r.fd_in, r.cookie_in), (r.fd_out, r.cookie_out));
        self.revoke(pid, one, two);
        self.revoke(pid, two, one);
    }

    fn revoke(&mut self, pid: i32, a: (i32, u64), b: (i32, u64)) {
        let id = PairId {
            pid,
            fd_a: a.0,
            fd_b: b.0,
        };
        // A socket that the shim could no longer identify has cookie 0 and matches any.
        let meant = |cookie: u64, end: &End| cookie == 0 || cookie == end.cookie;
        let pair = self.get(&id);
        if pair.is_some_and(|p| meant(a.1, &p.a) && meant(b.1, &p.b)) {
            self.remove(&id);
        }
    }

    /// Stores a shim's claim about a pair. `called` is true if the program itself declares it.
    pub(crate) fn claim(&mut self, new: Pair, uid: u32, called: bool) -> Result<(), Refused> {
        let old = self.get(&new.id);
        let old = match old {
            Some(o) if o.a.cookie == new.a.cookie && o.b.cookie == new.b.cookie => Some(o),
            Some(_) => {
                self.remove(&new.id);
                None
            }
            None => None,
        };
        let pair = merge(old, new, called);
        match old {
            Some(old) if old == pair => return Ok(()),
            Some(_) => drop(self.events.send(PairEvent::Changed(pair))),
            None => {
                let own = self.of_user.get(&uid).copied().unwrap_or_default();
                share("pairs", uid, own, self.pairs.len(), self.max_pairs)?;
                drop(self.events.send(PairEvent::New(pair)));
            }
        }
        self.observed.remove(&pair.id);
        self.insert(pair, Some(uid));
        Ok(())
    }

    /// Keeps the pairs of these five-tuples of either side, if counts have shown them: removals of their
    /// sessions wait. The counts are read again when these begin.
    pub(crate) fn need(&mut self, keys: impl Iterator<Item = FlowKey>) {
        if self.observed.is_empty() {
            return;
        }
        let now = Instant::now();
        let ids = keys.filter_map(|key| self.by_key.get(&key));
        let known = ids.filter(|id| self.observed.contains_key(id));
        self.needed.extend(known.map(|id| (*id, now)));
    }

    /// Removes pairs that counts have shown too long ago, and that no removal needs.
    pub(crate) fn expire(&mut self) {
        let is_old = |at: &Instant| at.elapsed() > OBSERVED_FOR;
        let observed = self.observed.iter().filter(|(_, at)| is_old(at));
        let old = observed.filter(|(id, _)| self.needed.get(id).is_none_or(is_old));
        let old: Vec<PairId> = old.map(|(id, _)| *id).collect();
        for id in old {
            self.remove(&id);
        }
    }

    /// Removes an ended process, unless its pid belongs to another one now.
    pub(crate) fn ended(&mut self, pid: i32, process: &Arc<Process>) {
        let now = self.processes.get(&pid);
        if now.is_some_and(|p| Arc::ptr_eq(&p.process, process)) {
            self.forget(pid);
        }
    }

    fn forget(&mut self, pid: i32) {
        if self.processes.remove(&pid).is_some() {
            let id = |fd| PairId {
                pid,
                fd_a: fd,
                fd_b: fd,
            };
            let of_it = self.pairs.range(id(i32::MIN)..=id(i32::MAX));
            let of_it: Vec<PairId> = of_it.map(|(id, _)| *id).collect();
            for id in of_it {
                self.remove(&id);
            }
        }
    }

    /// Returns up to `most` pairs that follow `id`, or the first ones.
    pub(crate) fn behind(&self, id: Option<PairId>, most: usize) -> Vec<Pair> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.pairs.range((from, Bound::Unbounded));
        range.take(most).map(|(_, k)| k.pair).collect()
    }

    /// Removes a pair whose sockets are closed, unless its descriptors belong to another pair
    /// now.
    pub(crate) fn closed(&mut self, pair: &Pair) {
        if self.newest(pair).is_some() {
            self.remove(&pair.id);
        }
    }

    fn insert(&mut self, pair: Pair, uid: Option<u32>) {
        if let Some(old) = self.pairs.insert(pair.id, Kept { pair, uid }) {
            self.uncount(old.uid);
        }
        if let Some(uid) = uid {
            *self.of_user.entry(uid).or_default() += 1;
        }
        for key in [pair.a.key, pair.b.key] {
            self.by_key.insert(key, pair.id);
        }
    }

    /// Removes a pair, if it is known.
    pub(crate) fn remove(&mut self, id: &PairId) {
        self.observed.remove(id);
        self.needed.remove(id);
        if let Some(Kept { pair, uid }) = self.pairs.remove(id) {
            self.uncount(uid);
            self.gone.extend([pair.a, pair.b]);
            for key in [pair.a.key, pair.b.key] {
                // Another pair may have the five-tuple now.
                if self.by_key.get(&key) == Some(id) {
                    self.by_key.remove(&key);
                }
            }
            drop(self.events.send(PairEvent::Gone(pair)));
        }
    }

    fn uncount(&mut self, uid: Option<u32>) {
        let Some(uid) = uid else { return };
        if let Some(n) = self.of_user.get_mut(&uid) {
            *n -= 1;
            if *n == 0 {
                self.of_user.remove(&uid);
            }
        }
    }
}

/// Returns an error if a user may not have one more entry. A user may as long as it has fewer
/// entries than are free: one user gets half of the table, the next one half of the rest, and
/// none gets all.
fn share(
    what: &'static str,
    uid: u32,
    own: usize,
    known: usize,
    room: usize,
) -> Result<(), Refused> {
    match room.saturating_sub(known) {
        0 => Err(Refused::NoRoom),
        free if own >= free => Err(Refused::Share { what, uid, own }),
        _ => Ok(()),
    }
}

/// Returns the new claim, combined with earlier declarations of the program itself.
fn merge(old: Option<Pair>, new: Pair, called: bool) -> Pair {
    let mut pair = new;
    if let Some(old) = &old {
        // The earlier report has better data: a closing socket no longer shows them.
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

#[cfg(test)]
mod tests;
