//! Time for which an entry is still needed, as far as the entry shows.

use std::time::Duration;

use dysco_common::Session;
use dysco_common::view::{ChainState, Collected, View};

/// Two MSL, as Linux takes it for TIME_WAIT (TCP_TIMEWAIT_LEN).
pub(super) const TWO_MSL: Duration = Duration::from_secs(60);
/// Time for which an unchanged session needs its entry for last packets.
pub(super) const UNCHANGED: Duration = Duration::from_secs(2);
/// Time for a SYN that was never answered, or the answer to it: longer than Linux retransmits one.
const UNANSWERED: Duration = Duration::from_secs(135);
/// The same time in a crowded table, which somebody may be filling with SYNs.
const UNANSWERED_CROWDED: Duration = Duration::from_secs(5);

/// Returns true if this is an entry of one path of a session whose other path's entry is gone. The
/// other entry may have been collected while no daemon could take back a change, and be another
/// session's since. A relay continues on a chain's path, and has no other.
pub(super) fn is_orphan(s: &Session, other: Option<&Session>) -> bool {
    if s.is_current() || s.view().is_relayed() {
        return false;
    }
    other.is_none_or(|other| other.view().is_unused() || other.key != s.key)
}

/// Returns true if a session's SYN was answered, and that answer was not. A listener that sends
/// cookies has no socket for the session, and no end of the session is ever seen.
fn is_half_open(s: &Session) -> bool {
    match s.life.opened_here {
        0 => s.rcv_ack == s.local.isn,
        _ => s.snd_ack == s.remote.isn,
    }
}

/// Returns how long an entry is still needed; `None` while its session lives.
pub(super) fn retention(s: &Session, boot: Duration, crowded: bool) -> Option<Duration> {
    let age = boot.saturating_sub(Duration::from_nanos(s.created_ns));
    let patience = match crowded {
        true => UNANSWERED_CROWDED,
        false => UNANSWERED,
    };
    let ended = s.has_ended();
    let view = s.view();
    match view.meaning().collected {
        Collected::SoonAfterEnd if ended => Some(UNCHANGED),
        Collected::SoonAfterEnd => {
            let over = view == View::Tracked && is_half_open(s) && age > patience;
            over.then_some(Duration::ZERO)
        }
        Collected::Tombstone => Some(TWO_MSL),
        // The session's other entry ends this one; a relay that continues on a chain has no other.
        _ if !s.is_current() && !view.is_relayed() => None,
        Collected::AfterEnd | Collected::OnceSilent => {
            let unanswered = s.chain_state() == ChainState::Opening && age > UNANSWERED;
            match (ended, unanswered) {
                (true, _) => Some(TWO_MSL),
                (false, true) => Some(Duration::ZERO),
                (false, false) => None,
            }
        }
        Collected::Unanswered => (age > patience).then_some(Duration::ZERO),
        Collected::Unused => None,
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;
    use dysco_common::session::part;

    use super::*;

    #[test]
    fn a_path_outlives_its_session_by_nothing() {
        let mut s = Session::default();
        (s.key.local_port, s.two.part) = (1, part::NEXT);
        let mut other = Session::default();
        (other.state, other.key) = (State::Passing as u32, s.key);
        assert!(!is_orphan(&s, Some(&other)));
        assert!(is_orphan(&s, None));
        for state in [State::Closed, State::Free] {
            other.state = state as u32;
            assert!(is_orphan(&s, Some(&other)));
        }
        // Its slot was given to another session.
        other.state = State::Tracked as u32;
        other.key.local_port = 2;
        assert!(is_orphan(&s, Some(&other)));
    }

    #[test]
    fn a_relay_that_goes_on_by_a_chain_has_no_other_path() {
        let mut s = Session::default();
        (s.state, s.two.part) = (State::Relay as u32, part::BEFORE);
        assert!(!is_orphan(&s, None));
        // Silence alone does not end it.
        assert_eq!(retention(&s, Duration::from_secs(3600), false), None);
        // Its own FINs end it: where both sides have a chain there is no other relay.
        (s.life.fin_in, s.life.fin_out) = (1, 1);
        assert_eq!(
            retention(&s, Duration::from_secs(3600), false),
            Some(TWO_MSL)
        );
    }

    #[test]
    fn an_answer_that_nobody_acknowledges_is_forgotten() {
        let mut s = Session::default();
        (s.state, s.created_ns) = (State::Tracked as u32, 1_000_000_000);
        (s.local.isn, s.remote.isn) = (700, 900);
        (s.rcv_ack, s.snd_ack) = (700, 901);
        let after = |s: &Session, age, crowded| {
            let age = age + Duration::from_millis(1);
            retention(s, Duration::from_secs(1) + age, crowded)
        };
        // The end that has answered, and a host that passes the answer on.
        for opened in [0, 1] {
            s.life.opened_here = opened;
            assert_eq!(after(&s, UNANSWERED, false), Some(Duration::ZERO));
            assert_eq!(after(&s, UNANSWERED - Duration::from_secs(1), false), None);
            assert_eq!(after(&s, UNANSWERED_CROWDED, true), Some(Duration::ZERO));
            (s.rcv_ack, s.snd_ack) = (701, 901);
            assert_eq!(after(&s, UNANSWERED, true), None);
            (s.rcv_ack, s.snd_ack) = (701, 900);
        }
        s.life.reset = 1;
        assert_eq!(after(&s, Duration::ZERO, false), Some(UNCHANGED));
    }
}
