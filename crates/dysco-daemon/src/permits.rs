//! Permits for connections, of which no client takes all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Permits that clients share.
#[derive(Debug)]
pub(crate) struct Permits<K> {
    /// Number of permits that each client has taken.
    taken: Mutex<HashMap<K, usize>>,
    /// Maximum number of permits that are taken at once.
    all: usize,
    /// Maximum number of permits of one client.
    each: usize,
}

/// Permit of a client, until it is dropped.
pub(crate) struct Permit<K: Copy + Eq + Hash> {
    permits: Arc<Permits<K>>,
    client: K,
}

impl<K: Copy + Eq + Hash> Permits<K> {
    pub(crate) fn new(all: usize, each: usize) -> Arc<Permits<K>> {
        Arc::new(Permits {
            taken: Mutex::default(),
            all,
            each,
        })
    }

    /// Takes a permit; none if there is no room for this client.
    pub(crate) fn take(self: &Arc<Permits<K>>, client: K) -> Option<Permit<K>> {
        let mut taken = self.taken();
        let its = taken.get(&client).copied().unwrap_or(0);
        if its >= self.each || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(client, its + 1);
        let permits = Arc::clone(self);
        Some(Permit { permits, client })
    }

    // Each change is one call: a panic elsewhere leaves the table consistent.
    fn taken(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        if let Some(its) = taken.get_mut(&self.client) {
            *its -= 1;
            if *its == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_does_not_shut_out_the_others() {
        let permits = Permits::new(5, 2);
        let take = |client| permits.take(client);
        let (first, _second) = (take(1).unwrap(), take(1).unwrap());
        assert!(take(1).is_none());
        let others = [take(2), take(2), take(3)];
        assert!(others.iter().all(Option::is_some));
        assert!(take(4).is_none(), "all are taken");
        drop(first);
        assert!(take(4).is_some());
        drop(others);
        assert!(take(1).is_some());
        assert_eq!(*permits.taken(), [(1, 1)].into());
    }
}
