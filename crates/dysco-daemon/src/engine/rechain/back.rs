//! Back to the path before, after the new one has carried the session. The firewalls on
//! it have seen nothing since: to a strict one all that comes next acknowledges what was
//! never sent, in both directions. So both ends show there how far they have sent, as
//! they do on a new path.

use std::time::{Duration, Instant};

use dysco_common::session::part;
use dysco_common::{State, seq};

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

impl Engine {
    /// What is to be shown if the session goes back to its first path, whose firewalls
    /// are a chain's.
    pub(super) fn way_back(&self, first: u32, second: u32) -> Option<Back> {
        let s = self.agent.session(first);
        let was_left = self.agent.session(second).two.part == part::CURRENT;
        let is_chain = s.state == State::NewPath as u32 && s.two.chained > 1;
        (was_left && is_chain).then(|| Back {
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
        let is_taken = s.state == State::NewPath as u32 && s.two.part == part::CURRENT;
        if is_taken && s.created_ns == back.created_ns {
            let (left_at, bytes) = back.left_at;
            let next = shown_next(&s);
            let seq = match s.bytes_out.saturating_sub(bytes) < IN_SIGHT {
                true => seq::max(left_at, next),
                false => next,
            };
            self.prime(back.slot, seq);
        }
    }
}
