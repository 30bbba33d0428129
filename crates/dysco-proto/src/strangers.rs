//! Messages about changes that are not under way here, because they have ended or were never known.
//! The outcomes of the last changes are kept for some time. A repeated message therefore gets the
//! same answer and begins no new change.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::context::Time;
use super::left::given_up;
use super::message::Message;
use super::names::{ChangeId, HostId};
use super::reason::Reason;
use super::report::Role;

/// Time for which an outcome is kept, and maximum number of outcomes.
const KEEP: (Duration, usize) = (Duration::from_secs(240), 65_536);

#[derive(Clone, Hash, Debug)]
pub(super) struct Outcome {
    pub role: Role,
    /// Hosts that took part in the change.
    pub peers: Vec<HostId>,
    /// True if only the asker has received a message about the change from this host (see `Part`).
    pub unspoken: bool,
    pub result: Result<(), Reason>,
}

impl Outcome {
    /// Returns true if this peer took part in the change.
    pub(crate) fn concerns(&self, from: &[HostId]) -> bool {
        self.peers.iter().any(|p| from.contains(p))
    }
}

/// Ended changes.
#[derive(Clone, Hash, Default)]
pub(super) struct Outcomes {
    by_change: BTreeMap<ChangeId, Outcome>,
    order: VecDeque<(Time, ChangeId)>,
}

impl Outcomes {
    pub(crate) fn insert(&mut self, now: Time, change: ChangeId, outcome: Outcome) {
        if self.by_change.insert(change, outcome).is_none() {
            self.order.push_back((now, change));
        }
        self.collect(now);
    }

    /// Removes outcomes that are too old or too many.
    pub(crate) fn collect(&mut self, now: Time) {
        while let Some(&(at, change)) = self.order.front() {
            if at + KEEP.0 > now && self.order.len() <= KEEP.1 {
                break;
            }
            self.order.pop_front();
            self.by_change.remove(&change);
        }
    }

    pub(crate) fn get(&self, change: &ChangeId) -> Option<&Outcome> {
        self.by_change.get(change)
    }
}

/// Returns the answer to a message of a change that ended here.
pub(super) fn ended(change: ChangeId, outcome: &Outcome, message: &Message) -> Option<Message> {
    let result = outcome.result.clone();
    match (message, result) {
        (Message::Ask { .. }, result) => Some(Message::Asked { change, result }),
        (Message::Extend { .. }, Err(reason)) => Some(Message::Extended {
            change,
            result: Err(reason),
        }),
        // An anchor in the chain.
        (Message::AskDelta { .. }, Err(reason)) => Some(Message::TellDelta {
            change,
            result: Err(reason),
        }),
        (Message::Settled { .. }, Ok(())) => Some(Message::Done { change }),
        (Message::Settled { .. }, Err(reason)) => Some(Message::Cancel { change, reason }),
        (Message::Dismiss { .. }, _) => Some(Message::Dismissed { change }),
        (Message::Lead { .. } | Message::Open { .. } | Message::Cut { .. }, Err(reason)) => {
            Some(Message::Extended {
                change,
                result: Err(reason),
            })
        }
        (Message::Abandoned { .. }, _) => Some(Message::Release { change }),
        (Message::Release { .. }, _) => Some(Message::Released { change }),
        (
            Message::Leave { .. } | Message::Introduce { .. } | Message::RequestLock { .. },
            Err(reason),
        ) => Some(Message::NackLock { change, reason }),
        (Message::SetUp { .. }, Err(reason)) => Some(Message::SetUpNack { change, reason }),
        (Message::Introduced { .. }, Err(reason)) => Some(Message::Cancel { change, reason }),
        (Message::Cancel { .. } | Message::Back { .. }, Err(_)) => {
            Some(Message::CancelAck { change })
        }
        // The left anchor has restarted, and has not been notified.
        (Message::Switched { .. }, Err(Reason::MiddleboxDied(bytes)))
            if outcome.role == Role::Right =>
        {
            Some(Message::Broken { change, bytes })
        }
        (Message::Lost { .. }, Err(_)) => Some(Message::CancelAck { change }),
        (Message::Broken { .. }, Err(reason)) => Some(given_up(change, reason)),
        // Only the left anchor decides.
        (Message::Muted { .. }, _) if outcome.role != Role::Left => None,
        (Message::Done { .. }, _) => Some(Message::DoneAck { change }),
        (Message::Drained { .. } | Message::Query { .. } | Message::Muted { .. }, Ok(())) => {
            Some(Message::Done { change })
        }
        (Message::Drained { .. } | Message::Query { .. } | Message::Muted { .. }, Err(reason)) => {
            Some(given_up(change, reason))
        }
        _ => None,
    }
}

/// Returns the answer to a message of a change that was never known, or whose outcome was removed.
/// A left anchor writes its record before it cuts, and keeps it until both others are done. An
/// unknown change was therefore never cut, or its cut was taken back.
pub(super) fn unknown(message: &Message) -> Option<Message> {
    let change = message.change();
    let reason = Reason::UnknownChange;
    match message {
        Message::Introduce { .. } | Message::RequestLock { .. } => {
            Some(Message::NackLock { change, reason })
        }
        Message::SetUp { locked: true, .. } => Some(Message::SetUpNack { change, reason }),
        Message::Cancel { .. } | Message::Back { .. } | Message::Lost { .. } => {
            Some(Message::CancelAck { change })
        }
        Message::Done { .. } => Some(Message::DoneAck { change }),
        Message::Open { .. } | Message::Cut { .. } => Some(Message::Extended {
            change,
            result: Err(reason),
        }),
        Message::Abandoned { .. } => Some(Message::Release { change }),
        Message::Release { .. } => Some(Message::Released { change }),
        // A middle without a record of the change has made no plan.
        Message::Introduced { .. } => Some(Message::Cancel { change, reason }),
        // In a change of a chain, a left anchor notifies the right one before it forgets.
        Message::Query { .. } | Message::Settled { .. } => Some(Message::Cancel { change, reason }),
        // A left anchor forgets a completed change only after the right anchor has completed it.
        Message::Muted { .. } | Message::Broken { .. } => Some(Message::Cancel { change, reason }),
        // The right anchor drains only after this host's cut. It sends no `Drained` while the cut
        // may be taken back.
        Message::Drained { .. } => Some(Message::Done { change }),
        _ => None,
    }
}
