//! Messages of the local API about removing a middlebox from sessions.

use std::net::SocketAddr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::change_rate::ChangeRate;
use super::filter::Filter;
use super::host::HostName;
use super::mode::Mode;
use super::name::{SessionId, SessionName};
use super::process::ProcessName;

/// A request to remove a middlebox from sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// Host of the middlebox.
    pub host: HostName,
    /// Names of sessions to change.
    #[serde(default)]
    pub sessions: Vec<SessionName>,
    /// True for every session that the middlebox can leave.
    #[serde(default)]
    pub all: bool,
    /// Restriction of the selected sessions to those that match.
    #[serde(default)]
    pub filter: Filter,
    /// True if the request only reports what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// Mode of removal; the configured mode if absent.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// Time limit for each change; the configured limit if absent.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Restriction to the sessions of this proxy. If no shim reports about the proxy, its sockets
    /// are watched from outside.
    #[serde(default)]
    pub process: Option<ProcessName>,
    /// The operator's declaration that the selected proxy only forwards bytes, regardless of
    /// observations. Valid only if root makes it.
    #[serde(default)]
    pub transparent: bool,
    /// Maximum number of sessions of this request that begin their change in any second; unlimited
    /// if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ChangeRate>,
}

/// Result of a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The middlebox has left. In a dry run, it could leave.
    Removed,
    /// Nothing was changed.
    Refused,
    /// The removal began and was rolled back.
    RolledBack,
    /// The middlebox ended the session meanwhile with bytes that it had not delivered. Both ends
    /// received a reset.
    Lost,
    /// The removal was unfinished at the time limit, and continues.
    Pending,
    /// The session has taken the new path, and nothing confirms that the path carries it: the
    /// data sent there is not acknowledged.
    Unconfirmed,
}

/// The result of one session's removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// The session.
    pub session: SessionId,
    /// The end that opened the session, if known.
    pub local: SocketAddr,
    /// The end that the session was opened to.
    pub remote: SocketAddr,
    /// Result of the removal.
    pub outcome: Outcome,
    /// The decisive reason, unless the middlebox was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cause>,
    /// All reasons against the removal, the decisive one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Cause>,
    /// True if the request or one of its steps timed out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Mode of removal, if it was already chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Reason for this mode, if this host chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_mode: Option<String>,
    /// Time from the acceptance of the request to the beginning of the change, in microseconds.
    /// Absent if no change began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_to_begin_us: Option<u64>,
    /// Time from the request to data on the new path, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_switch_us: Option<u64>,
    /// Time from the request to the closing of the proxy's sockets, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_to_close_us: Option<u64>,
    /// Id of the change, which all its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_id: Option<String>,
}

/// Summary of all removals of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of sessions that the middlebox has left.
    pub removed: usize,
    /// Number of refused removals, which changed nothing.
    pub refused: usize,
    /// Number of removals that began and were rolled back.
    pub rolled_back: usize,
    /// Number of sessions that ended during their removal.
    #[serde(default)]
    pub lost: usize,
    /// Number of removals that still continue.
    pub pending: usize,
    /// Number of sessions whose new path is not confirmed to carry them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unconfirmed: usize,
    /// Median time from request to switch, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99th percentile of the same time, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// Minimum time that the changes would take at the requested rate, in milliseconds. Only in a
    /// dry run with a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least_ms: Option<u64>,
}

impl Summary {
    /// Returns the summary of the reports.
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

/// Returns the nearest-rank percentile of a sorted list.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
