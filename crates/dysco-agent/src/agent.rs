//! The data plane, as the daemon uses it.

mod change;
mod start;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, Queue};
use aya::{Ebpf, Pod};
use dysco_common::rule::{MAX_RULES, Rule, Rules};
use dysco_common::{Counter, FlowKey, Path as FlowPath, Session, State, Translation};
use nix::fcntl::Flock;

use crate::attach;
use crate::chain::maps::Chains;
use crate::detour::records::Detours;
use crate::error::AgentError;
use crate::interfaces::Place;
use crate::load::Loaded;
use crate::maps::{Key, Ref, lock, map_error, pod};
use crate::memory::Memory;
use crate::packet_services::records::Records;
use crate::pins::LAYOUT;
use crate::xdp::Xdp;

/// A new path for a session.
#[derive(Clone, Copy, Debug)]
pub struct NewPath {
    /// The path's five-tuple from this host's side.
    pub key: FlowKey,
    /// The interface that the path leaves by.
    pub ifindex: u32,
    /// The translation of headers.
    pub translation: Translation,
}

pod!(RulesPod, Rules);

/// The data plane. Its programs and maps remain when this value is dropped.
pub struct Agent {
    memory: Memory,
    /// The map of `memory`: a program that is loaded later names it by its descriptor.
    _table: MapData,
    pub(crate) flows: Mutex<HashMap<MapData, Key, Ref>>,
    pub(crate) free: Mutex<Queue<MapData, u32>>,
    counters: PerCpuArray<MapData, u64>,
    pub(crate) chains: Mutex<Chains>,
    /// Sessions with a detour.
    pub(crate) detours: Detours,
    /// Sessions with services of the packet plane.
    pub(crate) packet_services: Records,
    /// The right window edges of the remote ends whose anchor this host is, by slot.
    pub(crate) edges: Mutex<Array<MapData, u32>>,
    pub(crate) places: Mutex<Vec<Place>>,
    /// Setting of XDP for interfaces that are made anew.
    pub(crate) relays_by: Xdp,
    /// Directory of the pins.
    pub(crate) dir: PathBuf,
    rules: Mutex<Tracking>,
    /// Slots without keys, until no program can use them any longer. They are in the state
    /// [`State::Closed`], by which the next process recognizes them if this one is killed.
    quarantine: Mutex<Quarantine>,
    pub(crate) loaded: Mutex<Loaded>,
    /// The programs for sessions with handlers. None until they are loaded.
    pub(crate) handlers: Mutex<Option<Ebpf>>,
    /// Not 0 while the events include sessions that open.
    watched: Mutex<Array<MapData, u32>>,
    /// Lock that reserves the pins for this agent.
    _alone: Flock<File>,
}

/// Collected slots. A program that runs on another processor may still use one that was
/// collected this moment: each slot waits from one release to the next.
#[derive(Default)]
struct Quarantine {
    /// Slots that were collected since the last release.
    fresh: Vec<u32>,
    /// Slots that were collected before it.
    aged: Vec<u32>,
}

/// The rules that select the sessions to track, and their map for the programs.
struct Tracking {
    map: Array<MapData, RulesPod>,
    rules: Vec<Rule>,
}

impl Tracking {
    fn start(map: Map, rules: &[Rule]) -> Result<Tracking, AgentError> {
        let map = Array::try_from(map).map_err(map_error("open", "RULES"))?;
        let mut tracking = Tracking {
            map,
            rules: Vec::new(),
        };
        tracking.set(rules)?;
        Ok(tracking)
    }

    fn set(&mut self, rules: &[Rule]) -> Result<(), AgentError> {
        let mut all = Rules {
            len: rules.len().min(MAX_RULES) as u32,
            rules: Default::default(),
        };
        for (to, from) in all.rules.iter_mut().zip(rules) {
            *to = *from;
        }
        self.map
            .set(0, RulesPod(all), 0)
            .map_err(map_error("write", "RULES"))?;
        self.rules = rules.to_vec();
        Ok(())
    }
}

fn set_watched(map: &mut Array<MapData, u32>, watch: bool) -> Result<(), AgentError> {
    let write = map_error("write", "WATCHED");
    map.set(0, u32::from(watch), 0).map_err(write)
}

impl Agent {
    /// Number of sessions that there is room for: the value of [`AgentConfig::max_sessions`]
    /// when the maps were made.
    pub fn room(&self) -> u32 {
        self.memory.len()
    }

    /// Takes the data plane of `pin_dir` off its interfaces and removes its pins.
    pub fn remove(pin_dir: &Path, interfaces: &[String]) {
        attach::detach_all(&pin_dir.join(LAYOUT), interfaces);
    }

