//! What a former process left: records of changes, and sessions in the data
//! plane that none of them names.

use dysco_common::State;

use super::Engine;

impl Engine {
    /// Takes up the changes of a former process, before anything else.
    pub(super) fn adopt(&mut self) {
        let now = self.now();
        for (path, record) in self.state.records() {
            match self.machine.restore(now, &record) {
                Ok(change) => tracing::info!(%change, "goes on with a change of a former process"),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a record is discarded");
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        let under_way: Vec<_> = self
            .machine
            .changes()
            .map(|c| (c.change, c.subsession))
            .collect();
        for (change, subsession) in under_way {
            let slot = self
                .find(&subsession)
                .map(|slot| (slot, self.agent.session(slot).created_ns));
            self.held.entry(change).or_default().slot = slot;
        }
        self.lift_clamps();
        self.pump();
    }

    /// A lock that was never recorded ends with its process; so does its clamp.
    fn lift_clamps(&self) {
        let held: Vec<u32> = self
            .held
            .values()
            .filter_map(|h| h.slot)
            .map(|(slot, _)| slot)
            .collect();
        for (slot, s) in self.agent.sessions() {
            if s.state == State::Tracked as u32 && s.clamp != 0 && !held.contains(&slot) {
                self.agent.clamp(slot, 0);
            }
        }
    }
}
