//! Entries of sessions that pass this host, by one path or by two.

use dysco_common::session::part;
use dysco_common::transit::{Keep, Stays};
use dysco_common::view::{ChainState, Change, View};
use dysco_common::{FlowKey, State};

use crate::Agent;

impl Agent {
    /// Leaves a session that passes this host by two paths only one, if `keep` decides which.
    /// `keys` are the session's names on either side. The entries of the other path become
    /// tombstones. Returns their slots.
    pub fn keep_one_path(&self, keys: &[FlowKey; 2], keep: Keep) -> Vec<u32> {
        let passing = |slot: &u32| {
            let view = self.session(*slot).view();
            matches!(view, View::Changing(Change::Passing(_)))
        };
        let found = keys.iter().filter_map(|key| self.find_called(key));
        let mut left_out = Vec::new();
        for slot in found.filter(passing).collect::<Vec<u32>>() {
            let s = self.session(slot);
            let Some(other) = s.other_path() else {
                // The opening failed before the entry had another.
                self.memory().set_state(slot, State::NewPath);
                continue;
            };
            let [here, there] = [s.laid_by, self.session(other).laid_by];
            let later_stays = match keep.of(here.min(there), here.max(there)) {
                Stays::Both => continue,
                Stays::Later => true,
                Stays::Earlier => false,
            };
            let (kept, out) = if (here > there) == later_stays {
                (slot, other)
            } else {
                (other, slot)
            };
            // The session's five-tuple leads to the entry that is taken.
            if kept != slot
                && let Err(error) = self.lead_to(kept)
            {
                tracing::error!(session = ?s.key, %error, "a session that passes here keeps two paths");
                continue;
            }
            let memory = self.memory();
            memory.share_life(kept, out);
            // First, so that a successor knows both entries if this process dies here.
            memory.hide(out);
            self.tombstone(out);
            memory.set_part(kept, part::CURRENT, None);
            memory.set_state(kept, State::NewPath);
            left_out.push(out);
        }
        left_out
    }

    /// Returns the entries of a session that passes here, of each of its paths and on either
    /// side.
    pub fn passing_entries(&self, keys: &[FlowKey; 2]) -> Vec<u32> {
        let found = keys.iter().filter_map(|key| self.find_called(key));
        let both = found.flat_map(|slot| [Some(slot), self.session(slot).other_path()]);
        let passes = |slot: &u32| {
            let (View::NewPath(route) | View::Changing(Change::Passing(route))) =
                self.session(*slot).view()
            else {
                return false;
            };
            route.chain != ChainState::None
        };
        let mut all: Vec<u32> = both.flatten().collect();
        let joined: Vec<_> = all
            .iter()
            .map(|slot| self.session(*slot).joined_to())
            .collect();
        all.extend(joined.into_iter().flatten());
        all.retain(passes);
        all.sort_unstable();
        all.dedup();
        all
    }
}
