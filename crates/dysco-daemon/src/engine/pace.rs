//! Data that a session sends while a new path opens.
//!
//! Firewalls on the new path see none of that data. They are shown its numbers when the path is
//! taken, and let a number advance by the widest window at most (Linux, `tcp_in_window`). A session
//! that sends more within one round trip of the new path would be refused there.

use std::time::{Duration, Instant};

use dysco_common::{Session, seq};
use dysco_explain::Cause;

/// Numbers of a session at some time.
pub(super) struct Pace {
    since: Instant,
    /// Highest number that the local end had sent.
    sent: u32,
    /// Highest number that the local end had acknowledged: the other end's data, by any path.
    acked: u32,
}

impl Pace {
    /// Begins to measure. `s` has the session's numbers of this moment.
    pub(super) fn new(s: &Session) -> Pace {
        Pace {
            since: Instant::now(),
            sent: s.snd_max,
            acked: s.snd_ack,
        }
    }

    /// Returns the time since the measurement began.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns true if either end sends more in one round trip than three quarters of the widest
    /// window. `now` has the numbers of this moment, and `wire` the window scales of the new path.
    pub(crate) fn is_too_fast(&self, now: &Session, wire: &Session, round_trip: Duration) -> bool {
        let trips = self.elapsed().as_secs_f64() / round_trip.as_secs_f64().max(1e-9);
        outruns(advance(now.snd_max, self.sent), wire.remote_wscale(), trips)
            || outruns(advance(now.snd_ack, self.acked), wire.local_wscale(), trips)
    }
}

/// Returns three quarters of the widest window of a scale: a daemon that has to wait for a processor
/// answers later than the packets by which the round trip is measured.
fn accepted(wscale: u8) -> u32 {
    (u32::from(u16::MAX) << wscale.min(14)) / 4 * 3
}

/// Returns how far a number has advanced. Another processor may have stored a lower number since;
/// the measurement takes less time than 2 GiB.
fn advance(now: u32, then: u32) -> u32 {
    match seq::before(now, then) {
        true => 0,
        false => now.wrapping_sub(then),
    }
}

/// Returns true if so many bytes in so many round trips outrun windows of this scale.
fn outruns(bytes: u32, wscale: u8, trips: f64) -> bool {
    f64::from(bytes) > f64::from(accepted(wscale)) * trips
}

/// Returns why a session that is too fast for a new path does not take it.
pub(super) fn too_fast(way: &str) -> Cause {
    let why = format!(
        "a SYN {way} was answered, but in one round trip the session sends so much that a firewall may refuse what follows: it lets sequence numbers advance by one window"
    );
    Cause::new(why).hint("ask again when it sends less")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_a_window_in_a_round_trip_is_not_too_fast() {
        assert_eq!(
            [0, 7, 14, 15].map(accepted),
            [49_149, 6_291_360, 805_294_080, 805_294_080]
        );
        for wscale in [0, 7, 14] {
            let bytes = accepted(wscale);
            assert!(!outruns(bytes, wscale, 1.0));
            assert!(outruns(bytes + 1, wscale, 1.0));
            assert!(!outruns(bytes + 1, wscale, 2.0));
        }
    }

    #[test]
    fn both_directions_count_and_numbers_wrap() {
        let then = Session {
            snd_max: u32::MAX - 5,
            snd_ack: u32::MAX - 9,
            ..Session::default()
        };
        let pace = Pace::new(&then);
        // One round trip takes far longer than this test.
        let round_trip = Duration::from_secs(3600);
        let too_fast = |now: &Session| pace.is_too_fast(now, now, round_trip);
        assert!(!too_fast(&then));
        let ahead = |by: u32| [then.snd_max, then.snd_ack].map(|n| n.wrapping_add(by));
        let [snd_max, snd_ack] = ahead(50_000);
        assert!(too_fast(&Session { snd_max, ..then }));
        assert!(too_fast(&Session { snd_ack, ..then }));
        let [snd_max, snd_ack] = ahead(1u32.wrapping_neg());
        let back = Session {
            snd_max,
            snd_ack,
            ..then
        };
        assert!(!too_fast(&back));
    }
}
