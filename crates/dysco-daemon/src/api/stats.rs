//! Bad input on the local API, counted. Of the process: it has one API.

use std::collections::BTreeMap;
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

/// Adds the counters to a listing, by name.
pub fn list_counters(listing: &mut BTreeMap<String, u64>) {
    let counters = [
        ("api_requests_malformed", &MALFORMED),
        ("api_requests_not_allowed", &NOT_ALLOWED),
        ("api_clients_turned_away", &TURNED_AWAY),
    ];
    let values = counters.map(|(name, n)| (name.to_owned(), n.load(Ordering::Relaxed)));
    listing.extend(values);
}
