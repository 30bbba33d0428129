//! Change of the chain of one session, as requested.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dysco_api::{ChainOutcome, ChainReport, Failure, FailureCode, SessionId};
use dysco_explain::Cause;
use dysco_proto::asks::{AskId, ChainWish};
use dysco_proto::{KindName, Order};

/// Origin of a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// Request on this host, by its batch.
    Batch(u64),
    /// Removal on this host, by its batch.
    Removal(u64),
    /// Request of another host.
    Ask(AskId),
}

/// Requested change of one session.
pub(super) struct Task {
    pub whose: Whose,
    pub session: SessionId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub order: Order,
    /// Wish from which the order was made.
    pub wish: ChainWish,
    /// True if the hosts of its chain know the session as its ends do.
    pub whole: bool,
    /// Kinds of state that move.
    pub kinds: Vec<KindName>,
    /// True if only the plan is reported.
    pub dry: bool,
    pub asked: Instant,
    /// Time at which its first change began.
    pub begun: Option<Instant>,
}

impl Task {
    pub(super) fn report(&self, outcome: ChainOutcome, reason: Option<Cause>) -> ChainReport {
        ChainReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            timed_out: false,
            before: self.order.before.clone(),
            after: self.order.after.clone(),
            request_to_switch_us: None,
            request_to_end_us: None,
            change_id: None,
        }
    }
}

/// Change in progress.
pub(super) struct Running {
    pub task: Task,
    pub switched: Option<Duration>,
}

pub(super) fn failure(code: FailureCode, why: String, hint: &str) -> Failure {
    Failure {
        code,
        what: "give sessions another chain".into(),
        why,
        hint: hint.into(),
    }
}
