//! Removal of processes and pairs that ended without a report. A shim does not repeat a lost
//! report about sockets that are closed. The registry is not locked during system calls.

use std::sync::Mutex;

use super::duplicate::{Process, is_no_socket};
use super::held::is;
use super::lock;
use super::pair::{End, Pair, PairId};
use super::registry::Registry;
use super::sys::gone;

/// Number of pairs examined in one pass. There are a few passes a second.
const LOOKS: usize = 64;
/// Number of pairs examined in one pass after a report found no room, until all pairs were
/// examined.
const MANY_LOOKS: usize = 1_024;

/// Position of the sweep in the list of pairs.
#[derive(Default)]
pub(crate) struct Sweep {
    behind: Option<PairId>,
    /// Number of reports that had found no room at the last pass.
    refused: u64,
    /// Number of pairs that remain to be examined in large passes.
    hurry: usize,
}

impl Sweep {
    /// Removes ended processes, and some of the closed pairs.
    pub(crate) fn go(&mut self, registry: &Mutex<Registry>) {
        let processes = {
            let mut registry = lock(registry);
            registry.expire();
            registry.processes()
        };
        for (pid, process) in &processes {
            if process.ended() {
                lock(registry).ended(*pid, process);
            }
        }
        for pair in self.next(registry) {
            // Pairs that counts have shown without a shim expire soon.
            if let Some(process) = processes.get(&pair.id.pid)
                && closed(process, &pair)
            {
                lock(registry).closed(&pair);
            }
        }
        let (receipts, gone) = {
            let mut registry = lock(registry);
            (registry.receipts(), registry.take_gone())
        };
        receipts.forget(&gone);
    }

    fn next(&mut self, registry: &Mutex<Registry>) -> Vec<Pair> {
        let registry = lock(registry);
        let stats = registry.stats();
        let most = self.looks(stats.pairs as usize, stats.no_room + stats.over_share);
        let some = registry.behind(self.behind, most);
        // The sweep restarts after the last pair.
        self.behind = some.last().filter(|_| some.len() == most).map(|p| p.id);
        some
    }

    /// Returns the number of pairs to examine: more after a report found no room in the table or
    /// in its user's share.
    fn looks(&mut self, known: usize, refused: u64) -> usize {
        if std::mem::replace(&mut self.refused, refused) != refused {
            self.hurry = known;
        }
        let most = if self.hurry > 0 { MANY_LOOKS } else { LOOKS };
        self.hurry = self.hurry.saturating_sub(most);
        most
    }
}

/// Returns true if one of the pair's sockets is no longer open or no longer connected.
fn closed(process: &Process, pair: &Pair) -> bool {
    let closed = |fd, end: &End| match gone(process.socket(fd)) {
        Ok(fd) => fd.is_none_or(|fd| !is(&fd, end)),
        Err(e) => is_no_socket(&e),
    };
    closed(pair.id.fd_a, &pair.a) || closed(pair.id.fd_b, &pair.b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_finds_no_room_has_all_looked_through_faster() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.looks(2 * MANY_LOOKS, 0), LOOKS);
        assert_eq!(sweep.looks(2 * MANY_LOOKS, 1), MANY_LOOKS);
        assert_eq!(sweep.looks(2 * MANY_LOOKS, 1), MANY_LOOKS);
        assert_eq!(sweep.looks(2 * MANY_LOOKS, 1), LOOKS);
        assert_eq!(sweep.looks(1, 2), MANY_LOOKS);
        assert_eq!(sweep.looks(1, 2), LOOKS);
    }
}
