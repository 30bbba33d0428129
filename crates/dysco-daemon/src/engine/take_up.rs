//! State of a former process: records of changes, and sessions in the data plane that no record
//! names.

use std::collections::HashSet;

use dysco_common::view::{Change, View};

use super::error::EngineError;
use super::held::Held;
use super::{Engine, ThisHost};

impl Engine {
    /// Takes up the changes of a former process, before anything else.
    pub(super) fn take_up(&mut self) -> Result<(), EngineError> {
        let now = self.core.host.plane.now();
        self.core.host.plane.take_up_sessions();
        let (path, records) = self.core.host.plane.state.records();
        self.core.host.plane.agent.forget_joins();
        self.core.host.plane.agent.repair_parts();
        self.core.host.chain_updates.taking_up = Some(self.core.host.plane.agent.second_paths());
        for record in records {
            // Without its record this host would report to the others that it knows of no change,
            // and they would roll back a session that may have been cut.
            let restored = self.core.machine().restore(now, &record);
            let change = restored.map_err(|source| {
                let path = path.clone();
                EngineError::Record { path, source }
            })?;
            tracing::info!(%change, "goes on with a change of a former process");
        }
        let under_way: Vec<_> = self
            .core
            .machine()
            .changes()
            .map(|c| (c.change, c.subsession, c.other))
            .collect();
        for (change, own, other) in under_way {
            let found = |sub| {
                self.core
                    .host
                    .plane
                    .find_for(change, &sub)
                    .map(|slot| (slot, self.core.host.plane.agent.session(slot).created_ns))
            };
            let (slot, other_slot) = (found(own), other.and_then(found));
            let held = self.core.host.proxy_changes.held.entry(change).or_default();
            held.slot = slot;
            held.own = Some(own);
            held.other = other_slot;
            if slot.is_none() || other_slot.is_none() && other.is_some() {
                self.core
                    .host
                    .proxy_changes
                    .tell_gone(&mut self.core.host.plane, change);
            } else {
                self.core
                    .host
                    .proxy_changes
                    .tell_broken(&mut self.core.host.plane, change);
            }
        }
        self.drive_now();
        self.core.host.chain_updates.taking_up = None;
        self.core.host.undo_unrecorded();
        self.drive_now();
        Ok(())
    }
}

impl ThisHost {
    /// Ends locks that a former process never recorded, and second paths that were never used.
    fn undo_unrecorded(&mut self) {
        let held = self.proxy_changes.held.values().flat_map(Held::slots);
        let held: HashSet<u32> = held.map(|(slot, _)| slot).collect();
        let mut all = self.plane.agent.sessions();
        all.retain(|(slot, _)| !held.contains(slot) && !self.chain_updates.has(*slot));
        for (slot, s) in all {
            match s.view() {
                View::Tracked => {
                    if s.clamp != 0 {
                        self.plane.agent.clamp(slot, 0);
                    }
                    if s.clamp_remote != 0 {
                        self.plane.agent.clamp_remote(slot, 0);
                    }
                }
                View::Changing(Change::Joining) => {
                    let left = self.plane.agent.drop_next_path(slot);
                    self.chain_updates.tombstone_path(&mut self.plane, left);
                }
                View::NewPath(route) | View::Changing(Change::Switching(route))
                    if route.other.is_some() =>
                {
                    let left = self.plane.agent.drop_path_before(slot);
                    self.chain_updates.tombstone_path(&mut self.plane, left);
                }
                View::Changing(Change::TwoPaths(cutover)) if !cutover.is_used() => {
                    self.plane.agent.unprepare(slot);
                }
                View::Changing(Change::RelayTwoPaths(cutover)) if !cutover.is_used() => {
                    self.plane.agent.unjoin(slot);
                }
                View::Relayed(_) => self.plane.agent.undo_steering(slot),
                View::Changing(Change::TwoPaths(_) | Change::RelayTwoPaths(_))
                    if !s.has_ended() =>
                {
                    tracing::error!(session = ?s.key, "two paths, and no record of the change: it stays so until the session ends");
                }
                // By two paths: the host that opened the session knows which is in use (`in_use`).
                View::Changing(Change::Passing(_)) => {}
                _ => {}
            }
        }
    }
}
