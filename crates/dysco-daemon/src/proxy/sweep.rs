//! Forgetting what ended or was closed without a word: a shim whose report does not
//! get through does not say it again of sockets that are closed. The registry is
//! not locked while the kernel is asked.

use std::sync::Mutex;

use super::held::{gone, is};
use super::lock;
use super::pair::{End, Pair, PairId};
use super::registry::Registry;
use super::sys::Process;

/// Pairs looked at in one go, of which there are some a second.
const LOOKS: usize = 64;
/// The same while the table is nearly full.
const MANY_LOOKS: usize = 1_024;

/// Where the looks at all pairs go on.
#[derive(Default)]
pub struct Sweep(Option<PairId>);

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
    }

    fn next(&mut self, registry: &Mutex<Registry>) -> Vec<Pair> {
        let registry = lock(registry);
        let (known, room) = registry.filled();
        let most = looks(known, room);
        let some = registry.behind(self.0, most);
        // Begins anew behind the last one.
        self.0 = some.last().filter(|_| some.len() == most).map(|p| p.id);
        some
    }
}

/// Room is found sooner where there is little.
fn looks(known: usize, room: usize) -> usize {
    match known > room / 8 * 7 {
        true => MANY_LOOKS,
        false => LOOKS,
    }
}

/// Is one of its sockets no longer open, or no longer connected?
fn closed(process: &Process, pair: &Pair) -> bool {
    let closed = |fd, end: &End| match gone(process.fd(fd)) {
        Ok(fd) => fd.is_none_or(|fd| !is(&fd, end)),
        Err(_) => false,
    };
    closed(pair.id.fd_a, &pair.a) || closed(pair.id.fd_b, &pair.b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_nearly_full_is_looked_through_faster() {
        assert_eq!(looks(0, 1 << 16), LOOKS);
        assert_eq!(looks(7 << 13, 1 << 16), LOOKS);
        assert_eq!(looks((7 << 13) + 1, 1 << 16), MANY_LOOKS);
    }
}
