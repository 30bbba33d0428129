//! Return to the previous path after the new one has carried the session. The firewalls on the
//! previous path have seen nothing since: to a strict one, the next packets acknowledge data that
//! was never sent, in both directions. Both ends therefore show there how far they have sent, as
//! they do on a new path.

use std::time::{Duration, Instant};

use dysco_common::{Session, View, seq};

use super::open::announced_next;
use crate::engine::{ChainUpdates, Plane};

/// Time for which this is repeated. Each round trip may advance the numbers by the widest window,
/// and the other anchor may return later.
const ANNOUNCE_FOR: Duration = Duration::from_secs(3);

/// Path that a session has returned to.
pub(super) struct Back {
    slot: u32,
    created_ns: u64,
    since: Instant,
    /// State when the path was left: highest number that this end had sent, and its bytes in all.
    left_at: (u32, u64),
}

/// Number of bytes up to which sequence numbers are compared; they distinguish no more than twice
/// as many.
const IN_SIGHT: u64 = 1 << 30;

/// Returns true if no stack at the other end of an entry's path receives packets meant for
/// firewalls. A stack that relays beside a path would receive them.
fn is_for_firewalls(s: &Session) -> bool {
    matches!(s.view(), View::NewPath(_) | View::Tracked)
}

impl Plane {
    /// Returns what has to be shown if the session returns to its first path. A direct path may
    /// have firewalls as well, of which this host has no knowledge.
    pub(super) fn way_back(&self, first: u32, second_path: u32) -> Option<Back> {
        let s = self.agent.session(first);
        let was_left = self.agent.session(second_path).is_current();
        (was_left && is_for_firewalls(&s)).then(|| Back {
            slot: first,
            created_ns: s.created_ns,
            since: Instant::now(),
            left_at: (s.snd_max, s.bytes_out),
        })
    }

    fn announce_again(&self, back: &Back) {
        let s = self.agent.session(back.slot);
        let is_taken = is_for_firewalls(&s) && s.is_current();
        if is_taken && s.created_ns == back.created_ns {
            let (left_at, bytes) = back.left_at;
            let next = announced_next(&s);
            let in_sight = s.bytes_out.saturating_sub(bytes) < IN_SIGHT;
            // The firewalls have seen that number: it lets the other end's numbers advance by the
            // widest window, as that end's packet does for the numbers of this one.
            if in_sight {
                self.prime(back.slot, left_at);
            }
            if !in_sight || seq::after(next, left_at) {
                self.prime(back.slot, next);
            }
        }
    }
}

impl ChainUpdates {
    pub(super) fn announce_way_back(&mut self, plane: &Plane, back: Option<Back>) {
        if let Some(back) = back {
            plane.announce_again(&back);
            self.back.push(back);
        }
    }

    /// Repeats what has to be shown. Runs often, as long as there is any such path.
    pub(super) fn announce_ways_back(&mut self, plane: &Plane) {
        self.back.retain(|b| b.since.elapsed() < ANNOUNCE_FOR);
        for back in &self.back {
            plane.announce_again(back);
        }
    }
}
