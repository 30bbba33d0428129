//! A second path of a live session. Each path has an entry. The flow map selects the path: the
//! session's own five-tuple leads to one of the two entries, and a single write makes it lead to
//! the other.

use std::collections::HashMap;

use dysco_common::session::{Alias, Two, part};
use dysco_common::two_paths::{self, Anchor, Cutoff};
use dysco_common::view::{Change, View};
use dysco_common::{FlowKey, FlowRef, Path, Session, ShortKey, State, seq};

use crate::Agent;
use crate::error::AgentError;
use crate::maps::{Key, Ref, lock, map_error};
use crate::memory::wait_for_programs;

mod given_up;
mod passing;

impl Agent {
    /// Makes an entry for another path of a session, without a five-tuple yet. Once it has one,
    /// it receives; nothing is sent on it.
    ///
    /// # Errors
    /// If there is no room.
    pub fn add_path(&self, slot: u32) -> Result<u32, AgentError> {
        let Ok(second_entry) = lock(&self.free).pop(0) else {
            return Err(AgentError::NoRoom);
        };
        let relay = self.steer(slot);
        let first = self.session(slot);
        // A host of the session's chain has another side of the session, which does not change.
        let joined = match first.view().is_relayed() {
            true => 0,
            false => first.joined,
        };
        let alias = match first.alias() {
            Some(name) if first.alias.is_none() => Alias::of(&name),
            _ => first.alias,
        };
        let session = Session {
            state: State::Joining as u32,
            path: FlowKey::default(),
            short_path: ShortKey::default(),
            alias,
            translation: first.carried(),
            two: Two {
                chained: 2,
                part: part::NEXT,
                ..Two::default()
            },
            other_path: slot + 1,
            ifindex: 0,
            hop: 0,
            joined,
            relay,
            new_out: 0,
            new_in: 0,
            ..first
        };
        self.memory().seed(second_entry, &session);
        if first.view() == View::Tracked {
            self.memory().set_new_received(slot);
        }
        Ok(second_entry)
    }

    /// Gives a path of [`Agent::add_path`] its five-tuple, from this host's side.
    ///
    /// # Errors
    /// If the five-tuple is another's.
    pub fn aim_path(
        &self,
        second_entry: u32,
        path: FlowKey,
        ifindex: u32,
    ) -> Result<(), AgentError> {
        let key = Key(path.short());
        let value = Ref(FlowRef::new(&path, second_entry, Path::New));
        let mut flows = lock(&self.flows);
        match flows.get(&key, 0) {
            Ok(held) if held.0 == value.0 => {}
            Ok(_) => return Err(AgentError::PathInUse(path)),
            Err(_) => flows
                .insert(key, value, 0)
                .map_err(map_error("insert a path", "FLOWS"))?,
        }
        drop(flows);
        self.memory().write(second_entry, |s| {
            s.path = path;
            s.short_path = path.short();
            s.ifindex = ifindex;
        });
        Ok(())
    }

    /// Sets the interface by which a path leaves. To be called before the path's SYN is
    /// answered: the programs write the same entry later.
    pub fn set_way(&self, second_entry: u32, ifindex: u32) {
        self.memory().write(second_entry, |s| s.ifindex = ifindex);
    }

    /// True if the five-tuple of an entry's path leads to the entry.
    pub fn has_path(&self, slot: u32) -> bool {
        let path = self.session(slot).path;
        let held = lock(&self.flows).get(&Key(path.short()), 0);
        !path.is_none() && held.is_ok_and(|held| held.0.slot == slot)
    }

    /// Copies the numbers of the path that is taken to the path that is not.
    pub fn refresh_path(&self, second_entry: u32) {
        let s = self.session(second_entry);
        if let (part::NEXT, Some(first)) = (s.two.part, s.other_path()) {
            self.memory().take_over(second_entry, first);
        }
    }

    /// Returns the slot that a session takes, by its five-tuple here or its name on other hosts.
    pub fn find_called(&self, key: &FlowKey) -> Option<u32> {
        self.find(key).or_else(|| self.find_named(key))
    }

