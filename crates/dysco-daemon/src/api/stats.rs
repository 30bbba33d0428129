//! Counters of bad input on the local API. They are of the process, which has one API.

use std::sync::atomic::{AtomicU64, Ordering};

use dysco_api::FailureCode;

static MALFORMED: AtomicU64 = AtomicU64::new(0);
static NOT_ALLOWED: AtomicU64 = AtomicU64::new(0);
static TURNED_AWAY: AtomicU64 = AtomicU64::new(0);

/// Counts a failure that never reached the engine.
pub(super) fn count(code: FailureCode) {
    let counter = match code {
        FailureCode::BadRequest => &MALFORMED,
        FailureCode::NotAllowed => &NOT_ALLOWED,
        FailureCode::Busy => &TURNED_AWAY,
        FailureCode::NotFound
        | FailureCode::Refused
        | FailureCode::TimedOut
        | FailureCode::Internal => return,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counts of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApiCounts {
    /// Requests that could not be parsed.
    pub malformed: u64,
    /// Requests that their callers may not make.
    pub not_allowed: u64,
    /// Clients for which there was no room.
    pub turned_away: u64,
}

/// Returns the counts so far.
pub fn counts() -> ApiCounts {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ApiCounts {
        malformed: read(&MALFORMED),
        not_allowed: read(&NOT_ALLOWED),
        turned_away: read(&TURNED_AWAY),
    }
}
