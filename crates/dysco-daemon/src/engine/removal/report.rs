//! What becomes of a removal, in an operator's words.

use std::time::Duration;

use super::{Running, Task};
use crate::api::{Outcome, RemovalReport};
use crate::protocol::{Progress, Reason};

impl Task {
    /// Nothing was changed, for this reason.
    pub(in crate::engine) fn refused(&self, reason: String) -> RemovalReport {
        self.report(Outcome::Refused, Some(reason), None, None)
    }

    pub(super) fn report(
        &self,
        outcome: Outcome,
        reason: Option<String>,
        switched: Option<Duration>,
        closed: Option<Duration>,
    ) -> RemovalReport {
        RemovalReport {
            session: self.session,
            local: self.local,
            remote: self.remote,
            outcome,
            reason,
            mode: self.way,
            why_mode: self.why.clone(),
            request_to_switch_us: switched.map(|d| d.as_micros() as u64),
            request_to_close_us: closed.map(|d| d.as_micros() as u64),
        }
    }
}

impl Running {
    pub(super) fn end(&self, progress: Progress) -> RemovalReport {
        let because = |reason: Reason| match (&self.reason, &self.cancelled) {
            (Some(better), _) => better.to_string(),
            (None, Some(_)) if reason == Reason::Cancelled => format!(
                "it took longer than {} ms and was taken back",
                self.task.timeout.as_millis()
            ),
            (None, _) => reason.to_string(),
        };
        match progress {
            Progress::RolledBack(reason) => {
                self.task
                    .report(Outcome::RolledBack, Some(because(reason)), None, None)
            }
            Progress::Refused(reason) => {
                self.task
                    .report(Outcome::Refused, Some(because(reason)), None, None)
            }
            _ => self.task.report(
                Outcome::Removed,
                None,
                self.switched,
                Some(self.begun.elapsed()),
            ),
        }
    }
}

pub(super) fn kind_of(progress: &Progress) -> &'static str {
    match progress {
        Progress::RolledBack(_) => "rolled_back",
        Progress::Refused(_) => "refused",
        _ => "removed",
    }
}

pub(super) fn words(progress: &Progress) -> String {
    match progress {
        Progress::RolledBack(reason) => format!("rolled back: {reason}"),
        Progress::Refused(reason) => format!("refused: {reason}"),
        _ => "the middlebox has left".to_owned(),
    }
}