    /// Returns the slot that a session takes, by its name on other hosts.
    pub fn find_named(&self, name: &FlowKey) -> Option<u32> {
        let flow = lock(&self.flows).get(&Key(name.short()), 0).ok()?.0;
        // The session may have left this entry since.
        let slot = self.find(&self.session(flow.slot).key)?;
        (self.session(slot).alias() == Some(*name)).then_some(slot)
    }

    /// Passes the names of a slot that is given up to the session's other slot, if there is one.
    pub(crate) fn pass_on_alias(&self, slot: u32, s: &Session) {
        let other = s.alias().filter(|name| *name != s.path);
        let names = std::iter::once(s.path).chain(other);
        for name in names.filter(|name| !name.is_none()) {
            let successor = self.find(&s.key).filter(|successor| *successor != slot);
            let successor =
                successor.filter(|successor| self.session(*successor).alias() == Some(name));
            let Some(successor) = successor else {
                self.drop_key(&name, slot);
                continue;
            };
            let mut flows = lock(&self.flows);
            let key = Key(name.short());
            if !matches!(flows.get(&key, 0), Ok(held) if held.0.slot == slot) {
                continue;
            }
            let value = Ref(FlowRef::alias(&name, successor));
            if let Err(error) = flows.insert(key, value, 0) {
                tracing::error!(?name, %error, "what a session is called may become another's");
            }
        }
    }

    /// Takes another path from the next packet on. Returns the highest number sent before, in
    /// the local end's space.
    ///
    /// # Errors
    /// If the path is not open, or the flow map cannot be written: then nothing has
    /// changed.
    pub fn switch_path(&self, second_entry: u32) -> Result<u32, AgentError> {
        let s = self.session(second_entry);
        let Some(first) = s.other_path() else {
            return Ok(s.snd_max);
        };
        let memory = self.memory();
        if s.two.part == part::NEXT {
            // The request may have been made long ago.
            if s.path.remote_port == 0 {
                return Err(AgentError::PathNotOpen);
            }
            memory.take_over(second_entry, first);
            memory.share_life(second_entry, first);
            memory.set_state(second_entry, State::Switching);
            self.lead_to(second_entry)?;
            memory.set_part(second_entry, part::CURRENT, Some(first));
            memory.set_part(first, part::BEFORE, Some(second_entry));
            memory.hide(first);
        }
        // A packet that is being judged may still have to raise the number.
        wait_for_programs();
        let (before, now) = (self.session(first), self.session(second_entry));
        // Numbers alone distinguish no more than 2 GiB, and this call may come late.
        let highest = match before.bytes_out > now.bytes_out {
            true => before.snd_max,
            false => now.snd_max,
        };
        memory.raise(
            second_entry,
            &Session {
                snd_max: highest,
                ..now
            },
        );
        Ok(highest)
    }

    /// Returns to the path before. The other path still receives.
    ///
    /// # Errors
    /// If the flow map cannot be written: then nothing has changed.
    pub fn switch_back(&self, second_entry: u32) -> Result<(), AgentError> {
        let s = self.session(second_entry);
        let (part::CURRENT, Some(first)) = (s.two.part, s.other_path()) else {
            return Ok(());
        };
        let memory = self.memory();
        memory.take_over(first, second_entry);
        if is_out_of_sight(self.session(first).rcv_max, s.snd_ack) {
            memory.set_received(first, s.snd_ack);
        }
        memory.share_life(first, second_entry);
        self.lead_to(first)?;
        memory.set_part(first, part::CURRENT, None);
        memory.set_part(second_entry, part::NEXT, Some(first));
        memory.hide(second_entry);
        Ok(())
    }

    /// Makes the session's own five-tuple lead to this entry, so that the session takes its path
    /// from the next packet on. A step of [`Agent::switch_path`] and [`Agent::switch_back`];
    /// their other steps only follow it ([`Agent::repair_parts`]).
    ///
    /// # Errors
    /// If the flow map cannot be written: then nothing has changed.
    pub fn lead_to(&self, slot: u32) -> Result<(), AgentError> {
        let own = self.session(slot).key;
        let value = Ref(FlowRef::new(&own, slot, Path::Old));
        lock(&self.flows)
            .insert(Key(own.short()), value, 0)
            .map_err(map_error("write", "FLOWS"))?;
        self.memory().show(slot);
        Ok(())
    }

