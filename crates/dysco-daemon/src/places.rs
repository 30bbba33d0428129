//! Places for connections, of which no client takes all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places that clients share.
#[derive(Debug)]
pub(crate) struct Places<K> {
    /// Number of places that each client has taken.
    taken: Mutex<HashMap<K, usize>>,
    /// Maximum number of places that are taken at once.
    all: usize,
    /// Maximum number of places of one client.
    each: usize,
}

/// Place of a client, until it is dropped.
pub(crate) struct Place<K: Copy + Eq + Hash> {
    places: Arc<Places<K>>,
    client: K,
}

impl<K: Copy + Eq + Hash> Places<K> {
    pub(crate) fn new(all: usize, each: usize) -> Arc<Places<K>> {
        Arc::new(Places {
            taken: Mutex::default(),
            all,
            each,
        })
    }

    /// Takes a place; none if there is no room for this client.
    pub(crate) fn take(self: &Arc<Places<K>>, client: K) -> Option<Place<K>> {
        let mut taken = self.taken();
        let its = taken.get(&client).copied().unwrap_or(0);
        if its >= self.each || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(client, its + 1);
        let places = Arc::clone(self);
        Some(Place { places, client })
    }

    // Each change is one call: a panic elsewhere leaves the table consistent.
    fn taken(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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
        let places = Places::new(5, 2);
        let take = |client| places.take(client);
        let (first, _second) = (take(1).unwrap(), take(1).unwrap());
        assert!(take(1).is_none());
        let others = [take(2), take(2), take(3)];
        assert!(others.iter().all(Option::is_some));
        assert!(take(4).is_none(), "all are taken");
        drop(first);
        assert!(take(4).is_some());
        drop(others);
        assert!(take(1).is_some());
        assert_eq!(*places.taken(), [(1, 1)].into());
    }
}
