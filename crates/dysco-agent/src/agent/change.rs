//! The steps of a change, in the entry of a session.

use dysco_common::two_paths::{Anchor, Cutoff, acked_far_ahead};
use dysco_common::{FlowKey, FlowRef, Path as FlowPath, Session, ShortKey, State};

use super::{Agent, NewPath};
use crate::error::AgentError;
use crate::maps::{Key, Ref, lock, map_error};
use crate::memory::wait_for_programs;

impl Agent {
    /// Bounds the window that the old path announces to the local end, scaled as it is sent. 0
    /// removes the bound.
    pub fn clamp(&self, slot: u32, window: u16) {
        self.memory.set_clamp(slot, window);
    }

    /// Makes the session receive on the new path, without sending on it yet.
    pub fn prepare(&self, slot: u32, new: &NewPath) -> Result<(), AgentError> {
        self.aim_at(slot, new)?;
        self.memory.set_state(slot, State::TwoPaths);
        Ok(())
    }

    /// Sends replies on the new path, on which nothing is received. The calls that undo
    /// [`Agent::prepare`] undo this as well, at any time.
    pub fn start_dsr(&self, slot: u32, new: &NewPath) -> Result<(), AgentError> {
        self.aim_at(slot, new)?;
        self.memory.set_state(slot, State::Return);
        Ok(())
    }

    fn aim_at(&self, slot: u32, new: &NewPath) -> Result<(), AgentError> {
        let key = Key(new.key.short());
        let value = Ref(FlowRef::new(&new.key, slot, FlowPath::New));
        let mut flows = lock(&self.flows);
        match flows.get(&key, 0) {
            Ok(held) if held.0 == value.0 => {}
            Ok(_) => return Err(AgentError::PathInUse(new.key)),
            Err(_) => flows
                .insert(key, value, 0)
                .map_err(map_error("insert a path", "FLOWS"))?,
        }
        drop(flows);
        self.memory.write(slot, |s| {
            s.path = new.key;
            s.short_path = new.key.short();
            s.ifindex = new.ifindex;
            s.translation = new.translation;
            s.two = Default::default();
            (s.hop, s.new_out, s.new_in, s.peer_sent_max, s.muted) = (0, 0, 0, 0, 0);
        });
        Ok(())
    }

    /// Returns to the old path. Only if nothing was sent on the new one.
    pub fn unprepare(&self, slot: u32) {
        self.memory.set_state(slot, State::Tracked);
        self.memory.set_clamp(slot, 0);
        self.memory.set_muted(slot, false);
        let key = self.memory.read(slot).path;
        self.drop_key(&key, slot);
        self.memory.write(slot, |s| {
            s.path = FlowKey::default();
            s.short_path = ShortKey::default();
            // Data that arrived by the new path no longer counts against the proxy's FIN.
            s.two.new_data = 0;
        });
    }

    /// Sends new data on the new path from here on. Returns the cutoff, in the local end's own
    /// sequence space.
    pub fn cut(&self, slot: u32) -> Cutoff {
        self.memory.cut(slot, Anchor::Local)
    }

    /// Sets the number of the first byte that arrives on the new path, in the local end's space.
    /// Returns true if the local end has acknowledged all earlier bytes already; otherwise a
    /// `Drained` event follows.
    pub fn set_cut_in(&self, slot: u32, cutoff: Cutoff) -> bool {
        self.memory.set_cut_in(slot, cutoff, Anchor::Local)
    }

    /// Records that the middlebox has ended the session between two paths, so that the programs
    /// let its resets pass.
    pub fn break_off(&self, slot: u32) {
        self.memory.set_broken(slot);
    }

    /// Returns true if the session has drained. There may be no event for an acknowledgement
    /// that arrived while the cutoff was being set. `at` selects the session's end.
    pub fn look_drained(&self, slot: u32, at: Anchor) -> bool {
        self.memory.look_drained(slot, at)
    }

    /// Ignores the new path from now on. Returns false, and changes nothing, if the path has
    /// carried bytes that no old path can. Holds until [`Agent::unmute`], or another
    /// [`Agent::prepare`].
    pub fn mute(&self, slot: u32) -> bool {
        self.memory.mute(slot)
    }

    /// Receives on the new path again.
    pub fn unmute(&self, slot: u32) {
        self.memory.set_muted(slot, false);
    }

    /// Sends everything on the old path again. Only after [`Agent::mute`]. The calls that undo
    /// [`Agent::prepare`] may follow once the old path has caught up
    /// (`two_paths::has_caught_up`).
    pub fn take_back(&self, slot: u32) {
        self.memory.take_back(slot);
    }

    /// Sends all packets on the new path.
    pub fn complete(&self, slot: u32) {
        // First: while there are two paths, the number received bounds the acknowledgements of the old
        // one. A strict firewall drops an acknowledgement of data that the old path has not carried.
        self.memory.set_state(slot, State::NewPath);
        // A program that has read the state before must not find the higher number either.
        wait_for_programs();
        let s = self.memory.read(slot);
        // Bytes that arrived by the new path meanwhile were not counted; the end has
        // acknowledged them.
        let received = Session {
            rcv_max: s.snd_ack,
            ..s
        };
        if acked_far_ahead(&s) {
            self.memory.set_received(slot, s.snd_ack);
        } else {
            self.memory.raise(slot, &received);
        }
    }
}