    /// Sets again which of its two paths each session takes, by the entry that its own
    /// five-tuple leads to. An earlier process may have died between two stores of a switch. A
    /// reader of the other fields would mistake the path in use for the other one.
    pub fn repair_parts(&self) {
        for (second_entry, s) in self.sessions() {
            let is_second = matches!(
                s.view(),
                View::Changing(Change::Joining | Change::Switching(_))
            );
            let Some(first) = s.other_path().filter(|_| is_second) else {
                continue;
            };
            let before = self.session(first);
            if before.key != s.key {
                // The entry belongs to another session now.
                continue;
            }
            let (now, memory) = ([s.two.part, before.two.part], self.memory());
            match self.find(&s.key) {
                Some(taken) if taken == second_entry && now != [part::CURRENT, part::BEFORE] => {
                    memory.set_state(second_entry, State::Switching);
                    memory.set_part(second_entry, part::CURRENT, Some(first));
                    memory.set_part(first, part::BEFORE, Some(second_entry));
                    memory.hide(first);
                }
                Some(taken) if taken == first && now != [part::NEXT, part::CURRENT] => {
                    memory.set_part(first, part::CURRENT, None);
                    memory.set_part(second_entry, part::NEXT, Some(first));
                    memory.hide(second_entry);
                }
                _ => {}
            }
        }
    }

    /// Sets the number that the other end had sent before it took the path. Returns true if the
    /// path has carried these bytes, and the local end has acknowledged them and nothing that
    /// the path has not carried. Then nothing that is still on the path before is needed.
    pub fn settle_path(&self, second_entry: u32, peer_cutoff: u32) -> bool {
        let cutoff = Cutoff {
            at: peer_cutoff,
            closes: false,
        };
        let acked = self
            .memory()
            .set_cut_in(second_entry, cutoff, Anchor::Local);
        let s = self.session(second_entry);
        let carried = two_paths::carries_all(&s) && !seq::after(s.snd_ack, s.rcv_max);
        (acked || !seq::before(s.snd_ack, peer_cutoff)) && carried
    }

    /// Sets the number of the path of [`Agent::add_path`].
    pub fn set_path_number(&self, second_entry: u32, number: u32) {
        self.memory().set_laid_by(second_entry, number);
    }

    /// Returns the entries of paths that are being opened, by the entries of their sessions'
    /// other paths.
    pub fn second_paths(&self) -> HashMap<u32, u32> {
        let all = self.sessions().into_iter();
        let next = all.filter(|(_, n)| n.two.part == part::NEXT && !n.view().is_tombstone());
        let of = next.filter_map(|(next, n)| Some((n.other_path()?, next, n.key)));
        let same = of.filter(|(first, _, key)| self.session(*first).key == *key);
        same.map(|(first, next, _)| (first, next)).collect()
    }

    /// Returns the entry of a session's path that is being opened, or was a moment ago.
    pub fn second_path(&self, slot: u32) -> Option<u32> {
        let s = self.session(slot);
        if s.other_path().is_some() {
            return Some(slot);
        }
        let next = |(_, n): &(u32, Session)| {
            n.two.part == part::NEXT && n.other_path() == Some(slot) && n.key == s.key
        };
        self.sessions().into_iter().find(next).map(|(next, _)| next)
    }
}

/// True if a number is so far behind another that a comparison may mislead.
fn is_out_of_sight(left: u32, now: u32) -> bool {
    let ahead = now.wrapping_sub(left);
    (1 << 30..3 << 30).contains(&ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers slightly ahead or behind are in sight, also around the wrap. A number that may be
    /// either is not.
    #[test]
    fn what_comparing_would_mislead_is_out_of_sight() {
        for left in [0, 5, u32::MAX - 5] {
            let ahead = |by: u32| is_out_of_sight(left, left.wrapping_add(by));
            assert!(!ahead(0) && !ahead(1 << 20) && !ahead((1 << 30) - 1));
            assert!(!ahead(0u32.wrapping_sub(1 << 20)));
            assert!(ahead(1 << 30) && ahead(1 << 31) && ahead((3 << 30) - 1));
        }
    }
}