    /// Sets whether the events include sessions that open. Without a receiver the events would
    /// delay the set-up of sessions for nothing.
    ///
    /// # Errors
    /// If the kernel does not write its map.
    pub fn watch_openings(&self, watch: bool) -> Result<(), AgentError> {
        set_watched(&mut lock(&self.watched), watch)
    }

    /// Number of sessions that there is room for.
    pub fn capacity(&self) -> u32 {
        self.memory.len()
    }

    /// Returns the slot of the session with this own five-tuple.
    pub fn find(&self, key: &FlowKey) -> Option<u32> {
        let flow = lock(&self.flows).get(&Key(key.short()), 0).ok()?.0;
        let own = flow.path == FlowPath::Old as u16 && self.memory.read(flow.slot).key == *key;
        own.then_some(flow.slot)
    }

    /// Returns the slot of the session with this subsession.
    pub fn find_path(&self, path: &FlowKey) -> Option<u32> {
        let flow = lock(&self.flows).get(&Key(path.short()), 0).ok()?.0;
        let its = flow.path == FlowPath::New as u16 && self.memory.read(flow.slot).path == *path;
        its.then_some(flow.slot)
    }

    /// True if a session has the five-tuple.
    pub fn in_use(&self, key: &FlowKey) -> bool {
        lock(&self.flows).get(&Key(key.short()), 0).is_ok()
    }

    /// Rules that select the sessions to track.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        lock(&self.rules).rules.clone()
    }

    /// Tracks sessions that open from now on by other rules. A SYN that is judged at this moment
    /// may be compared with some of both.
    ///
    /// # Errors
    /// If the kernel does not write its map.
    pub fn track(&self, rules: &[Rule]) -> Result<(), AgentError> {
        lock(&self.rules).set(rules)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns a copy of a slot's entry. Its words may be of slightly different moments.
    pub fn session(&self, slot: u32) -> Session {
        self.memory.read(slot)
    }

    /// Returns all slots in use, with their entries.
    pub fn sessions(&self) -> Vec<(u32, Session)> {
        self.sessions_in(0..self.capacity()).collect()
    }

    /// Returns the slots in use of one of `parts` equal parts of the table.
    pub fn sessions_of(&self, part: u32, parts: u32) -> Vec<(u32, Session)> {
        let border =
            |part| (u64::from(self.memory.len()) * u64::from(part) / u64::from(parts)) as u32;
        self.sessions_in(border(part)..border(part + 1)).collect()
    }

    /// Returns the slots in use of a range, one after the other: a copy of a large table is
    /// large.
    pub fn sessions_in(&self, slots: Range<u32>) -> impl Iterator<Item = (u32, Session)> {
        let slots = slots.start..slots.end.min(self.capacity());
        slots
            .filter(|slot| !self.memory.is_unused(*slot))
            .map(|slot| (slot, self.memory.read(slot)))
    }

    /// Drops all packets of the session, both ways.
    pub fn tombstone(&self, slot: u32) {
        self.memory.set_state(slot, State::Tombstone);
    }

    /// Forgets a session. Its slot is reused only after the next call but one of
    /// [`Agent::release_quarantine`].
    pub fn collect(&self, slot: u32) {
        if self.memory.is_unused(slot) {
            return;
        }
        let s = self.memory.read(slot);
        self.drop_key(&s.key, slot);
        self.pass_on_alias(slot, &s);
        self.forget_chain(slot);
        self.forget_delta(slot);
        self.forget_detour(slot);
        self.memory.clear(slot);
        lock(&self.quarantine).fresh.push(slot);
    }

    /// Gives back the slots that were collected before the last call.
    pub fn release_quarantine(&self) {
        let slots = {
            let mut quarantine = lock(&self.quarantine);
            let fresh = std::mem::take(&mut quarantine.fresh);
            std::mem::replace(&mut quarantine.aged, fresh)
        };
        let mut free = lock(&self.free);
        for slot in slots {
            self.memory.set_state(slot, State::Free);
            if let Err(e) = free.push(slot, 0) {
                tracing::error!(slot, error = %e, "a session slot is lost until the programs are unloaded");
            }
        }
    }

    pub(crate) fn drop_key(&self, key: &FlowKey, slot: u32) {
        let mut flows = lock(&self.flows);
        // The port may be in use again, by a session of another slot.
        let key = Key(key.short());
        if matches!(flows.get(&key, 0), Ok(held) if held.0.slot == slot) {
            let _ = flows.remove(&key);
        }
    }

    /// Returns the data plane's counters, summed over CPUs.
    pub fn counters(&self) -> Vec<(Counter, u64)> {
        let value = |c: &Counter| {
            self.counters
                .get(&(*c as u32), 0)
                .map_or(0, |v| v.iter().sum())
        };
        Counter::ALL.iter().map(|c| (*c, value(c))).collect()
    }
}
