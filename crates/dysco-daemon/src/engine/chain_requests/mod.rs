//! Requests for other chains of live sessions: of operators, of removals, and of other hosts.

mod asks;
mod choice;
mod fits;
mod request;
mod requesters;
mod task;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dysco_api::ChainReport;
use dysco_proto::asks::{AskId, Asks};
use dysco_proto::{ChangeId, Reason};
use request::Batch;
use requesters::Requesters;
use task::{Running, Task, Whose};
use turn::{Turn, WaitQueue};

use super::paced::Paced;

/// Requests from their acceptance until they are answered.
#[derive(Default)]
pub(super) struct ChainRequests {
    queue: VecDeque<Task>,
    /// Sessions of requests with a rate that wait for their turn.
    paced: Paced<Whose, Turn>,
    wait_queue: WaitQueue<Task>,
    running: HashMap<ChangeId, Running>,
    /// Questions of this host to hosts that opened sessions, and questions of other hosts to it.
    asks: Asks,
    /// Requests that wait for another host's answer.
    asking: HashMap<AskId, Task>,
    batches: HashMap<u64, Batch>,
    next_batch: u64,
    requesters: Requesters,
    /// Ended parts of removals.
    ended: VecDeque<EndedForRemoval>,
}

/// Part of a removal that has ended: a host has left the session's chain, or has not.
pub(super) struct EndedForRemoval {
    /// Batch of the removal.
    pub removal: u64,
    pub report: ChainReport,
    /// Time at which its change began.
    pub begun: Option<Instant>,
    /// Reason if it was not done.
    pub why: Option<Reason>,
}

impl ChainRequests {
    /// Returns true if a request on this host has begun the change.
    pub(crate) fn has_begun(&self, change: ChangeId) -> bool {
        self.running.contains_key(&change)
    }

    /// Returns the number of requests that have not begun.
    pub(super) fn waiting(&self) -> u64 {
        (self.queue.len() + self.wait_queue.len() + self.paced.len()) as u64
    }

    /// Removes and returns the next part of a removal that has ended.
    pub(crate) fn next_ended(&mut self) -> Option<EndedForRemoval> {
        self.ended.pop_front()
    }
}
