//! Back to the path before, after the new one has carried the session. The firewalls on
//! it have seen nothing since: to a strict one all that comes next acknowledges what was
//! never sent, in both directions. So both ends show there how far they have sent, as
//! they do on a new path.

use std::time::{Duration, Instant};

use dysco_common::session::part;
use dysco_common::{Session, State, seq};

use super::open::shown_next;
use crate::engine::Engine;

/// For so long. Each round trip may take the numbers further by the widest window, and
/// the other anchor may go back later.
const SHOW: Duration = Duration::from_secs(3);

/// A path that a session went back to.
pub(super) struct Back {
    slot: u32,
    created_ns: u64,
    since: Instant,
    /// How far this end had sent when it was left: the number, and bytes in all.
    left_at: (u32, u64),
}

/// Numbers tell no more than twice as many bytes apart.
const IN_SIGHT: u64 = 1 << 30;

/// Does no stack at the other end of an entry's path hear what is for firewalls? One that
/// relays beside a path hears it.
fn is_shown(s: &Session) -> bool {
    s.state == State::NewPath as u32 || s.state == State::Tracked as u32
}

impl Engine {
    /// What is to be shown if the session goes back to its first path. There may be
    /// firewalls on a direct one as well, which nobody has told anybody of.
    pub(super) fn way_back(&self, first: u32, second: u32) -> Option<Back> {
        let s = self.agent.session(first);
        let was_left = self.agent.session(second).two.part == part::CURRENT;
        (was_left && is_shown(&s)).then(|| Back {
            slot: first,
            created_ns: s.created_ns,
            since: Instant::now(),
            left_at: (s.snd_max, s.bytes_out),
        })
    }

    pub(super) fn show_way_back(&mut self, back: Option<Back>) {
        if let Some(back) = back {
            self.show_again(&back);
            self.rechain.back.push(back);
        }
    }

    /// Often, as long as there are any.
    pub(super) fn show_ways_back(&mut self) {
        self.rechain.back.retain(|b| b.since.elapsed() < SHOW);
        for back in &self.rechain.back {
            self.show_again(back);
        }
    }

    fn show_again(&self, back: &Back) {
        let s = self.agent.session(back.slot);
        let is_taken = is_shown(&s) && s.two.part == part::CURRENT;
        if is_taken && s.created_ns == back.created_ns {
            let (left_at, bytes) = back.left_at;
            let next = shown_next(&s);
            let in_sight = s.bytes_out.saturating_sub(bytes) < IN_SIGHT;
            // The firewalls have seen that: it lets the other end's numbers go ahead by the
            // widest window, as that end's does this one's.
            if in_sight {
                self.prime(back.slot, left_at);
            }
            if !in_sight || seq::after(next, left_at) {
                self.prime(back.slot, next);
            }
        }
    }
}
