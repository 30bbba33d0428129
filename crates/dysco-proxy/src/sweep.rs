//! Forgetting what ended or was closed without a word: a shim whose report does not
//! get through does not say it again of sockets that are closed. The registry is
//! not locked while the kernel is asked.

use std::sync::Mutex;

use super::held::{gone, is};
use super::lock;
use super::pair::{End, Pair, PairId};
use super::registry::Registry;
use super::theirs::{Process, is_no_socket};

/// Pairs looked at in one go, of which there are some a second.
const LOOKS: usize = 64;
/// The same since somebody found no room, until all were looked at.
const MANY_LOOKS: usize = 1_024;

/// Where the looks at all pairs go on.
#[derive(Default)]
pub struct Sweep {
    behind: Option<PairId>,
    /// How many had found no room by the last look.
    refused: u64,
    /// As many are to be looked at soon.
    hurry: usize,
}

impl Sweep {
    /// Forgets what ended, and some of what was closed.
    pub fn go(&mut self, registry: &Mutex<Registry>) {
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
            // What counts have shown without a shim is forgotten soon anyway.
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
        // Begins anew behind the last one.
        self.behind = some.last().filter(|_| some.len() == most).map(|p| p.id);
        some
    }

    /// Room is found sooner where there was none, in the table or in a user's share.
    fn looks(&mut self, known: usize, refused: u64) -> usize {
        if std::mem::replace(&mut self.refused, refused) != refused {
            self.hurry = known;
        }
        let most = if self.hurry > 0 { MANY_LOOKS } else { LOOKS };
        self.hurry = self.hurry.saturating_sub(most);
        most
    }
}

/// Is one of its sockets no longer open, or no longer connected?
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
