//! Paths that a session gives up: those before, and those that were not taken.

use dysco_common::session::part;
use dysco_common::{FlowKey, State};

use crate::Agent;
use crate::memory::wait_for_programs;

impl Agent {
    /// Gives up the path before, whose late packets are of no use any longer, or this path if it
    /// was not taken. The entry becomes a tombstone, and its slot is returned. No socket knows
    /// that path's five-tuple: the stack would answer late packets with a reset.
    pub fn drop_path_before(&self, second_entry: u32) -> Option<u32> {
        let s = self.session(second_entry);
        let (part::CURRENT, Some(first)) = (s.two.part, s.other_path()) else {
            return self.drop_next_path(second_entry);
        };
        self.memory().share_life(second_entry, first);
        self.memory().set_state(second_entry, State::NewPath);
        self.memory().set_part(second_entry, part::CURRENT, None);
        self.rejoin(second_entry);
        if self.session(first).view().is_relayed() {
            // The entry relays packets that arrive by the other.
            self.memory().set_part(first, part::BEFORE, None);
            return None;
        }
        self.tombstone(first);
        Some(first)
    }

    /// Joins the only path on this side of a session, on a host of the chain, to the path of the
    /// other side, where a second one may be about to be taken.
    fn rejoin(&self, slot: u32) {
        let s = self.session(slot);
        let Some(known) = s.joined_to() else {
            return;
        };
        // The two sides may have different five-tuples for the session, if this host has a NAT.
        let mut opposite = FlowKey::default();
        s.name().mirror_to(&mut opposite);
        // The joined entry may have been given up since.
        let lives = |slot: &u32| !self.session(*slot).view().is_over();
        let other = self.find_called(&opposite).or(Some(known).filter(lives));
        let Some(other) = other else {
            return;
        };
        let memory = self.memory();
        memory.set_joined(slot, other);
        let before = self.session(other).other_path();
        for side in [Some(other), before].into_iter().flatten() {
            memory.set_joined(side, slot);
        }
    }

    /// Gives up a path that is not taken, as [`Agent::drop_path_before`] does.
    pub fn drop_next_path(&self, second_entry: u32) -> Option<u32> {
        let s = self.session(second_entry);
        if s.two.part != part::NEXT {
            return None;
        }
        // The path was taken and taken back, and the other side is joined to it.
        let stays = s.other_path().filter(|_| s.joined_to().is_some());
        if let Some(first) = stays {
            self.rejoin(first);
        }
        self.steer_no_more(&s);
        self.tombstone(second_entry);
        // A packet that arrived on the path at this moment may have taken it (`dysco_follow`).
        wait_for_programs();
        if self.session(second_entry).is_current() {
            if let Err(error) = self.switch_back(second_entry) {
                tracing::error!(session = ?s.key, %error, "a session has taken a path that is given up");
            }
            self.tombstone(second_entry);
        }
        // The other end's last packets may have taken the path after this end had left it.
        if let Some(first) = s.other_path()
            && let current = self.session(first)
            && (current.key, current.created_ns) == (s.key, s.created_ns)
        {
            self.memory().share_life(first, second_entry);
        }
        Some(second_entry)
    }
}
