//! Facts of an anchor about a session that may take another path.

use std::time::Duration;

use dysco_common::Session;
use dysco_common::view::{ChainState, Change, View};
use dysco_proto::plan::CLOCK_SLACK;
use dysco_proto::{Facts, Reason, Subsession};

use crate::engine::{clock, measure};

/// Returns the time since a session began.
fn age(s: &Session) -> Duration {
    clock::boot_time().saturating_sub(Duration::from_nanos(s.created_ns))
}

/// Removes the clocks of facts that may be too old to be compared. The programs keep neither clock
/// of a relay, and not the one that arrives by a new path. A clock advances by at most one tick in
/// a millisecond (RFC 7323, 5.4).
fn without_old_clocks(facts: Facts, s: &Session, age: Duration) -> Facts {
    let is_old = age > Duration::from_millis(u64::from(CLOCK_SLACK));
    let keeps_own = !s.view().is_relayed();
    Facts {
        tsval_out: if is_old && !keeps_own {
            0
        } else {
            facts.tsval_out
        },
        tsval_in: if is_old { 0 } else { facts.tsval_in },
        ..facts
    }
}

/// Returns the facts of a session that may take another path, in the wire's numbers.
pub(super) fn anchor_facts(s: &Session, session: &Subsession) -> Result<Facts, Reason> {
    match s.view() {
        View::NewPath(route) | View::Changing(Change::Switching(route)) if route.bypassed => {
            let mut facts = measure::known(&s.on_wire())?;
            // Its two openings differ by what the middlebox has added since. Its name, which only
            // the two ends know, shows that they are of one session.
            (facts.local.isn, facts.remote.isn) = (0, 0);
            Ok(facts)
        }
        View::NewPath(route) | View::Changing(Change::Switching(route)) if route.is_open() => {
            measure::known(s).map(|facts| without_old_clocks(facts, s, age(s)))
        }
        View::Relayed(_) => measure::known(s).map(|facts| without_old_clocks(facts, s, age(s))),
        View::NewPath(route) if route.chain == ChainState::Opening => Err(Reason::NotSeen),
        _ => measure::facts(s, session),
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;

    #[test]
    fn a_clock_that_is_not_kept_is_compared_for_a_while() {
        let facts = Facts {
            tsval_out: 7,
            tsval_in: 9,
            ..Facts::default()
        };
        let clocks = |state: State, minutes: u64| {
            let s = Session {
                state: state as u32,
                ..Session::default()
            };
            let age = Duration::from_secs(60 * minutes);
            let facts = without_old_clocks(facts, &s, age);
            (facts.tsval_out, facts.tsval_in)
        };
        for state in [State::Relay, State::NewPath] {
            assert_eq!(clocks(state, 17), (7, 9));
        }
        assert_eq!(clocks(State::Relay, 18), (0, 0));
        assert_eq!(clocks(State::NewPath, 18), (7, 0));
    }
}
