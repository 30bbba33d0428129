//! Components of the states of both models.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use dysco_proto::Message;
use rustc_hash::FxHasher;

/// Returns a name for a state.
pub(crate) fn digest(state: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    state.hash(&mut hasher);
    // The low bits of this hasher are weak.
    hasher
        .finish()
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// A host with the name of its state: a step copies and renames only the hosts that it changes.
#[derive(Clone)]
pub(crate) struct Sealed<H>(Arc<(u64, H)>);

impl<H: Hash + Clone> Sealed<H> {
    /// Computes the name of the host's state.
    pub(crate) fn new(host: H) -> Sealed<H> {
        Sealed(Arc::new((digest(&host), host)))
    }

    /// Returns the host.
    pub(crate) fn get(&self) -> &H {
        &self.0.1
    }

    /// Changes the host, and recomputes its name.
    pub(crate) fn edit<T>(&mut self, f: impl FnOnce(&mut H) -> T) -> T {
        let (name, host) = Arc::make_mut(&mut self.0);
        let result = f(host);
        *name = digest(host);
        result
    }
}

impl<H> Hash for Sealed<H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.0.0.hash(state);
    }
}

/// A message in flight.
#[derive(Clone, Debug)]
pub struct Letter {
    /// Index of the sender.
    pub from: usize,
    /// Index of the receiver.
    pub to: usize,
    /// Content of the message.
    pub message: Message,
    /// Name of the fields above.
    digest: u64,
}

impl Hash for Letter {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.digest.hash(state);
    }
}

impl std::fmt::Display for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}>{} {}", self.from, self.to, self.message.name())
    }
}

/// Messages in flight, without an order of delivery: they are sorted by their names.
pub(crate) type Net = Vec<Arc<Letter>>;

/// Puts a message in flight. An equal message in flight is the same message.
pub(crate) fn post(net: &mut Net, from: usize, to: usize, message: Message) {
    let name = digest(&(from, to, &message));
    if let Err(at) = net.binary_search_by_key(&name, |l| l.digest) {
        let letter = Letter {
            from,
            to,
            message,
            digest: name,
        };
        net.insert(at, Arc::new(letter));
    }
}
