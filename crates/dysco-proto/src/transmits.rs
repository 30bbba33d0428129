//! Messages that wait to be fetched. Several inputs of a change may precede the fetch.

use std::collections::{BTreeMap, VecDeque};

use super::message::Message;
use super::names::{ChangeId, HostId};

/// The messages, in the order in which they were sent.
#[derive(Clone, Default)]
pub(super) struct Transmits {
    waiting: VecDeque<(u64, HostId, Message)>,
    /// Number of the next message.
    next: u64,
    /// Number of the first message that may depend on the last record of a change.
    recorded: BTreeMap<ChangeId, u64>,
}

impl Transmits {
    /// Returns the number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, to: HostId, message: Message) {
        self.waiting.push_back((self.next, to, message));
        self.next += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<(HostId, Message)> {
        let popped = self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.recorded.clear();
        }
        popped.map(|(_, to, message)| (to, message))
    }

    /// Records that the messages of a change from this number on wait for a record.
    pub(crate) fn precede(&mut self, change: ChangeId, first: u64) {
        self.recorded.insert(change, first);
    }

    /// Removes the messages of a change that wait for its last record.
    pub(crate) fn purge(&mut self, change: ChangeId) {
        let first = self.recorded.get(&change).copied().unwrap_or(0);
        (self.waiting).retain(|(number, _, m)| m.change() != change || *number < first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ChangeId = ChangeId([1; 16]);
    const OTHER: ChangeId = ChangeId([2; 16]);

    fn push(all: &mut Transmits, change: ChangeId) {
        let to = [10, 0, 0, 1].into();
        all.push(to, Message::DoneAck { change });
    }

    fn left(all: &mut Transmits) -> Vec<ChangeId> {
        let popped = std::iter::from_fn(|| all.pop());
        popped.map(|(_, message)| message.change()).collect()
    }

    #[test]
    fn only_what_waits_for_the_last_record_is_removed() {
        let mut all = Transmits::default();
        push(&mut all, ONE);
        push(&mut all, OTHER);
        all.precede(ONE, all.next());
        push(&mut all, ONE);
        push(&mut all, OTHER);
        all.purge(ONE);
        assert_eq!(left(&mut all), [ONE, OTHER, OTHER]);
    }

    #[test]
    fn a_later_record_does_not_take_back_what_an_earlier_one_permits() {
        let mut all = Transmits::default();
        all.precede(ONE, all.next());
        push(&mut all, ONE);
        all.precede(ONE, all.next());
        push(&mut all, ONE);
        all.purge(ONE);
        assert_eq!(left(&mut all), [ONE]);
        // Once all have left, nothing is kept of the change.
        assert!(all.recorded.is_empty());
    }
}
