//! Requesters of changes of chains, for the history of the sessions.

use std::collections::BTreeMap;

use super::task::Whose;

/// Requesters, until the last change of their request has ended.
#[derive(Default)]
pub(super) struct Requesters(BTreeMap<Whose, Requester>);

struct Requester {
    /// The words of a session's history.
    by: String,
    /// Number of changes that have not ended.
    left: usize,
}

impl Requesters {
    /// Adds the requester of this number of changes.
    pub(super) fn add(&mut self, whose: Whose, by: String, changes: usize) {
        if changes > 0 {
            let left = changes;
            self.0.insert(whose, Requester { by, left });
        }
    }

    /// Returns a requester.
    pub(super) fn of(&self, whose: Whose) -> Option<String> {
        self.0.get(&whose).map(|requester| requester.by.clone())
    }

    /// Records that a change has ended.
    pub(super) fn ended(&mut self, whose: Whose) {
        if let Some(requester) = self.0.get_mut(&whose) {
            requester.left -= 1;
            if requester.left == 0 {
                self.0.remove(&whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requester_is_known_until_the_last_change_has_ended() {
        let (one, other) = (Whose::Batch(1), Whose::Removal(1));
        let mut requesters = Requesters::default();
        requesters.add(one, "root".into(), 2);
        requesters.add(other, "nobody".into(), 0);
        requesters.ended(one);
        assert_eq!(requesters.of(one).as_deref(), Some("root"));
        assert_eq!(requesters.of(other), None);
        requesters.ended(one);
        requesters.ended(one);
        assert_eq!(requesters.of(one), None);
    }
}
