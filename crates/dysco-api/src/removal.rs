//! A middlebox is taken out of sessions.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::host::HostName;
use super::mode::Mode;
use super::name::{SessionId, SessionName};
use super::process::ProcessName;

/// Which middlebox to take out of which sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// The middlebox.
    pub host: HostName,
    /// These sessions.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// Every session that can lose it.
    #[serde(default)]
    pub all: bool,
    /// Of these, those that match.
    #[serde(default)]
    pub filter: Filter,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// By which way; the configured one when absent.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// How long each change may take; the configured time when absent.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Only sessions of this proxy; where no shim tells, its sockets are
    /// watched from outside.
    #[serde(default)]
    pub process: Option<ProcessName>,
    /// The operator's word: what is asked about only passes bytes on, whatever
    /// could be seen of it. Counts if root says so.
    #[serde(default)]
    pub transparent: bool,
}

/// How a removal ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The middlebox has left; in a dry run, it could.
    Removed,
    /// Nothing was changed.
    Refused,
    /// It was begun, and taken back.
    RolledBack,
    /// The middlebox ended the session meanwhile, with bytes that it had not delivered: both
    /// ends got a reset.
    Lost,
    /// It was not finished when the time ran out, and goes on.
    Pending,
    /// The session has taken the new path, and nothing shows that it is carried there: what
    /// was sent on it is not acknowledged.
    Unconfirmed,
}

/// The end of one session's removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// The session.
    pub session: SessionId,
    /// The side that opened it, where known.
    pub local: SocketAddr,
    /// The side that it goes to.
    pub remote: SocketAddr,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it was removed: of all reasons the one that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All that stood in the way, that one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The time ran out that the request had, or one of its steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// By which way, where it came so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Why by this one, where that was this host's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_mode: Option<String>,
    /// From the request to the new path carrying data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_switch_us: Option<u64>,
    /// From the request to the proxy's sockets being closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_close_us: Option<u64>,
    /// The id of the change that did it, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}

/// All removals of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// So many each.
    pub removed: usize,
    /// Nothing was changed.
    pub refused: usize,
    /// Begun, and taken back.
    pub rolled_back: usize,
    /// The session ended with it.
    #[serde(default)]
    pub lost: usize,
    /// Still going on.
    pub pending: usize,
    /// Not shown to be carried by their new path.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unconfirmed: usize,
    /// Median of request to switch, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99th percentile of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
}

impl Summary {
    /// The sum of the reports.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a RemovalReport>) -> Summary {
        let mut summary = Summary::default();
        let mut switched = Vec::new();
        for report in reports {
            match report.outcome {
                Outcome::Removed => summary.removed += 1,
                Outcome::Refused => summary.refused += 1,
                Outcome::RolledBack => summary.rolled_back += 1,
                Outcome::Lost => summary.lost += 1,
                Outcome::Pending => summary.pending += 1,
                Outcome::Unconfirmed => summary.unconfirmed += 1,
            }
            switched.extend(report.request_to_switch_us);
        }
        switched.sort_unstable();
        summary.p50_us = percentile(&switched, 50);
        summary.p99_us = percentile(&switched, 99);
        summary
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The nearest-rank percentile of a sorted list.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
